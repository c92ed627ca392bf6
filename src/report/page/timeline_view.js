// ---- What the timeline shows: ranks with their streams on one axis, drawn on a canvas; labels to its left are buttons.

const streamNames = { "gradient reduction": "gradients", "parameter gather": "parameters", "copies to host": "to the host",
  "copies from host": "from the host", "pipeline transfers": "transfers", "pipeline transfers, second": "transfers, 2nd",
  "pipeline transfers, shapes": "shapes", "expert-parallel communication": "experts" };
const rowHeights = { ops: 20, compute: 13, stream: 11, thin: 5, gap: 9, inner: 1 };

class TimelineView {
  constructor(runs, { memory = null } = {}) {
    this.runs = runs;
    this.step = Math.max(...runs.map((r) => r.step));
    this.view = { t0: 0, t1: this.step };
    this.painter = new Painter();
    this.levels = new Map();
    this.expanded = new Set();
    this.show = { path: false, flows: true };
    this.selected = null;
    this.hover = null;
    this.listeners = [];
    this.frames = [];
    this.build();
    this.layout();
    if (memory) this.listeners.push(memory);
    new ResizeObserver(() => this.resize()).observe(this.body);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    this.recolour();
  }

  // ---- Parts

  build() {
    const tool = (text, keys, action, attributes = {}) =>
      h("button", { type: "button", title: keys, onclick: action, ...attributes }, text);
    this.pathButton = tool("Critical path", "c", () => this.toggle("path"), { "aria-pressed": "false" });
    this.flowButton = tool("Flows", "l", () => this.toggle("flows"), { "aria-pressed": "true" });
    this.searchBox = h("input", { type: "search", placeholder: "Find: F 3.1, mlp.fc1 ...", "aria-label": "Find an op or a kernel",
      onkeydown: (e) => e.key === "Enter" && this.find(this.searchBox.value, e.shiftKey ? -1 : 1) });
    this.found = h("span", { class: "dim", role: "status" });
    this.tools = h("div", { class: "tl-tools", role: "toolbar", "aria-label": "Timeline" },
      tool("−", "zoom out: s or -", () => this.zoom(2), { "aria-label": "Zoom out" }),
      tool("+", "zoom in: w or +", () => this.zoom(0.5), { "aria-label": "Zoom in" }),
      tool("Whole step", "0", () => this.look(0, this.step)),
      tool("All streams", "e", () => this.expandAll()),
      this.pathButton, this.flowButton, this.searchBox, this.found);
    this.overview = h("canvas", { class: "tl-overview", "aria-hidden": "true" });
    this.brush = h("div", { class: "tl-brush" });
    this.ruler = h("canvas", { class: "tl-ruler", "aria-hidden": "true" });
    this.gutter = h("div", { class: "tl-gutter" });
    this.canvas = h("canvas", { class: "tl-canvas" });
    this.inner = h("div", { class: "tl-inner" }, this.gutter, h("div", { class: "tl-sheet" }, this.canvas));
    this.body = h("div", { class: "tl-body", tabindex: "0", role: "application",
      "aria-label": "Timeline. Arrow keys move, w and s zoom, Enter selects, question mark lists all keys.",
      onkeydown: (e) => this.key(e), onscroll: () => this.invalidate() }, this.inner);
    this.detail = h("div", { class: "tl-detail", "aria-live": "polite" });
    this.tip = h("div", { class: "tip", role: "tooltip", hidden: true });
    document.body.append(this.tip);
    this.element = h("div", { class: "tl" }, this.tools,
      h("div", { class: "tl-top" }, h("div", { class: "tl-corner dim" }), h("div", { class: "tl-over" }, this.overview, this.brush, this.ruler)),
      this.body);
    this.pointer(this.canvas, (x, y) => this.click(x, y), (x, y, e) => this.move(x, y, e));
    this.overviewPointer();
  }

  toggle(what) {
    this.show[what] = !this.show[what];
    this.pathButton.setAttribute("aria-pressed", this.show.path);
    this.flowButton.setAttribute("aria-pressed", this.show.flows);
    this.invalidate();
  }

