// ---- The result of one configuration: every figure is one of the JSON.

const exposedCauses = ["p2p", "tp", "cp", "ep", "dp", "offload", "host"];
const causeColours = { p2p: 23, tp: 6, cp: 7, ep: 8, dp: 9, offload: 10 };

function card(value, what, extra = "") {
  return h("div", { class: "card " + extra }, h("b", {}, value), h("span", { class: "dim" }, what));
}

function section(id, title, ...content) {
  return h("section", { id, "aria-labelledby": id + "-title" }, h("h2", { id: id + "-title" }, title), ...content);
}

function verdictOf(result, run) {
  const text = run ? run.json.verdict : result.fits ? "fits" : "does not fit";
  return h("p", { class: "verdict " + (result.fits ? "good" : "bad") }, text);
}

const configurationNames = { gpus: "GPUs", tensor_parallel: "TP", pipeline_parallel: "PP", virtual_pipeline: "VPP", context_parallel: "CP",
  expert_parallel: "EP", expert_tensor_parallel: "ETP", data_parallel: "DP", seq_length: "sequence", megatron_core: "Megatron Core",
  megatron_bridge: "Megatron Bridge", transformer_engine: "Transformer Engine" };

/// The configuration header of the JSON, whatever it holds.
function configuration(result) {
  const of = result.configuration;
  const parts = [];
  if (of) {
    const walk = (value, name) => {
      if (value === null || value === undefined || name === "scenario" || (Array.isArray(value) && !value.length)) return;
      if (Array.isArray(value)) return void parts.push([name, value.join(", ")]);
      if (typeof value === "object") return Object.entries(value).forEach(([k, v]) => walk(v, k));
      parts.push([configurationNames[name] ?? name.replaceAll("_", " "), String(value)]);
    };
    Object.entries(of).forEach(([k, v]) => walk(v, k));
  } else if (result.profile) {
    parts.push(["profile", `${result.profile.name} (${result.profile.origin})`], ["Megatron Core", result.software?.megatron_core]);
  }
  return h("dl", { class: "configuration" }, parts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function summary(result, run) {
  const interval = result.interval_ms;
  const cards = [
    card(ms(result.step_time_ms) + " ms", interval ? `step, 90 % interval ${ms(interval[0])} to ${ms(interval[1])}` : "step (no interval: something not modelled was let through)", "first"),
    card(result.tflops_per_gpu.toFixed(1), "TFLOP/s/GPU"),
    card(result.tokens_per_s_per_gpu.toFixed(1), "tokens/s/GPU"),
    card(ms(result.forward_backward_ms) + " ms", "forward-backward"),
    card(ms(result.optimizer_ms) + " ms", "optimizer"),
    card(ms(result.bubble_ms) + " ms", `bubble, ${percent(result.bubble_ms / result.step_time_ms)}`),
    card(ms(exposedCauses.reduce((sum, c) => sum + result.exposed_ms[c], 0)) + " ms", "exposed communication, copies and host"),
  ];
  if (typeof result.mfu === "number") cards.splice(2, 0, card(percent(result.mfu), "MFU"));
  return section("summary", "Step", verdictOf(result, run), configuration(result), h("div", { class: "cards" }, cards));
}

/// One bar a rank; widths are shares of the longest step.
function stackedBars(rows, whole, { label }) {
  const bar = (part) => h("span", { class: "piece", style: `width:${(100 * part.value) / whole}%;background:${part.colour}`, title: part.tip },
    part.value / whole > 0.06 && part.ink !== false ? h("em", { style: `color:${part.hex ? inkOn(part.hex) : "inherit"}` }, part.text ?? "") : null);
  return h("div", { class: "bars", role: "img", "aria-label": label }, rows.map((row) =>
    h("div", { class: "bar-row" }, h("span", { class: "bar-label dim" }, row.label), h("span", { class: "bar" }, row.parts.filter((p) => p.value > 0).map(bar), row.mark ? h("span", { class: "bar-mark", style: `left:${(100 * row.mark) / whole}%` }) : null))));
}

function lossKinds() {
  return [
    { id: "busy", name: "compute", kind: kinds[0] },
    { id: "recompute", name: "recompute", kind: kinds[3] },
    ...exposedCauses.map((id) => ({ id, name: `exposed ${id}`, kind: id === "host" ? causes[2] : id === "p2p" ? categories[11] : kinds[causeColours[id]] })),
    { id: "bubble", name: "bubble", kind: causes[0] },
    { id: "idle", name: "idle", kind: causes[1] },
  ];
}

function timeByRank(result, run) {
  const shown = lossKinds();
  // The JSON has recompute of the rank that finishes last; the run has everybody's.
  const recompute = result.ranks.map((_, r) => (run ? run.sums(r).byCategory[3] / 1e6 : 0));
  const value = (rank, id) => {
    const again = recompute[rank.pp_rank];
    if (id === "busy") return rank.busy_ms - again;
    if (id === "recompute") return again;
    return id === "bubble" ? rank.bubble_ms : id === "idle" ? rank.idle_ms : rank.exposed_ms[id];
  };
  const rows = result.ranks.map((rank) => ({
    label: `rank ${rank.pp_rank}`,
    parts: shown.map(({ id, name, kind }) => ({ value: value(rank, id), colour: colourOf(kind), hex: colourOf(kind), text: ms(value(rank, id)), tip: `${name} ${ms(value(rank, id))} ms, ${percent(value(rank, id) / result.step_time_ms)}` })),
  }));
  const used = shown.filter(({ id }) => result.ranks.some((r) => value(r, id) > 0));
  const columns = ["rank", "busy", ...exposedCauses, "bubble", "idle", "forward-backward"];
  const cells = result.ranks.map((r) => [String(r.pp_rank), ms(r.busy_ms), ...exposedCauses.map((c) => ms(r.exposed_ms[c])), ms(r.bubble_ms), ms(r.idle_ms), ms(r.forward_backward_ms)]);
  return section("ranks", "Where each rank's step goes", h("div", { class: "keys" }, used.map(({ name, kind }) => key(colourOf(kind), name))),
    stackedBars(rows, result.step_time_ms, { label: "time of each rank by cause" }),
    table(columns, cells, { caption: "Milliseconds of each rank; busy contains recompute, p2p to host are exposed", left: [] }));
}

function memoryByRank(result) {
  const cells = result.ranks.map((r) => [String(r.pp_rank), gib(r.static_bytes), gib(r.peak_allocated_bytes), { text: r.peak_at, class: "left" }, gib(r.peak_reserved_bytes), gib(r.outside_allocator_bytes),
    gib(r.pressure ? r.pressure.margin_bytes : result.memory_limit_bytes - r.peak_reserved_bytes - r.outside_allocator_bytes),
    r.pressure ? (r.pressure.probability === null ? "-" : percent(r.pressure.probability, 0)) : "-"]);
  return table(["rank", "static", "peak allocated", "at", "reserved", "outside", "to spare", "P(fits)"], cells, { caption: "GiB of each rank", left: [0, 3] });
}

function transfers(result) {
  if (!result.boundaries.length) return null;
  const cells = result.boundaries.map((b) => [`${b.from} → ${b.to}`, b.direction, String(b.transfers), bytesText(b.bytes), ms(b.exposed_ms), b.longest_wait]);
  return section("transfers", "Pipeline transfers", table(["boundary", "direction", "transfers", "each", "exposed ms", "longest wait"], cells, { left: [0, 1, 5] }));
}

function criticalPath(result) {
  const sums = new Map();
  for (const { why, ms: value } of result.critical_path) {
    const sum = sums.get(why) ?? { ms: 0, steps: 0 };
    sum.ms += value;
    sum.steps++;
    sums.set(why, sum);
  }
  if (!sums.size) return null;
  const rows = [...sums].sort((a, b) => b[1].ms - a[1].ms);
  const whole = rows.reduce((sum, [, v]) => sum + v.ms, 0);
  return section("path", "Critical path", h("p", { class: "dim" }, `The chain that decides when the step ends: ${result.critical_path.length} stays, ${ms(whole)} ms.`),
    table(["because of", "ms", "share", "stays"], rows.map(([why, v]) => [why, ms(v.ms), percent(v.ms / whole), String(v.steps)])));
}

function notes(result, run) {
  const out = [];
  const levers = result.notes.filter((n) => n.startsWith("what would shorten the step: "));
  if (levers.length) out.push(section("levers", "What would shorten the step", h("ul", {}, levers.map((n) => h("li", {}, n.slice(29))))));
  if (run?.json.time_sources.length)
    out.push(section("sources", "Where the times come from", table(["kernels", "source"], run.json.time_sources, { left: [0, 1] })));
  const others = result.notes.filter((n) => !levers.includes(n));
  const assumed = (result.assumed ?? []).map((a) => `assumed: ${a}`);
  if (others.length + assumed.length) out.push(section("notes", "Notes", h("ul", {}, [...others, ...assumed].map((n) => h("li", {}, n)))));
  return out;
}

/// Timeline and memory on one axis.
function runSections(runs, results) {
  const timeline = new Timeline(runs);
  const used = new Set();
  for (const run of runs) {
    for (const k of run.kernels) used.add(k.category);
    for (const rank of run.ranks) for (const c of rank.waits.cause) used.add(firstCause + c);
  }
  const legend = h("div", { class: "keys" }, kinds.map((k, i) => (used.has(i) ? key(colourOf(k), k.name) : null)),
    key("var(--phase)", "bar over a rank: warm-up, steady state (darker), cool-down"));
  const out = [section("timeline", "Timeline", timeline.element, legend, timeline.detail)];
  timeline.select(null);
  const panels = runs.map((run, i) => (run.memory ? new MemoryPanel(run, timeline, results[i].ranks) : null)).filter(Boolean);
  timeline.listeners.push(...panels);
  if (panels.length) out.push(section("memory", "Memory", ...panels.map((p, i) => [runs.length > 1 ? h("h3", {}, runs[i].title) : null, p.element]).flat(), ...results.filter(Boolean).map(memoryByRank)));
  window.pipewright.timeline = timeline;
  window.pipewright.memory = panels;
  return out;
}

pages.simulate = (pack) => {
  const result = pack.json.results.simulate, run = pack.runs[0];
  return [summary(result, run), ...runSections([run], [result]), timeByRank(result, run), transfers(result), criticalPath(result), ...notes(result, run)];
};
