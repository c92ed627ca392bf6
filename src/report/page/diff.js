// ---- Two results side by side; of two scenarios the timelines, rank under rank, on one axis.

/// A bar from zero to each difference; together they are the difference of the step.
function differenceBars(rows, label) {
  const pitch = 24;
  return responsive((width) => {
    const left = Math.min(170, width * 0.36), right = 84, top = 4, height = top + pitch * rows.length + 38;
    const x = scale(Math.min(0, ...rows.map((r) => r.difference_ms)) * 1.04, Math.max(0, ...rows.map((r) => r.difference_ms)) * 1.04 || 1, left, width - right);
    return svg("svg", { width, height, role: "group", "aria-label": label }, axisX(x, top + pitch * rows.length, top, "ms, B less A", (width - left) / 100),
      svg("line", { x1: x(0), x2: x(0), y1: top, y2: top + pitch * rows.length, stroke: "var(--ink)" }),
      rows.map((r, i) => {
        const y = top + pitch * i, from = Math.min(x(0), x(r.difference_ms)), to = Math.max(x(0), x(r.difference_ms));
        return telling(svg("g", { tabindex: 0, role: "img", class: "mark", "aria-label": `${r.cause}: ${signedMs(r.difference_ms)} ms` },
          svg("text", { x: left - 8, y: y + pitch / 2 + 4, "text-anchor": "end" }, r.cause),
          svg("rect", { x: from, y: y + 4, width: Math.max(1, to - from), height: pitch - 8, rx: 2, fill: r.difference_ms > 0 ? orange() : teal() }),
          svg("text", { x: width - right + 8, y: y + pitch / 2 + 4 }, signedMs(r.difference_ms))),
        () => lines(r.cause, [["A", `${ms(r.a_ms)} ms`], ["B", `${ms(r.b_ms)} ms`], ["B less A", `${signedMs(r.difference_ms)} ms`]]));
      }));
  }, label);
}

const both = (pair, text = ms) => [text(pair.a), text(pair.b), pair.b - pair.a === 0 ? "0" : (pair.b > pair.a ? "+" : "−") + text(Math.abs(pair.b - pair.a))];

pages.diff = (pack) => {
  const d = pack.json.results.diff, out = [];
  const names = h("p", {}, h("b", {}, "A "), `${d.a.name} (${d.a.is})`, h("br"), h("b", {}, "B "), `${d.b.name} (${d.b.is})`);
  const cards = [];
  if (d.step_ms) cards.push(card(signedPercent(d.relative, 2), `step, ${signedMs(d.step_ms.difference)} ms`, "first"), card(`${ms(d.step_ms.a)} → ${ms(d.step_ms.b)}`, "ms, A → B"), card(`${d.tflops_per_gpu.a.toFixed(1)} → ${d.tflops_per_gpu.b.toFixed(1)}`, "TFLOP/s/GPU"),
    card(`${d.fits.a ? "fits" : "does not fit"} → ${d.fits.b ? "fits" : "does not fit"}`, "memory"));
  out.push(section("difference", "A against B", names, h("div", { class: "cards" }, cards)));
  if (d.settings) out.push(section("settings", "Settings", d.settings.length ? table(["setting", "A", "B"], d.settings.map((s) => [s.name, { text: s.a ?? "(unset)", class: "left" }, { text: s.b ?? "(unset)", class: "left" }]), { left: [0, 1, 2] }) : h("p", { class: "dim" }, "the same")));
  if (d.time) {
    const rows = d.time.filter((r) => r.a_ms || r.b_ms), changed = [...rows].filter((r) => Math.abs(r.difference_ms) >= 0.005).sort((a, b) => Math.abs(b.difference_ms) - Math.abs(a.difference_ms));
    out.push(section("time", "Time by cause", h("p", { class: "dim" }, "Of the rank that finishes last; the differences add up to that of the step."), changed.length ? differenceBars(changed, "differences of time by cause") : null,
      table(["cause", "A ms", "B ms", "B − A"], rows.map((r) => [r.cause, ms(r.a_ms), ms(r.b_ms), signedMs(r.difference_ms)]))));
  }
  if (d.traced) for (const rank of d.traced) {
    const kinds_ = Object.keys(rank.busy_ms);
    out.push(section(`traced${rank.pp_rank}`, `Rank ${rank.pp_rank}, as a profiler shows it`, h("p", { class: "dim" }, `Step ${both(rank.step_ms).join(", ")} ms: A, B, B − A. Exposed: no compute kernel runs.`),
      table(["kind", "busy ms A", "B", "B − A", "exposed ms A", "B", "B − A"], kinds_.map((k) => [tracedNames[k] ?? k, ...both(rank.busy_ms[k]), ...(rank.exposed_ms[k] ? both(rank.exposed_ms[k]) : ["", "", ""])]))));
  }
  if (d.ranks) out.push(section("peaks", "Memory", table(["rank", "allocated A", "B", "B − A", "reserved A", "B", "B − A"], d.ranks.map((r) => [String(r.pp_rank), ...both(r.peak_allocated_bytes, gib), ...both(r.peak_reserved_bytes, gib)]), { caption: "GiB" }),
    d.owners ? table(["owner", "A", "B", "B − A"], d.owners.bytes.filter((o) => o.difference_bytes).slice(0, 24).map((o) => [o.owner, ...both({ a: o.a_bytes, b: o.b_bytes }, gib)]), { caption: `GiB at the peak of rank ${d.owners.pp_rank} (A: ${d.owners.at_a}, B: ${d.owners.at_b}), the largest differences` }) : null));
  const results = pack.runs.map((run) => pack.json.results[run.title]);
  if (pack.runs.length) out.push(...runSections(pack.runs, results));
  return out;
};