  expandAll() {
    const all = this.groups.every((g) => this.expanded.has(g.id));
    this.expanded = new Set(all ? [] : this.groups.map((g) => g.id));
    this.layout();
  }

  /// Rows from top to bottom; with two runs the same rank of both stands together.
  layout() {
    this.groups = [];
    this.rows = [];
    this.gutter.replaceChildren();
    const most = Math.max(...this.runs.map((r) => r.ranks.length));
    let y = 4;
    for (let rank = 0; rank < most; rank++)
      this.runs.forEach((run, which) => {
        if (!run.ranks[rank]?.streams.length) return;
        const group = { id: `${which}.${rank}`, run, which, rank, y, rows: [] };
        const add = (row) => {
          Object.assign(row, { group, run, rank, y });
          y += row.height + rowHeights.inner;
          group.rows.push(row);
          this.rows.push(row);
        };
        const { streams, compute, blocks } = run.ranks[rank];
        if (blocks.n || !run.json.traced) add({ type: "ops", height: rowHeights.ops, track: blocks, name: "ops" });
        if (compute) add({ type: "compute", height: rowHeights.compute, track: compute.track, stream: compute, name: "compute" });
        const open = this.expanded.has(group.id);
        for (const stream of streams) {
          if (stream === compute || stream.n === 0) continue;
          if (!open && stream.name === "host") continue;
          add({ type: "stream", height: open ? rowHeights.stream : rowHeights.thin, track: stream.track, stream, name: stream.name });
        }
        const label = this.runs.length > 1 ? `${run.title} ${rank}` : `rank ${rank}`;
        this.gutter.append(h("button", { type: "button", class: "tl-rank", style: `top:${group.y}px`, "aria-expanded": open ? "true" : "false",
          title: "streams of this rank", onclick: () => this.expand(group.id) }, (open ? "▾ " : "▸ ") + label));
        if (open) for (const row of group.rows.filter((r) => r.y > group.y)) this.gutter.append(h("span", { class: "tl-stream dim", style: `top:${row.y - 2}px` }, streamNames[row.name] ?? row.name));
        group.bottom = y;
        y += rowHeights.gap;
        this.groups.push(group);
      });
    this.height = y;
    this.inner.style.height = y + "px";
    this.resize();
  }

  expand(id) {
    if (!this.expanded.delete(id)) this.expanded.add(id);
    const index = this.groups.findIndex((g) => g.id === id);
    this.layout();
    this.gutter.querySelectorAll(".tl-rank")[index]?.focus();
  }

  levelsOf(run, track) {
    let levels = this.levels.get(track);
    if (!levels) this.levels.set(track, (levels = new Levels(track, run.step)));
    return levels;
  }

  resize() {
    this.ratio = Math.min(2, window.devicePixelRatio || 1);
    this.width = Math.max(50, this.canvas.parentElement.clientWidth);
    this.visible = Math.min(this.height, this.body.clientHeight || this.height);
    const set = (canvas, width, height) => {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
    };
    set(this.canvas, this.width, this.visible);
    this.base ??= h("canvas");
    set(this.base, this.width, this.visible);
    set(this.overview, this.width, 34);
    set(this.ruler, this.width, 22);
    this.painter.prepare(this.canvas.width);
    this.drawOverview();
    this.draw();
  }

  recolour() {
    this.colours = Uint32Array.from(kinds, (k) => pixel(colourOf(k)));
    this.css = Object.fromEntries(["sheet", "font", "ink", "dim", "line", "phase", "flow", "accent", "path", "cross", "range", "bad", "outside", "rest", "hole"].map((n) => [n, cssColour("--" + n)]));
    this.sheet = this.css.sheet;
    this.inks = kinds.map((k) => inkOn(colourOf(k)));
    this.background = pixel(this.sheet);
    this.drawOverview();
    this.invalidate();
  }

  // ---- View

