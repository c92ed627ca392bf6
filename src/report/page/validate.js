// ---- Measured beside predicted: validate and trial.

/// Errors of the prediction with its interval around it, over the measured time: zero is right.
function errorRows(cases) {
  return cases.map((c) => {
    const low = c.interval_ms ? c.interval_ms[0] / c.measured_ms - 1 : c.error, high = c.interval_ms ? c.interval_ms[1] / c.measured_ms - 1 : c.error;
    const inside = low <= 0 && high >= 0;
    return { name: c.name, low: 100 * low, high: 100 * high, at: 100 * c.error, colour: inside ? blue() : orange(), inside, case: c, text: signedPercent(c.error),
      tip: () => lines(c.name, [["measured", `${ms(c.measured_ms)} ms`], ["predicted", `${ms(c.predicted_ms)} ms, ${signedPercent(c.error)}`], ["90 % interval", c.interval_ms ? `${ms(c.interval_ms[0])} to ${ms(c.interval_ms[1])}, ${inside ? "holds it" : "misses it"}` : "none"], ["memory", c.ranks?.length ? c.ranks.map((r) => signedPercent(r.error)).join(", ") : ""]]) };
  });
}

const tracedNames = { comp: "compute", p2p: "transfers", ep: "expert exchange", coll: "collectives", d2h: "copies to the host", h2d: "copies from the host" };

/// Of runs outside their interval: what traces showed against what was predicted.
function outliers(rows, extra) {
  const missed = rows.filter((r) => !r.inside).sort((a, b) => Math.abs(b.at) - Math.abs(a.at));
  if (!missed.length) return null;
  const cells = [];
  for (const r of missed) {
    const traced = extra.cases[r.index].traced;
    const parts = Object.entries(traced).flatMap(([kind, [busy, predicted, exposed, predictedExposed]]) => kind === "comp" ? [[tracedNames.comp, predicted - busy, busy]] : [[`exposed ${tracedNames[kind]}`, predictedExposed - exposed, exposed]])
      .filter(([, d]) => Math.abs(d) >= 0.05).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const told = parts.reduce((sum, [, d]) => sum + d, 0), off = r.case.predicted_ms - r.case.measured_ms;
    cells.push([r.name, signedPercent(r.case.error), signedMs(off), { text: parts.length ? parts.slice(0, 3).map(([n, d]) => `${n} ${signedMs(d)}`).join(", ") : "no trace of this run", class: "left" },
      parts.length ? signedMs(off - told) : "", { text: [extra.cases[r.index].moe && "experts", extra.cases[r.index].fp8 && "FP8", extra.cases[r.index].offload && "offload"].filter(Boolean).join(", "), class: "left" }]);
  }
  return section("outliers", "Outside their interval, by cause", h("p", { class: "dim" }, "What a profiler showed on the traced ranks, in the mean, against what is predicted that it would show; ms. The rest is launches, hosts and what was not traced."),
    table(["run", "error", "ms", "predicted less measured", "rest", "model"], cells, { left: [0, 3, 5] }));
}

pages.validate = (pack) => {
  const v = pack.json.results.validate, extra = pack.json.extra;
  const rows = errorRows(v.cases);
  rows.forEach((r, i) => (r.index = i));
  // What was not measured is null.
  const cards = [...(v.time ? [card(percent(v.time.mean_abs_error), "mean error of times", "first"), card(percent(v.time.max_abs_error), "largest"), card(signedPercent(v.time.bias), "bias")] : []),
    v.time && v.time.in_interval !== null ? card(percent(v.time.in_interval, 0), "inside their 90 % interval") : null, v.time && v.time.kendall_tau !== null ? card(v.time.kendall_tau.toFixed(2), "Kendall's tau of the order") : null,
    ...(v.memory ? [card(percent(v.memory.mean_abs_error), "mean error of peak memory"), card(percent(v.memory.max_abs_error), "largest")] : [])].filter((c) => c);
  const orders = [["as given", (a, b) => a.index - b.index], ["by error", (a, b) => Math.abs(b.at) - Math.abs(a.at)], ["by time", (a, b) => b.case.measured_ms - a.case.measured_ms]];
  const points = rows.map((r) => ({ x: Math.log10(r.case.measured_ms), y: r.at, colour: r.colour, label: `${r.name}: ${r.text}`, tip: r.tip }));
  const memory = v.cases.flatMap((c) => c.ranks.map((r) => ({ x: r.measured_peak_bytes / GiB, y: 100 * r.error, colour: blue(), label: `${c.name} rank ${r.rank}`, tip: () => lines(`${c.name}, rank ${r.rank}`, [["measured", gib(r.measured_peak_bytes) + " GiB"], ["predicted", `${gib(r.predicted_peak_bytes)} GiB, ${signedPercent(r.error, 2)}`], ["reserved", r.measured_reserved_bytes ? `${gib(r.measured_reserved_bytes)} GiB, predicted ${gib(r.predicted_reserved_bytes)}` : ""]]) })));
  return [section("summary", "Measured beside predicted", h("p", { class: "dim" }, `${v.cases.length} run${v.cases.length === 1 ? "" : "s"}, ${v.mode} predictions; errors are predicted over measured, less one.`), h("div", { class: "cards" }, cards)),
    rows.length ? section("times", "Times with their intervals", h("div", { class: "keys" }, key(blue(), "inside its 90 % interval"), key(orange(), "outside")), choice(orders.map(([n]) => n), (i) => whiskers([...rows].sort(orders[i][1]), { xName: "error of the time, %", label: "errors of times with their intervals" }), "order of the runs")) : null,
    outliers(rows, extra),
    memory.length ? section("memory", "Peak memory of every rank", scatter(memory, { xName: "measured, GiB", yName: "error, %", label: "errors of peak memory", height: 260 })) : null,
    section("runs", "All runs", table(["run", "measured ms", "predicted ms", "90 % interval", "error", "peak error by rank"], v.cases.map((c) => [c.name, ms(c.measured_ms), ms(c.predicted_ms), c.interval_ms ? `${ms(c.interval_ms[0])} to ${ms(c.interval_ms[1])}` : "none", signedPercent(c.error), c.ranks.map((r) => signedPercent(r.error)).join(" ")]), { left: [0], mark: (i) => (rows[i].inside ? "" : "warn") })),
    v.refused.length ? section("refused", "Not predicted", table(["run", "reason"], v.refused.map((r) => [r.name, { text: r.reason, class: "left text" }]), { left: [0, 1] })) : null, points.length ? null : null];
};

