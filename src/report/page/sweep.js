// ---- A sweep: bars over one setting, heat maps over two; further ones give further maps.

/// A row that is refused, by a rule or as it is not modelled, has no figures.
const predicted = (row) => row.step_time_ms !== null;

const valueText = (v) => (v === null ? "none" : Array.isArray(v) ? `[${v.join(", ")}]` : String(v));

function distinct(rows, name) {
  const seen = new Map();
  for (const row of rows) seen.set(valueText(row.settings[name]), row.settings[name]);
  return [...seen.keys()];
}

const sweepMeasures = [
  { name: "step, ms", of: (r) => r.step_time_ms, text: (r) => ms(r.step_time_ms) },
  { name: "to the given", of: (r) => r.relative, text: (r) => signedPercent(r.relative) },
  { name: "reserved, GiB", of: (r) => r.peak_reserved_bytes, text: (r) => gib(r.peak_reserved_bytes) },
  { name: "exposed, ms", of: (r) => exposedCauses.reduce((sum, c) => sum + r.exposed_ms[c], 0), text: (r) => ms(exposedCauses.reduce((sum, c) => sum + r.exposed_ms[c], 0)) },
];

function sweepTip(row) {
  const title = Object.entries(row.settings).map(([k, v]) => `${k} ${valueText(v)}`).join(", ");
  if (!predicted(row)) return lines(title, [["refused", row.reason]]);
  return lines(title, [["step", `${ms(row.step_time_ms)} ms, ${signedPercent(row.relative)} to the given`], ["", row.fits ? "fits" : "does not fit"], ["peak", `${gib(row.peak_allocated_bytes)} GiB allocated, ${gib(row.peak_reserved_bytes)} reserved`],
    ...exposedCauses.filter((c) => row.exposed_ms[c] > 0.005).map((c) => [`exposed ${c}`, `${ms(row.exposed_ms[c])} ms`])]);
}

/// From the best (teal, light) to the worst (orange): lightness tells the order, too.
function heat(share) {
  const mixed = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
  const [good, middle, bad] = isDark() ? [[31, 122, 110], [62, 66, 72], [150, 78, 30]] : [[68, 170, 153], [244, 245, 246], [238, 119, 51]];
  const rgb = share < 0.5 ? mixed(good, middle, share * 2) : mixed(middle, bad, share * 2 - 1);
  return "#" + rgb.map((v) => v.toString(16).padStart(2, "0")).join("");
}

function heatMap(rows, x, y, measure, low, high) {
  const columns = x ? distinct(rows, x) : [""], lines_ = distinct(rows, y);
  const best = rows.filter((r) => predicted(r) && r.fits).reduce((a, b) => (!a || b.step_time_ms < a.step_time_ms ? b : a), null);
  const cell = (row) => {
    if (!row) return h("td", {});
    if (!predicted(row)) return telling(h("td", { class: "heat off", tabindex: "0" }, "refused"), () => sweepTip(row));
    const colour = heat(high > low ? (measure.of(row) - low) / (high - low) : 0);
    return telling(h("td", { class: "heat" + (row.fits ? "" : " tight") + (row === best ? " chosen" : ""), tabindex: "0", style: `background:${colour};color:${inkOn(colour)}` }, measure.text(row), row.fits ? "" : h("small", {}, " too large")), () => sweepTip(row));
  };
  return h("div", { class: "wide" }, h("table", { class: "map-table" },
    h("thead", {}, x ? h("tr", {}, h("th", {}), h("th", { colspan: columns.length, class: "left" }, x)) : null, h("tr", {}, h("th", { class: "left" }, y), columns.map((c) => h("th", {}, c || measure.name)))),
    h("tbody", {}, lines_.map((line) => h("tr", {}, h("th", { class: "left", scope: "row" }, line), columns.map((column) => cell(rows.find((r) => valueText(r.settings[y]) === line && (!x || valueText(r.settings[x]) === column)))))))));
}