  x(t) {
    return ((t - this.view.t0) / (this.view.t1 - this.view.t0)) * this.width;
  }
  t(x) {
    return this.view.t0 + (x / this.width) * (this.view.t1 - this.view.t0);
  }

  look(t0, t1) {
    const least = 200;  // ns
    let length = Math.min(this.step, Math.max(least, t1 - t0));
    const middle = (t0 + t1) / 2;
    t0 = Math.max(0, Math.min(this.step - length, t1 - t0 < least ? middle - length / 2 : t0));
    this.view = { t0, t1: t0 + length };
    this.invalidate();
  }
  zoom(factor, at = (this.view.t0 + this.view.t1) / 2) {
    this.look(at - (at - this.view.t0) * factor, at + (this.view.t1 - at) * factor);
  }
  pan(share) {
    const by = share * (this.view.t1 - this.view.t0);
    const t0 = Math.max(0, Math.min(this.step - (this.view.t1 - this.view.t0), this.view.t0 + by));
    this.look(t0, t0 + (this.view.t1 - this.view.t0));
  }
  /// Moves just so far that a stretch is seen, with room on both sides.
  reveal(from, to) {
    const length = this.view.t1 - this.view.t0;
    if (from >= this.view.t0 && to <= this.view.t1 && to - from > length / 200) return;
    const wanted = to - from > length / 200 && to - from < length ? length : Math.min(this.step, (to - from) * 12);
    this.look((from + to) / 2 - wanted / 2, (from + to) / 2 + wanted / 2);
  }

