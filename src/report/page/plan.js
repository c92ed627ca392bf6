// ---- A plan: the winner, what it was chosen from, how sure that is, and what to type.

const blue = () => colourOf(kinds[0]), orange = () => colourOf(kinds[6]), teal = () => colourOf(kinds[1]), wine = () => colourOf(kinds[11]);

const exposedSum = (p) => exposedCauses.reduce((sum, c) => sum + p.exposed_ms[c], 0);
const busyOf = (p) => p.step_time_ms - p.bubble_ms - exposedSum(p);

/// Where two predictions differ, largest first: of the rank that finishes last.
function differences(to, from) {
  const parts = [["bubble", to.bubble_ms - from.bubble_ms], ["recompute", to.recompute_ms - from.recompute_ms],
    ...exposedCauses.map((c) => [`exposed ${c}`, to.exposed_ms[c] - from.exposed_ms[c]])];
  const rest = to.step_time_ms - from.step_time_ms - parts.reduce((sum, [, v]) => sum + v, 0);
  parts.push(["other compute", rest]);
  return parts.filter(([, v]) => Math.abs(v) >= 0.05).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
}

const signedMs = (v) => (v < 0 ? "−" : "+") + Math.abs(v).toFixed(1);

function candidatesOf(plan, extra) {
  const out = [];
  if (plan.best) out.push({ mark: "best", of: plan.best, extra: extra.best });
  if (extra.baseline) out.push({ mark: "given", of: plan.baseline, extra: extra.baseline });
  let number = 0;
  plan.alternatives.forEach((a, i) => {
    if (!(a.as_given && extra.baseline)) out.push({ mark: String(++number), of: a, extra: extra.alternatives[i] });
  });
  return out;
}

function candidateTip(c, best) {
  const p = c.of.prediction;
  return lines(c.mark === "best" ? c.of.label : `${c.mark}: ${c.extra.beside}`, [
    ["step", `${ms(p.step_time_ms)} ms${best && c.of !== best ? `, ${signedPercent(p.step_time_ms / best.prediction.step_time_ms - 1)}` : ""}`],
    ["takes", `${gib(c.extra.needed_bytes)} GiB of the fullest device, ${gib(c.extra.spare_bytes)} to spare`],
    ["", p.fits ? `fits with probability ${percent(c.of.probability_to_fit, 0)}` : "does not fit"],
    ...(best && c.of !== best ? differences(p, best.prediction).slice(0, 4).map(([name, v]) => [name, `${signedMs(v)} ms`]) : []),
  ]);
}

function paretoChart(plan, extra) {
  const all = candidatesOf(plan, extra), best = plan.best;
  const points = all.map((c) => ({ x: c.extra.needed_bytes / GiB, y: c.of.prediction.step_time_ms, colour: !c.of.prediction.fits ? cssColour("--dim") : c.mark === "best" ? orange() : blue(),
    hollow: !c.of.prediction.fits, size: c.mark === "best" ? 8 : c.mark === "given" ? 7 : 5, square: c.mark === "given", text: c.mark === "best" || c.mark === "given" ? c.mark : "",
    label: `${c.mark}: ${c.extra.beside}, ${ms(c.of.prediction.step_time_ms)} ms, ${gib(c.extra.needed_bytes)} GiB`, tip: () => candidateTip(c, best) }));
  const seen = new Set(points.map((p) => `${p.x}|${p.y}`));
  const extraPoint = (what) => (p, i) => {
    const more = extra[what][i], point = { x: more.needed_bytes / GiB, y: p.step_time_ms, colour: teal(), size: 4, hollow: !more.exact,
      label: `${more.label}, ${ms(p.step_time_ms)} ms`, tip: () => lines(more.label, [["step", `${ms(p.step_time_ms)} ms${more.exact ? "" : " (estimated)"}`], ["takes", `${gib(more.needed_bytes)} GiB`], ["", what === "ladder" ? "a way to free memory" : "nothing is faster with as little allocated"]]) };
    if (!more.needed_bytes || seen.has(`${point.x}|${point.y}`)) return null;
    seen.add(`${point.x}|${point.y}`);
    return point;
  };
  points.push(...plan.pareto.map(extraPoint("pareto")).filter(Boolean), ...plan.ladder.map(extraPoint("ladder")).filter(Boolean));
  if (points.length < 2) return null;
  const limit = (best ?? plan.baseline).prediction.memory_limit_bytes / GiB;
  const front = points.filter((p) => !points.some((q) => q !== p && q.x <= p.x && q.y <= p.y && (q.x < p.x || q.y < p.y)));
  return section("candidates", "Candidates", scatter(points, { xName: "GiB of the fullest device", yName: "step, ms", label: "step time against memory of every candidate",
      across: [{ x: limit, text: "limit", colour: cssColour("--bad") }], line: front }),
    h("div", { class: "keys" }, key(orange(), "best"), key(blue(), "candidates, the given as a square; hollow: does not fit"), key(teal(), "front and ladder; hollow: estimated"), key("var(--dim)", "line: nothing is faster and smaller")),
    candidateTable(plan, extra, all));
}

