// ---- A run as page_timeline.cpp and page_memory.cpp packed it.

const opKinds = { forward: 0, backward: 1, both: 2, finalisation: 3, optimizer: 4, none: 5 };

/// Slices in order of their start. `kind` is what a pixel of it looks like; `ref` which slice of the stream it shows.
class Track {
  constructor(start, length, kind, ref = null) {
    Object.assign(this, { start, length, kind, ref, n: start.length });
  }
  /// The last slice that starts at or before t; -1: none.
  before(t) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
  /// The slice at t, or -1.
  at(t) {
    for (let i = this.before(t), tries = 0; i >= 0 && tries < 8; i--, tries++)
      if (t < this.start[i] + this.length[i]) return i;
    return -1;
  }
}

class Run {
  constructor(pack, json) {
    this.json = json;
    this.title = json.title;
    const t = json.timeline;
    this.step = t.step_ns;
    this.forwardBackward = t.forward_backward_ns;
    this.kernels = t.kernels.map(([name, category, family, shape, bytes, flop, origin, profile, note, link, priced]) =>
      ({ name, category, family, shape, bytes, flop, origin, profile, note, link, priced }));
    this.prefix = t.prefix;
    // What a trace does not tell has no column.
    const read = (name) => (pack.has(this.prefix + name) ? pack.numbers(this.prefix + name) : new Float64Array(0));
    this.ranks = t.ranks.map((phases, r) => ({
      rank: r, phases,
      ops: { kind: read(`O${r}.kind`), mb: summed(read(`O${r}.mb`)), chunk: summed(read(`O${r}.chunk`)),
             mb2: summed(read(`O${r}.mb2`)), chunk2: summed(read(`O${r}.chunk2`)) },
      streams: [],
    }));
    this.lanes = t.lanes.map(([rank, name, lane], i) => this.stream(read, pack, rank, name, lane, i));
    for (const lane of this.lanes) this.ranks[lane.rank].streams.push(lane);
    for (const rank of this.ranks) {
      rank.compute = rank.streams.find((s) => s.name === "compute");
      this.waits(read, rank);
      this.blocks(read, rank);
    }
    this.flows = this.readFlows(read);
    const pathRank = read("P.rank"), pathFrom = summed(read("P.from"));
    this.path = Array.from(pathRank, (rank, i) => ({ rank, from: pathFrom[i], to: i + 1 < pathFrom.length ? pathFrom[i + 1] : this.step }));
    this.memory = json.memory ? this.readMemory(read, json.memory) : null;
  }

  stream(read, pack, rank, name, lane, index) {
    const what = read(`L${index}.what`), op = summed(read(`L${index}.op`));
    const gap = signed(read(`L${index}.gap`)), length = read(`L${index}.ns`);
    const start = gap;  // in place
    let last = 0;
    for (let i = 0; i < start.length; i++) {
      start[i] += last;
      last = start[i] + length[i];
    }
    const out = { index, rank, name, lane, what: Uint32Array.from(what), op: Uint32Array.from(op), start, length, n: start.length };
    if (pack.has(`${this.prefix}L${index}.spin`)) {
      // Two pieces a transfer: posted and waiting, then across.
      out.spin = read(`L${index}.spin`);
      const starts = new Float64Array(2 * out.n), lengths = new Float64Array(2 * out.n);
      const kind = new Uint8Array(2 * out.n), ref = new Uint32Array(2 * out.n);
      for (let i = 0; i < out.n; i++) {
        starts[2 * i] = start[i];
        lengths[2 * i] = out.spin[i];
        starts[2 * i + 1] = start[i] + out.spin[i];
        lengths[2 * i + 1] = length[i] - out.spin[i];
        kind[2 * i] = spinKind;
        kind[2 * i + 1] = this.kernels[what[i]].category;
        ref[2 * i] = ref[2 * i + 1] = i;
      }
      out.track = new Track(starts, lengths, kind, ref);
    } else {
      const kind = new Uint8Array(out.n);
      for (let i = 0; i < out.n; i++) kind[i] = this.kernels[what[i]].category;
      out.track = new Track(start, length, kind);
    }
    return out;
  }

  /// Waits of a compute stream, and its track with kernels and waits side by side.
  waits(read, rank) {
    const of = `W${rank.rank}.`;
    const gap = signed(read(of + "gap")), length = read(of + "ns"), cause = read(of + "cause");
    const lane = read(of + "lane"), slice = this.places(lane, signed(read(of + "slice")));
    let last = 0;
    for (let i = 0; i < gap.length; i++) {
      gap[i] += last;
      last = gap[i] + length[i];
    }
    rank.waits = { start: gap, length, cause, lane, slice, n: gap.length };
    const c = rank.compute, w = rank.waits;
    if (!c) return;
    const n = c.n + w.n;
    const starts = new Float64Array(n), lengths = new Float64Array(n), kind = new Uint8Array(n), ref = new Int32Array(n);
    const place = new Uint32Array(c.n);  // of a kernel in the track
    for (let i = 0, k = 0, g = 0; i < n; i++) {
      const takesKernel = g >= w.n || (k < c.n && c.start[k] < w.start[g]);
      starts[i] = takesKernel ? c.start[k] : w.start[g];
      lengths[i] = takesKernel ? c.length[k] : w.length[g];
      kind[i] = takesKernel ? this.kernels[c.what[k]].category : firstCause + w.cause[g];
      ref[i] = takesKernel ? k : -1 - g;  // waits count down from -1
      if (takesKernel) place[k++] = i;
      else g++;
    }
    c.track = new Track(starts, lengths, kind, ref);
    c.place = place;
  }