  /// Draws soon; `only` the marks over what is there, where nothing else has changed.
  invalidate(only = "all") {
    if (only !== "marks") this.stale = true;
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.stale) this.draw();
      else this.drawMarks();
    });
  }

  // ---- Drawing

  draw() {
    if (!this.background || !this.width) return;
    const began = performance.now();
    this.stale = false;
    const context = this.base.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.sheet;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.top = this.body.scrollTop;
    const r = this.ratio;
    for (const row of this.rows) {
      const y = row.y - this.top;
      if (y + row.height < 0 || y > this.visible) continue;
      this.painter.row(context, this.levelsOf(row.run, row.track), this.view, Math.round(y * r), Math.round(row.height * r), this.background, this.colours);
    }
    context.setTransform(r, 0, 0, r, 0, 0);
    this.edges(context);
    this.labels(context);
    this.phases(context);
    if (this.show.flows) this.flowLines(context);
    if (this.show.path) this.pathLines(context);
    for (const listener of this.listeners) listener.draw(this);
    this.drawMarks();
    this.frames.push(performance.now() - began);
    if (this.frames.length > 500) this.frames.shift();
  }

  /// What is hovered and selected, over the picture of the last frame.
  drawMarks() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.marks(context);
    this.drawRuler();
    for (const listener of this.listeners) listener.drawMarks(this);
  }

  shown(row) {
    const y = row.y - this.top;
    return y + row.height >= 0 && y <= this.visible;
  }

  /// Slices of a row that are at least so many pixels wide, if there are not too many in view.
  *wide(row, least) {
    const { track } = row, perPixel = (this.view.t1 - this.view.t0) / this.width;
    const first = Math.max(0, track.before(this.view.t0)), last = track.before(this.view.t1);
    if (last - first > 2.5 * this.width) return;
    for (let i = first; i <= last; i++) {
      const x = this.x(track.start[i]), width = track.length[i] / perPixel;
      if (width < least || x + width < 0) continue;
      yield [i, x, width];
    }
  }

  edges(context) {
    context.fillStyle = this.sheet;
    for (const row of this.rows) {
      if (!this.shown(row) || row.height < 8) continue;
      for (const [, x] of this.wide(row, 4)) if (x > 0) context.fillRect(x - 0.5, row.y - this.top, 1, row.height);
    }
  }

  labels(context) {
    context.textBaseline = "middle";
    for (const row of this.rows) {
      if (!this.shown(row) || row.height < 10) continue;
      const size = row.type === "ops" ? 11 : 10;
      context.font = `${size}px ${this.css.font}`;
      const letter = size * 0.56;
      for (const [i, x, width] of this.wide(row, row.type === "ops" ? 18 : 30)) {
        const left = Math.max(0, x) + 4, room = Math.min(this.width, x + width) - left - 3;
        let text = this.labelOf(row, i, room / letter);
        if (!text || room < letter) continue;
        const letters = Math.floor(room / letter);
        if (text.length > letters) {
          if (letters < 4) continue;
          text = text.slice(0, letters - 1) + "…";
        }
        context.fillStyle = this.inks[row.track.kind[i]];
        context.fillText(text, left, row.y - this.top + row.height / 2 + 0.5);
      }
    }
  }

  labelOf(row, i, letters) {
    if (row.type === "ops") {
      const op = row.track.op[i], whole = row.run.opName(row.rank, op);
      return whole.length <= letters ? whole : row.run.opLabel(row.rank, op);
    }
    const slice = row.track.ref ? row.track.ref[i] : i;
    if (row.type === "compute" && slice < 0) return causes[row.run.ranks[row.rank].waits.cause[-1 - slice]].id;
    if (row.stream.name === "host") return row.run.opName(row.rank, row.stream.op[slice]) || "host";
    return row.run.kernels[row.stream.what[slice]].name;
  }

  /// Where steady state and cool-down of each rank begin.
  phases(context) {
    context.lineWidth = 1;
    for (const group of this.groups) {
      const { steady_ns, cooldown_ns, end_ns } = group.run.ranks[group.rank].phases;
      if (group.y - this.top > this.visible || group.bottom < this.top) continue;
      const y = group.y - this.top - 3;
      for (const [from, to, shade] of [[0, steady_ns, 0.35], [steady_ns, cooldown_ns, 0.9], [cooldown_ns, end_ns, 0.35]]) {
        const x0 = Math.max(0, this.x(from)), x1 = Math.min(this.width, this.x(to));
        if (x1 <= x0) continue;
        context.globalAlpha = shade;
        context.fillStyle = this.css.phase;
        context.fillRect(x0, y, Math.max(1, x1 - x0 - 1), 2);
      }
      context.globalAlpha = 1;
    }
  }

  /// The row in which a stream is seen; where it is folded away, its rank's ops.
  rowOf(run, lane) {
    return this.rows.find((r) => r.run === run && r.stream === lane) ?? this.rows.find((r) => r.run === run && r.rank === lane.rank);
  }

  flowLines(context) {
    const most = 260;
    for (const run of this.runs) {
      const { flows } = run;
      let first = 0;
      for (let low = 0, high = flows.length; low < high; first = low) {
        const middle = (low + high) >> 1;
        if (flows[middle].sent < this.view.t0) low = middle + 1;
        else high = middle;
      }
      const chosen = this.selected?.flow;
      let last = first;
      while (last < flows.length && flows[last].sent < this.view.t1 && last - first <= most) last++;
      const many = last - first > most;
      context.lineWidth = 1;
      context.strokeStyle = this.css.flow;
      if (!many) for (let i = Math.max(0, first - 4); i < last; i++) if (flows[i] !== chosen) this.flowLine(context, run, flows[i]);
      if (chosen && this.selected.run === run) {
        context.lineWidth = 2.5;
        context.strokeStyle = this.css.accent;
        this.flowLine(context, run, chosen);
      }
    }
  }

  flowLine(context, run, flow) {
    const from = this.rowOf(run, flow.from), to = this.rowOf(run, flow.to);
    const x0 = this.x(flow.sent), x1 = this.x(flow.arrived);
    if (x1 < 0 || x0 > this.width) return;
    const y0 = from.y - this.top + from.height / 2, y1 = to.y - this.top + to.height / 2;
    const bend = Math.max(6, Math.min(60, (x1 - x0) / 2 + 6));
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 5, y1 - 2.5);
    context.lineTo(x1 - 5, y1 + 2.5);
    context.fillStyle = context.strokeStyle;
    context.fill();
  }

  pathLines(context) {
    context.strokeStyle = this.css.path;
    context.lineWidth = 2;
    for (const run of this.runs) {
      let before = null, lastX = -9;
      context.beginPath();
      for (const stay of run.path) {
        if (stay.to < this.view.t0 || stay.from > this.view.t1) {
          before = null;
          continue;
        }
        const group = this.groups.find((g) => g.run === run && g.rank === stay.rank);
        const y = group.y - this.top + rowHeights.ops - 2, x0 = Math.max(0, this.x(stay.from)), x1 = Math.min(this.width, this.x(stay.to));
        if (before !== null && (x0 - lastX > 0.5 || before !== y)) {
          context.moveTo(x0, before);
          context.lineTo(x0, y);
        }
        context.moveTo(x0, y);
        context.lineTo(Math.max(x1, x0 + 0.5), y);
        before = y;
        lastX = x0;
      }
      context.stroke();
    }
  }

  marks(context) {
    const s = this.selected;
    if (s) {
      const row = s.row && this.rows.includes(s.row) ? s.row : this.rows.find((r) => r.run === s.run && r.rank === s.rank && r.type === s.type && r.stream === s.stream);
      if (row) {
        const x0 = this.x(s.start), x1 = this.x(s.start + s.length);
        context.strokeStyle = this.css.ink;
        context.lineWidth = 2;
        context.strokeRect(Math.max(-4, x0 - 0.5), row.y - this.top - 1, Math.max(3, Math.min(this.width + 8, x1) - Math.max(-4, x0) + 1), row.height + 2);
      }
    }
    if (this.hover) {
      context.fillStyle = this.css.cross;
      context.fillRect(Math.round(this.hover.x), 0, 1, this.visible);
    }
    if (this.range) {
      context.fillStyle = this.css.range;
      const [a, b] = this.range;
      context.fillRect(Math.min(a, b), 0, Math.abs(b - a), this.visible);
    }
  }

  drawRuler() {
    const context = this.ruler.getContext("2d"), { t0, t1 } = this.view;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, 22);
    const step = roundStep(((t1 - t0) / this.width) * 90);
    const [unit, scale] = step >= 1e9 ? ["s", 1e9] : step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    context.font = `11px ${this.css.font}`;
    context.textBaseline = "middle";
    const digits = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
    for (let n = Math.ceil(t0 / step); n * step <= t1; n++) {
      const x = this.x(n * step);
      context.fillStyle = this.css.line;
      context.fillRect(x, 12, 1, 10);
      const text = (n * step / scale).toFixed(digits) + " " + unit, width = context.measureText(text).width;
      context.fillStyle = this.css.dim;
      context.fillText(text, Math.min(x + 4, this.width - width), 10);
    }
    if (this.hover) {
      const text = moment(this.t(this.hover.x)), width = context.measureText(text).width;
      const x = Math.max(2, Math.min(this.hover.x - width / 2, this.width - width - 6));
      context.fillStyle = this.css.ink;
      context.fillRect(x - 4, 2, width + 8, 16);
      context.fillStyle = this.sheet;
      context.fillText(text, x, 10.5);
    }
    const left = (t0 / this.step) * this.width, right = (t1 / this.step) * this.width;
    this.brush.style.left = left + "px";
    this.brush.style.width = Math.max(3, right - left) + "px";
    this.brush.hidden = t1 - t0 > 0.999 * this.step;
  }

  /// The whole step, every rank a line or two.
  drawOverview() {
    if (!this.width || !this.background) return;
    const context = this.overview.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.overview.width, this.overview.height);
    const rows = this.rows.filter((r) => r.type === "compute");
    rows.forEach((row, i) => {
      const y = Math.floor((i * this.overview.height) / rows.length), next = Math.floor(((i + 1) * this.overview.height) / rows.length);
      if (next > y) this.painter.row(context, this.levelsOf(row.run, row.track), { t0: 0, t1: this.step }, y, next - y, this.background, this.colours);
    });
  }
}