function candidateTable(plan, extra, all) {
  const reference = (plan.best ?? plan.baseline).prediction.step_time_ms;
  return table(["", "differs from the best in", "step ms", "to best", "TFLOP/s", "recompute", "exposed", "bubble", "GiB", "to spare", "P(fits)", "why it lost"],
    all.map((c) => {
      const p = c.of.prediction;
      const tie = plan.best && Math.abs(p.step_time_ms / reference - 1) <= 0.005;
      const why = !plan.best || c.mark === "best" ? "" : !p.fits ? "does not fit" : (tie ? "a tie (within 0.5 %); " : "") + differences(p, plan.best.prediction).slice(0, 2).map(([n, v]) => `${n} ${signedMs(v)}`).join(", ");
      return [c.mark, { text: c.mark === "best" ? c.of.label : c.extra.beside, class: "left" }, ms(p.step_time_ms), signedPercent(p.step_time_ms / reference - 1), p.tflops_per_gpu.toFixed(1), ms(p.recompute_ms), ms(exposedSum(p)), ms(p.bubble_ms), gib(c.extra.needed_bytes), gib(c.extra.spare_bytes), percent(c.of.probability_to_fit, 0), { text: why, class: "left" }];
    }), { left: [0, 1, 11], caption: "Milliseconds of the rank that finishes last; GiB that the fullest rank takes of its device", mark: (r) => (all[r].mark === "best" ? "best" : all[r].of.prediction.fits ? "" : "off") });
}

/// The best of every way to spread the model, where there is more than one.
function byParallelism(plan, extra) {
  const groups = new Map();
  for (const c of candidatesOf(plan, extra)) {
    const { TP, PP, CP, EP, DP, MBS } = c.extra.parallelism;
    const name = `TP ${TP} PP ${PP} CP ${CP} EP ${EP} DP ${DP}, micro batch ${MBS}`;
    const now = groups.get(name), better = !now || (c.of.prediction.fits && !now.of.prediction.fits) || (c.of.prediction.fits === now.of.prediction.fits && c.of.prediction.step_time_ms < now.of.prediction.step_time_ms);
    if (better) groups.set(name, c);
  }
  if (groups.size < 2) return null;
  const rows = [...groups].sort((a, b) => a[1].of.prediction.step_time_ms - b[1].of.prediction.step_time_ms);
  return section("parallelism", "Best of each way to spread the model", table(["parallelism", "best candidate", "step ms", "TFLOP/s", "bubble", "exposed", "GiB", "fits"],
    rows.map(([name, c]) => [name, c.of.label, ms(c.of.prediction.step_time_ms), c.of.prediction.tflops_per_gpu.toFixed(1), ms(c.of.prediction.bubble_ms), ms(exposedSum(c.of.prediction)), gib(c.extra.needed_bytes), c.of.prediction.fits ? "yes" : "no"]), { left: [0, 1] }));
}

function ladder(plan, extra) {
  if (!plan.best || !plan.ladder.length) return null;
  const best = plan.best.prediction.step_time_ms, most = Math.max(...extra.ladder.map((l) => extra.best.needed_bytes - l.needed_bytes));
  const rows = plan.ladder.map((l, i) => {
    const freed = extra.best.needed_bytes - extra.ladder[i].needed_bytes, costs = l.step_time_ms - best;
    return [extra.ladder[i].label + (extra.ladder[i].exact ? "" : " (time estimated)"), h("span", { class: "mini" }, h("i", { style: `width:${Math.max(2, 110 * Math.max(0, freed) / (most || 1))}px;background:${teal()}` }), gib(freed)), signedMs(costs), (costs / (freed / GiB)).toFixed(1)];
  });
  return section("ladder", "Cheapest ways to free memory", table(["instead", "frees GiB", "costs ms", "ms per GiB"], rows));
}