function sweepBars(rows, name, baseline) {
  const most = Math.max(...rows.filter(predicted).map((r) => r.step_time_ms), baseline?.step_time_ms ?? 0) || 1;
  return h("div", { class: "bars sweep" }, rows.map((row) => telling(h("div", { class: "bar-row", tabindex: "0" }, h("span", { class: "bar-label" }, valueText(row.settings[name])),
    predicted(row) ? h("span", { class: "bar" }, h("span", { class: "piece", style: `width:${(100 * row.step_time_ms) / most}%;background:${row.fits ? blue() : "var(--rest)"}` }, h("em", { style: `color:${row.fits ? inkOn(blue()) : "inherit"}` }, `${ms(row.step_time_ms)} ms, ${signedPercent(row.relative)}${row.fits ? "" : ", does not fit"}`)),
      baseline ? h("span", { class: "bar-mark", style: `left:calc(${(100 * baseline.step_time_ms) / most}% - 1px)` }) : null) : h("span", { class: "dim" }, `refused: ${row.reason}`)), () => sweepTip(row))));
}

/// Settings that vary on their own: neither the same everywhere nor decided by another one.
function axesOf(rows, names) {
  const varying = names.filter((n) => distinct(rows, n).length > 1);
  const decides = (a, b) => {
    const seen = new Map();
    return rows.every((r) => {
      const [from, to] = [valueText(r.settings[a]), valueText(r.settings[b])];
      if (!seen.has(from)) seen.set(from, to);
      return seen.get(from) === to;
    });
  };
  const axes = [...varying];
  for (const name of varying)
    if (axes.some((other) => other !== name && decides(other, name) && distinct(rows, other).length >= distinct(rows, name).length)) axes.splice(axes.indexOf(name), 1);
  return axes.length ? axes : names.slice(0, 1);
}

pages.sweep = (pack) => {
  const sweep = pack.json.results.sweep, { baseline } = pack.json.extra, rows = sweep.rows;
  const all = Object.keys(rows[0]?.settings ?? {}), names = axesOf(rows, all), told = rows.filter(predicted);
  const best = told.filter((r) => r.fits).reduce((a, b) => (!a || b.step_time_ms < a.step_time_ms ? b : a), null);
  const cards = [];
  if (best) cards.push(card(ms(best.step_time_ms) + " ms", `fastest that fits: ${names.map((n) => `${n} ${valueText(best.settings[n])}`).join(", ")}`, "first"));
  if (baseline) cards.push(card(ms(baseline.step_time_ms) + " ms", "as given"));
  cards.push(card(String(rows.length), `points, ${rows.length - told.length} refused, ${told.filter((r) => !r.fits).length} do not fit`));
  const out = [section("sweep", "Sweep", best ? null : h("p", { class: "verdict bad" }, "nothing that is legal and modelled fits"), configuration({ ...(baseline ?? {}), ...sweep }), h("div", { class: "cards" }, cards), ...(sweep.notes ?? []).map((n) => h("p", { class: "dim" }, n)))];
  if (names.length >= 2) {
    const [y, x, ...others] = names;
    const groups = new Map();
    for (const row of rows) {
      const name = others.map((n) => `${n} ${valueText(row.settings[n])}`).join(", ");
      groups.set(name, [...(groups.get(name) ?? []), row]);
    }
    out.push(section("map", "Map", choice(sweepMeasures.map((m) => m.name), (i) => {
      const values = told.map(sweepMeasures[i].of), low = Math.min(...values), high = Math.max(...values);
      return [...groups].map(([name, some]) => [name ? h("h3", {}, name) : null, heatMap(some, x, y, sweepMeasures[i], low, high)]).flat().filter(Boolean);
    }, "what the map shows"), h("p", { class: "dim" }, "From teal (least) to orange (most). A frame: the fastest that fits.")));
  } else if (names.length === 1) {
    out.push(section("map", "Bars", sweepBars(rows, names[0], baseline), baseline ? h("p", { class: "dim" }, "The line: as given.") : null));
  }
  out.push(section("rows", "All points", table([...all, "step ms", "to given", ...exposedCauses, "peak GiB", "reserved", "fits"],
    rows.map((r) => [...all.map((n) => ({ text: valueText(r.settings[n]), class: "left" })), ...(predicted(r) ? [ms(r.step_time_ms), signedPercent(r.relative), ...exposedCauses.map((c) => ms(r.exposed_ms[c])), gib(r.peak_allocated_bytes), gib(r.peak_reserved_bytes), r.fits ? "yes" : "no"] : [{ text: "refused", class: "dim" }, "", ...exposedCauses.map(() => ""), "", "", { text: r.reason, class: "left text" }])]),
    { left: all.map((_, i) => i), mark: (i) => (rows[i] === best ? "best" : predicted(rows[i]) && rows[i].fits ? "" : "off") })));
  return out;
};