  /// Slices of places (lane from 1) were written as differences to the last one of the same lane.
  places(lane, slice) {
    const last = new Float64Array(this.lanes.length + 1);
    for (let i = 0; i < slice.length; i++) slice[i] = last[lane[i]] += slice[i];
    return slice;
  }

  blocks(read, rank) {
    const of = `B${rank.rank}.`;
    const op = Uint32Array.from(summed(read(of + "op"))), start = signed(read(of + "gap")), length = read(of + "ns");
    const kind = new Uint8Array(start.length);
    let last = 0;
    for (let i = 0; i < start.length; i++) {
      start[i] += last;
      last = start[i] + length[i];
      const odd = rank.ops.chunk[op[i]] % 2 === 1;
      switch (rank.ops.kind[op[i]]) {
        case opKinds.forward: kind[i] = odd ? alternateKind : 0; break;
        case opKinds.backward: kind[i] = odd ? alternateKind + 1 : 1; break;
        case opKinds.both: kind[i] = alternateKind + 2; break;
        case opKinds.finalisation: kind[i] = 4; break;
        case opKinds.optimizer: kind[i] = 5; break;
        default: kind[i] = 12;
      }
    }
    rank.blocks = new Track(start, length, kind);
    rank.blocks.op = op;
  }

  readFlows(read) {
    const lane = read("F.lane"), slice = this.places(lane, signed(read("F.slice")));
    const toLane = read("F.to_lane"), toSlice = this.places(toLane, signed(read("F.to_slice")));
    const flows = Array.from(lane, (_, i) => {
      const from = this.lanes[lane[i] - 1], to = this.lanes[toLane[i] - 1];
      const sent = from.start[slice[i]] + from.spin[slice[i]], arrived = to.start[toSlice[i]] + to.length[toSlice[i]];
      return { from, slice: slice[i], to, toSlice: toSlice[i], sent, arrived };
    });
    flows.sort((a, b) => a.sent - b.sent);
    this.flowOf = new Map();
    for (const flow of flows) {
      this.flowOf.set(flow.from.index * 2 ** 32 + flow.slice, flow);
      this.flowOf.set(flow.to.index * 2 ** 32 + flow.toSlice, flow);
    }
    return flows;
  }

  flow(lane, slice) {
    return this.flowOf.get(lane.index * 2 ** 32 + slice);
  }

  readMemory(read, json) {
    const ranks = json.ranks.map((about, r) => {
      const of = `M${r}.`;
      const at = summed(read(of + "at"));
      const held = Array.from({ length: json.drawn }, (_, o) => {
        const values = summed(read(`${of}held${o}`));
        return values.length ? values : new Float64Array(at.length);
      });
      return { ...about, at, allocated: summed(read(of + "allocated")), reserved: summed(read(of + "reserved")), held,
        segments: read(of + "segment"), segmentKind: read(of + "segment_kind"), segmentBlocks: read(of + "segment_blocks"),
        block: read(of + "block"), blockOwner: read(of + "block_owner") };
    });
    return { owners: json.owners, drawn: json.drawn, ranks };
  }

  opName(rank, op) {
    const { kind, mb, chunk, mb2, chunk2 } = this.ranks[rank].ops;
    switch (kind[op]) {
      case opKinds.forward: return `F ${mb[op]}.${chunk[op]}`;
      case opKinds.backward: return `B ${mb[op]}.${chunk[op]}`;
      case opKinds.both: return `F ${mb[op]}.${chunk[op]} | B ${mb2[op]}.${chunk2[op]}`;
      case opKinds.finalisation: return "gradient finalisation";
      case opKinds.optimizer: return "optimizer";
      default: return "";
    }
  }

  /// Short, for a label on a block.
  opLabel(rank, op) {
    const { kind, mb, chunk } = this.ranks[rank].ops;
    if (kind[op] > opKinds.both) return this.opName(rank, op);
    return this.ranks[rank].ops.several ??= chunk.some((c) => c > 0) ? 2 : 1, this.ranks[rank].ops.several === 2 ? `${mb[op]}.${chunk[op]}` : `${mb[op]}`;
  }

  /// Time by cause over a rank's compute stream: sums of waits and of kernels by category.
  sums(rank) {
    const { waits, compute } = this.ranks[rank];
    const byCause = new Float64Array(causes.length), byCategory = new Float64Array(categories.length);
    for (let i = 0; i < waits.n; i++) byCause[waits.cause[i]] += waits.length[i];
    for (let i = 0; compute && i < compute.n; i++) byCategory[this.kernels[compute.what[i]].category] += compute.length[i];
    return { byCause, byCategory };
  }
}
