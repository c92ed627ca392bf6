// ---- Small charts in SVG, drawn at the width that there is; every mark can be reached by Tab and tells what it is.

function showTip(content, x, y) {
  let tip = document.getElementById("tip");
  if (!tip) document.body.append((tip = h("div", { class: "tip", id: "tip", role: "tooltip" })));
  tip.replaceChildren(...[content].flat());
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18) + "px";
}
const hideTip = () => document.getElementById("tip")?.setAttribute("hidden", "");

/// Tells on hover and focus; `content` makes an array of elements.
function telling(element, content) {
  element.addEventListener("pointermove", (e) => showTip(content(), e.clientX, e.clientY));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    showTip(content(), box.left + box.width / 2, box.top + box.height / 2);
  });
  element.addEventListener("blur", hideTip);
  return element;
}

const lines = (title, rows) => [h("b", {}, title), ...rows.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([name, value]) => h("div", {}, h("span", { class: "dim" }, name + (name ? " " : "")), value))];

/// Draws again when its width or the colours change.
function responsive(draw, label) {
  const holder = h("div", { class: "chart", role: "group", "aria-label": label });
  let width = 0;
  const again = () => {
    width = holder.clientWidth;
    if (width) holder.replaceChildren(draw(width));
  };
  new ResizeObserver(() => holder.clientWidth !== width && again()).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return holder;
}

function scale(low, high, from, to) {
  const f = (v) => from + ((v - low) / (high - low || 1)) * (to - from);
  f.low = low;
  f.high = high;
  return f;
}

function ticksOf(s, count) {
  const step = roundStep((s.high - s.low) / count), out = [];
  for (let n = Math.ceil(s.low / step - 1e-9); n * step <= s.high + 1e-9 * step; n++) out.push(n * step);
  return { step, out };
}

function axisX(s, y, y0, name, count, text = (v, d) => v.toFixed(d)) {
  const { step, out } = ticksOf(s, count), digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return [
    ...out.map((v) => svg("line", { x1: s(v), x2: s(v), y1: y0, y2: y, class: "grid" })),
    ...out.map((v) => svg("text", { x: s(v), y: y + 15, "text-anchor": "middle", class: "dim" }, text(v, digits))),
    svg("text", { x: s(s.high), y: y + 31, "text-anchor": "end", class: "dim" }, name),
  ];
}

function axisY(s, x, x1, name, count) {
  const { step, out } = ticksOf(s, count), digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return [
    ...out.map((v) => svg("line", { x1: x, x2: x1, y1: s(v), y2: s(v), class: "grid" })),
    ...out.map((v) => svg("text", { x: x - 6, y: s(v) + 4, "text-anchor": "end", class: "dim" }, v.toFixed(digits))),
    svg("text", { x, y: s(s.high) - 10, class: "dim" }, name),
  ];
}

