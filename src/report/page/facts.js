// ---- What is said of a slice.

function hint() {
  return h("p", { class: "dim" }, "Select a slice to see what it is, what it waited for and where its time comes from. ",
    "Drag or arrow keys move, Ctrl + wheel, two fingers or w/s zoom, Shift + drag zooms to a stretch, double click zooms in, 0 shows the whole step, ",
    "e all streams, c the critical path, l flows, f fits the selection, / finds, Esc lets go. With a selection arrows go from slice to slice.");
}

function shortFacts(slice) {
  const { run, rank, kernel } = slice, out = [];
  if (slice.op !== undefined && slice.kind !== "op") out.push(["", [run.opName(rank, slice.op), slice.stream.name].filter(Boolean).join(", ")]);
  out.push(["", `${span(slice.length)} from ${moment(slice.start)}`]);
  if (kernel?.shape) out.push(["", kernel.shape]);
  if (kernel?.bytes) out.push(["", bytesText(kernel.bytes)]);
  if (slice.kind === "wait") {
    const by = waitedFor(slice);
    if (by) out.push(["for", by.text]);
  }
  if (slice.kind === "transfer" && slice.stream.spin[slice.n] > 0) out.push(["waited for the other side", span(slice.stream.spin[slice.n])]);
  return out;
}

/// The slice that a wait, given by its number, was for.
function waitedFor({ run, rank, wait }) {
  const w = run.ranks[rank].waits, lane = w.lane[wait];
  if (!lane) return null;
  const stream = run.lanes[lane - 1], n = w.slice[wait];
  const op = run.opName(stream.rank, stream.op[n]);
  return { lane, n, text: `${stream.rank === rank ? "" : `rank ${stream.rank}: `}${run.kernels[stream.what[n]].name}${op ? ` (${op})` : ""}` };
}

function facts(slice, timeline) {
  const { run, rank, kernel, start, length } = slice;
  const rows = [], add = (name, ...value) => rows.push(h("dt", {}, name), h("dd", {}, ...value));
  const jump = (text, lane, n) => h("button", { type: "button", class: "link", onclick: () => timeline.go(run, lane, n) }, text);
  const where = run.ranks.length > 1 ? `rank ${rank}` : "the only rank";
  add("where", slice.kind === "op" ? where : `${where}, stream ${slice.stream ? slice.stream.name : "compute"}`);
  if (slice.op !== undefined && slice.kind !== "op" && run.opName(rank, slice.op)) add("op", run.opName(rank, slice.op));
  add("time", `${moment(start)} to ${moment(start + length)}, ${span(length)} (${percent(length / run.step, 2)} of the step)`);
  if (kernel?.shape) add("shape", `${kernel.family}: ${kernel.shape}`);
  if (kernel?.bytes) {
    const across = slice.kind === "transfer" ? length - slice.stream.spin[slice.n] : length;
    add(slice.kind === "transfer" ? "bytes" : "reads and writes", `${bytesText(kernel.bytes)}, ${rate((kernel.bytes / across) * 1e9, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])}`);
  }
  if (kernel?.flop) add("work", `${rate(kernel.flop, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"])}, ${rate((kernel.flop / length) * 1e9, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"])}`);
  if (kernel?.link) add("over", kernel.link);
  if (kernel?.origin) add("time from", `${kernel.profile}, ${kernel.origin}${kernel.note ? ": " + kernel.note : ""}`,
    kernel.priced ? `; ${span(kernel.priced)} alone on a cool part (× ${(length / kernel.priced).toFixed(3)} here)` : "");
  if (slice.kind === "transfer") {
    const spin = slice.stream.spin[slice.n];
    add("other side", spin > 0 ? `was ready ${span(spin)} after this one` : "was ready before this one");
    if (slice.flow) {
      const out = slice.flow.from === slice.stream && slice.flow.slice === slice.n;
      add(out ? "arrives in" : "comes from", out ? jump(`rank ${slice.flow.to.rank}, ${run.opName(slice.flow.to.rank, slice.flow.to.op[slice.flow.toSlice])}`, slice.flow.to.index + 1, slice.flow.toSlice)
        : jump(`rank ${slice.flow.from.rank}, ${run.opName(slice.flow.from.rank, slice.flow.from.op[slice.flow.slice])}`, slice.flow.from.index + 1, slice.flow.slice));
    }
  }
  if (slice.kind === "wait") {
    const by = waitedFor(slice);
    add("for", by ? jump(by.text, by.lane, by.n) : "nothing that has a slice");
  }
  if (slice.kind === "kernel" && slice.type === "compute" && !run.json.traced) add("before it", ...waitsBefore(slice, jump));
  if (slice.kind === "op") opFacts(slice, add, jump);
  const on = onPath(run, rank, start, start + length);
  if (!run.json.traced) add("critical path", on > 0 ? `${span(on)} of it` : "not on it");
  return [h("h3", {}, slice.title), h("dl", {}, rows)];
}

function onPath(run, rank, from, to) {
  let sum = 0;
  for (const stay of run.path) if (stay.rank === rank) sum += Math.max(0, Math.min(to, stay.to) - Math.max(from, stay.from));
  return sum;
}

/// What the compute stream did right before a kernel: the waits, or the kernel before it.
function waitsBefore({ run, rank, n }, jump) {
  const { compute, waits } = run.ranks[rank], out = [];
  for (let i = compute.place[n] - 1; i >= 0 && compute.track.ref[i] < 0 && out.length < 8; i--) {
    const wait = -1 - compute.track.ref[i], by = waitedFor({ run, rank, wait });
    out.unshift(h("div", {}, `${span(waits.length[wait])} ${causes[waits.cause[wait]].name}`, by ? [" — ", jump(by.text, by.lane, by.n)] : ""));
  }
  if (out.length) return out;
  return n > 0 ? ["no wait, after ", jump(run.kernels[compute.what[n - 1]].name, compute.index + 1, n - 1)] : ["nothing: the begin of the step"];
}

/// Sums of an op's block by kind of kernel.
function opFacts({ run, rank, start, length }, add) {
  const { track } = run.ranks[rank].compute, sums = new Map();
  for (let i = Math.max(0, track.before(start)); i < track.n && track.start[i] < start + length; i++) {
    if (track.start[i] + track.length[i] <= start) continue;
    sums.set(track.kind[i], (sums.get(track.kind[i]) ?? 0) + track.length[i]);
  }
  for (const [kind, ns] of [...sums].sort((a, b) => b[1] - a[1])) add(kinds[kind].name, `${span(ns)} (${percent(ns / length)})`);
}