function certainty(plan) {
  if (!plan.sensitivity?.length) return null;
  const rows = plan.sensitivity.map((s) => ({ name: s.against, low: s.difference_ms - s.half_interval_ms, high: s.difference_ms + s.half_interval_ms, at: s.difference_ms, colour: s.tied ? cssColour("--dim") : s.difference_ms < 0 ? wine() : blue(),
    text: `${signedMs(s.difference_ms)} ± ${s.half_interval_ms.toFixed(1)}`,
    tip: () => lines(s.against, [["slower by", `${signedMs(s.difference_ms)} ± ${s.half_interval_ms.toFixed(1)} ms (90 %)${s.tied ? ", a tie" : ""}`], ["turned if", s.measurement ? `${s.measurement} took ${signedPercent(s.error_to_turn)} (known to ${percent(s.known_to)})` : "no measurement alone"]]) }));
  return section("certainty", "How sure the choice is", h("p", { class: "dim" }, "Step of the nearest alternatives less that of the best, with its 90 % interval; errors that both share cancel."),
    whiskers(rows, { xName: "ms slower than the best", label: "differences to the best with their intervals" }),
    table(["against", "difference ms", "± (90 %)", "turned if", "by", "known to"], plan.sensitivity.map((s) => [s.against, signedMs(s.difference_ms), s.half_interval_ms.toFixed(1), { text: s.measurement || "no measurement alone", class: "left" }, s.measurement ? signedPercent(s.error_to_turn) : "", s.measurement ? percent(s.known_to) : ""]), { left: [0, 3] }));
}

function flags(extra) {
  if (!extra.flags) return null;
  const forms = [["megatron", "Megatron-LM flags"], ["bridge", "Megatron Bridge overrides"], ["harness", "Bridge performance harness"], ["env", "Environment"]].filter(([f]) => extra.flags[f]?.trim());
  return section("flags", "What to run", choice(forms.map(([, name]) => name), (i) => {
    const text = extra.flags[forms[i][0]].replace(/^[^\n]*\n/, "");  // without its title
    const button = h("button", { type: "button", class: "copy", onclick: () => copy(text, button) }, "Copy");
    return [h("div", { class: "right" }, button), h("pre", { tabindex: "0" }, text)];
  }, "form of the flags"));
}

function planHead(plan, extra) {
  const best = plan.best, s = plan.searched;
  const verdict = best ? h("p", { class: "verdict good" }, `best: ${best.label}`) : h("p", { class: "verdict bad" }, plan.closest ? `nothing fits; ${plan.closest.label ?? plan.closest} lacks least` : "nothing fits");
  const given = extra.baseline ? plan.baseline.prediction : null;
  const cards = [];
  if (best) {
    const p = best.prediction;
    cards.push(card(ms(p.step_time_ms) + " ms", p.interval_ms ? `step, 90 % interval ${ms(p.interval_ms[0])} to ${ms(p.interval_ms[1])}` : "step", "first"), card(p.tflops_per_gpu.toFixed(1), "TFLOP/s/GPU"));
    if (given) cards.push(card(signedPercent(p.step_time_ms / given.step_time_ms - 1), `against the given, ${ms(given.step_time_ms)} ms`));
    cards.push(card(gib(extra.best.spare_bytes) + " GiB", "to spare on the fullest rank"), card(percent(best.probability_to_fit, 0), "probability to fit"));
  }
  cards.push(card(s.candidates.toLocaleString("en"), `candidates, ${s.simulated} simulated${s.proved_optimal ? ", none left that can be faster" : ""}`));
  const changes = extra.changes?.length ? table(["setting", "given", "planned"], extra.changes.map((c) => c.map((v) => ({ text: v, class: "left" }))), { left: [0, 1, 2], caption: "What it changes" }) : best && extra.has_baseline ? h("p", { class: "dim" }, "The scenario as given is the best.") : null;
  return section("plan", "Plan", verdict, configuration({ ...(best ?? plan.baseline).prediction, ...plan }), h("div", { class: "cards" }, cards), changes,
    plan.why.length ? h("details", { open: true }, h("summary", {}, "Why"), h("ul", {}, plan.why.map((w) => h("li", {}, w)))) : null);
}

function rejected(extra) {
  if (!extra.rejected.length) return null;
  return section("rejected", "Rejected", table(["candidates", "rule", "reason"], extra.rejected.map(([label, count, rule, reason]) => [label + (count > 1 ? ` and ${count - 1} more` : ""), { text: rule || "not modelled", class: "left" }, { text: reason, class: "left text" }]), { left: [0, 1, 2] }));
}

pages.plan = (pack) => {
  const plan = pack.json.results.plan, extra = pack.json.extra, run = pack.runs[0];
  const shown = (plan.best ?? plan.baseline).prediction;
  return [planHead(plan, extra), paretoChart(plan, extra), byParallelism(plan, extra), certainty(plan), ladder(plan, extra), flags(extra), rejected(extra),
    ...(run ? [...runSections([run], [shown]), timeByRank(shown, run), transfers(shown), criticalPath(shown), ...notes(shown, run)] : [])];
};