/// points: {x, y, colour, size, hollow, square, text, tip}; `across`: vertical lines {x, text, colour}.
function scatter(points, { xName, yName, across = [], line = [], height = 330, label }) {
  return responsive((width) => {
    const left = 54, right = 14, top = 26, bottom = 40;
    const room = (values) => {
      const low = Math.min(...values), high = Math.max(...values), more = 0.06 * (high - low || Math.abs(high) || 1);
      return [low - more, high + more];
    };
    const x = scale(...room([...points.map((p) => p.x), ...across.map((a) => a.x)]), left, width - right);
    const y = scale(...room(points.map((p) => p.y)), height - bottom, top);
    const mark = (p) => {
      const common = { class: "mark", tabindex: 0, role: "img", "aria-label": p.label, fill: p.hollow ? "var(--sheet)" : p.colour, stroke: p.colour, "stroke-width": 2 };
      const size = p.size ?? 5;
      return telling(p.square ? svg("rect", { ...common, x: x(p.x) - size, y: y(p.y) - size, width: 2 * size, height: 2 * size, rx: 1 })
        : svg("circle", { ...common, cx: x(p.x), cy: y(p.y), r: size }), p.tip);
    };
    const sorted = [...line].sort((a, b) => a.x - b.x);
    return svg("svg", { width, height, role: "group", "aria-label": label },
      axisX(x, height - bottom, top, xName, width / 90), axisY(y, left, width - right, yName, 6),
      across.map((a) => [svg("line", { x1: x(a.x), x2: x(a.x), y1: top, y2: height - bottom, stroke: a.colour, "stroke-width": 1.5, "stroke-dasharray": "5 4" }),
        svg("text", { x: x(a.x) - 5, y: top + 10, "text-anchor": "end", style: `fill:${a.colour}` }, a.text)]).flat(),
      sorted.length > 1 ? svg("path", { d: sorted.map((p, i) => `${i ? "L" : "M"}${x(p.x)} ${y(p.y)}`).join(""), fill: "none", stroke: "var(--dim)", "stroke-width": 1.5 }) : null,
      points.map(mark), points.filter((p) => p.text).map((p) => svg("text", { x: x(p.x) + 9, y: y(p.y) + 4, "pointer-events": "none" }, p.text)));
  }, label);
}

/// rows: {name, low, high, at, colour, text, tip}; values around `zero`.
function whiskers(rows, { xName, zero = 0, label, format = (v, d) => v.toFixed(d) }) {
  const pitch = 22;
  return responsive((width) => {
    const narrow = width < 560, left = Math.min(narrow ? 132 : 330, Math.max(60, ...rows.map((r) => 7.0 * r.name.length + 10))), right = narrow ? 12 : 96, top = 6, height = top + pitch * rows.length + 38;
    const values = rows.flatMap((r) => [r.low, r.high, r.at]).concat([zero]);
    const low = Math.min(...values), high = Math.max(...values), more = 0.04 * (high - low || 1);
    const x = scale(low - more, high + more, left, width - right);
    const letters = Math.floor((left - 8) / 6.4);
    return svg("svg", { width, height, role: "group", "aria-label": label }, axisX(x, top + pitch * rows.length, top, xName, (width - left) / 90, format),
      svg("line", { x1: x(zero), x2: x(zero), y1: top, y2: top + pitch * rows.length, stroke: "var(--ink)" }),
      rows.map((r, i) => {
        const y = top + pitch * i + pitch / 2;
        return telling(svg("g", { tabindex: 0, role: "img", class: "mark", "aria-label": r.label ?? `${r.name}: ${r.text}` },
          svg("rect", { x: 0, y: y - pitch / 2, width, height: pitch, fill: "transparent" }),
          svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, r.name.length > letters ? r.name.slice(0, letters - 1) + "…" : r.name),
          svg("line", { x1: x(r.low), x2: x(r.high), y1: y, y2: y, stroke: r.colour, "stroke-width": 6, opacity: 0.35, "stroke-linecap": "round" }),
          svg("circle", { cx: x(r.at), cy: y, r: 4.5, fill: r.colour }),
          narrow ? null : svg("text", { x: width - right + 8, y: y + 4, class: "dim" }, r.text)), r.tip);
      }));
  }, label);
}

/// A choice of one of several views; `make` draws the chosen one.
function choice(names, make, label) {
  const place = h("div", {});
  const chips = h("div", { class: "chips", role: "radiogroup", "aria-label": label });
  const choose = (i, focus) => {
    [...chips.children].forEach((c, k) => {
      c.setAttribute("aria-checked", k === i ? "true" : "false");
      c.tabIndex = k === i ? 0 : -1;
    });
    place.replaceChildren(...[make(i)].flat());
    if (focus) chips.children[i].focus();
  };
  names.forEach((name, i) => chips.append(h("button", { type: "button", role: "radio", onclick: () => choose(i),
    onkeydown: (e) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (!by) return;
      e.preventDefault();
      choose((i + by + names.length) % names.length, true);
    } }, name)));
  choose(0);
  return h("div", {}, chips, place);
}