pages.trial = (pack) => {
  const t = pack.json.results.trial;
  const ran = t.runs.filter((r) => r.step_ms !== null);
  const rows = errorRows(ran.map((r) => ({ name: r.name, measured_ms: r.step_ms, predicted_ms: r.predicted_step_ms, interval_ms: r.interval_ms, error: r.error, ranks: r.ranks.map((m) => ({ error: m.predicted_peak_allocated_bytes / m.peak_allocated_bytes - 1 })) })));
  const fastest = t.measured_order[0], cards = [];
  if (fastest) cards.push(card(fastest, `fastest, ${ms(ran.find((r) => r.name === fastest).step_ms)} ms`, "first"), card(t.predicted_order[0] ?? "-", "predicted fastest of those that ran"));
  cards.push(card(`${ran.length} of ${t.runs.length}`, "ran to their end"));
  const memory = t.runs.flatMap((r) => r.ranks.map((m) => [r.name, String(m.rank), gib(m.peak_allocated_bytes), gib(m.predicted_peak_allocated_bytes), gib(m.peak_reserved_bytes), gib(m.predicted_peak_reserved_bytes), m.outside_allocator_bytes === null ? "-" : gib(m.outside_allocator_bytes), gib(m.predicted_outside_allocator_bytes)]));
  const recorded = t.runs.flatMap((r) => r.recorded.map((d) => [r.name, String(d.rank), { text: tracedNames[d.kind] ?? d.kind, class: "left" }, ms(d.busy_ms), ms(d.predicted_busy_ms), signedMs(d.predicted_busy_ms - d.busy_ms), d.kind === "comp" ? "" : ms(d.exposed_ms), d.kind === "comp" ? "" : ms(d.predicted_exposed_ms)]));
  return [section("summary", "Trial", fastest ? null : h("p", { class: "verdict bad" }, "nothing ran to its end"), h("div", { class: "cards" }, cards)),
    rows.length ? section("times", "Steps with their intervals", whiskers(rows, { xName: "error of the step, %", label: "errors of the steps" })) : null,
    section("runs", "Runs", table(["run", "status", "step ms", "predicted ms", "90 % interval", "error", "what it is"], t.runs.map((r) => [r.name, { text: r.status, class: "left" }, r.step_ms === null ? "-" : ms(r.step_ms), ms(r.predicted_step_ms), `${ms(r.interval_ms[0])} to ${ms(r.interval_ms[1])}`, r.error === null ? "-" : signedPercent(r.error), { text: r.label + (r.reason ? `: ${r.reason} (${r.log})` : ""), class: "left text" }]), { left: [0, 1, 6] }),
      t.runs.flatMap((r) => r.notes.map((n) => h("p", { class: "dim" }, `${r.name}: ${n}`)))),
    memory.length ? section("memory", "Memory", table(["run", "rank", "allocated", "predicted", "reserved", "predicted", "outside", "predicted"], memory, { caption: "GiB" })) : null,
    recorded.length ? section("recorded", "The recorded step", table(["run", "rank", "kind", "busy ms", "predicted", "difference", "exposed ms", "predicted"], recorded, { left: [0, 2] })) : null];
};
