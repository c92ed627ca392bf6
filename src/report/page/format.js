// The page of each command: its sections, from what the page carries.
const pages = {};

// ---- Numbers and elements.

const GiB = 1024 ** 3;

/// As the program's tables write them: milliseconds with two decimals, GiB with two.
const ms = (value) => value.toFixed(2);
const gib = (bytes) => (bytes / GiB).toFixed(2);
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + " %";
const signedPercent = (share, digits = 1) => (share < 0 ? "" : "+") + (100 * share).toFixed(digits) + " %";

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    unit++;
  }
  return (unit === 0 ? bytes.toFixed(0) : bytes.toFixed(unit < 3 ? 1 : 2)) + " " + units[unit];
}

/// A length of time with about four digits: "1.234 ms", "87.3 us".
function span(ns) {
  const size = Math.abs(ns);
  const [value, unit] = size >= 1e9 ? [ns / 1e9, "s"] : size >= 1e6 ? [ns / 1e6, "ms"] : size >= 1e3 ? [ns / 1e3, "µs"] : [ns, "ns"];
  const digits = unit === "ns" ? 0 : Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3;
  return value.toFixed(digits) + " " + unit;
}

/// A point in time: milliseconds to the microsecond.
const moment = (ns) => (ns / 1e6).toFixed(3) + " ms";

function rate(value, units) {
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    unit++;
  }
  return value.toPrecision(3) + " " + units[unit];
}

/// h("td", {class: "dim"}, "text", element, ...): attributes that begin with "on" are listeners.
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/// An SVG element.
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/// rows: arrays of cells; a cell is text, an element, or {text, class, value}. Numeric columns to the right.
function table(head, rows, { left = [0], mark = null, caption = null } = {}) {
  const cell = (tag, c, i) => {
    const { text = c, class: extra = "" } = c !== null && typeof c === "object" && !(c instanceof Node) ? c : { text: c };
    const names = [left.includes(i) ? "left" : "", extra].filter(Boolean).join(" ");
    return h(tag, names ? { class: names, scope: tag === "th" ? "col" : null } : { scope: tag === "th" ? "col" : null }, text ?? "");
  };
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption ?? head.join(", ") },
    h("table", {},
      caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, head.map((c, i) => cell("th", c, i)))),
      h("tbody", {}, rows.map((row, r) => h("tr", mark && mark(r) ? { class: mark(r) } : {}, row.map((c, i) => cell("td", c, i)))))));
}

/// 1, 2 or 5 times a power of ten, at least `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const m of [1, 2, 5, 10]) if (m * power >= least * (1 - 1e-9)) return m * power;
  return 10 * power;
}

/// For GiB: 1, 2, 4, 8 ... or decimal steps below one.
function roundBytes(least) {
  return least < GiB ? 2 ** Math.ceil(Math.log2(least)) : roundStep(least / GiB) * GiB;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => (button.textContent = before), 1200);
}
