// ---- The timeline under a hand: hover, selection, search, keys and pointers.

class Timeline extends TimelineView {
  // ---- Hover and selection

  rowAt(y) {
    y += this.top ?? 0;
    return this.rows.find((r) => y >= r.y - 1 && y < r.y + r.height + 1);
  }

  /// What a slice of a row is; null if there is nothing.
  sliceAt(row, t) {
    const slop = 2 * (this.view.t1 - this.view.t0) / this.width;
    let i = row.track.at(t);
    for (const d of [-slop / 2, slop / 2]) if (i < 0) i = row.track.at(t + d);
    return i < 0 ? null : this.slice(row, i);
  }

  slice(row, i) {
    const { track, run, rank, type, stream } = row;
    const of = { row, run, rank, type, stream, i, start: track.start[i], length: track.length[i] };
    if (type === "ops") return { ...of, kind: "op", op: track.op[i], title: run.opName(rank, track.op[i]) || "parameter gather" };
    const n = track.ref ? track.ref[i] : i;
    if (type === "compute" && n < 0) {
      const w = run.ranks[rank].waits, g = -1 - n;
      return { ...of, kind: "wait", wait: g, title: causes[w.cause[g]].name };
    }
    const kernel = run.kernels[stream.what[n]];
    return { ...of, kind: stream.name === "host" ? "host" : stream.spin ? "transfer" : "kernel", n, kernel, op: stream.op[n], title: kernel.name,
      start: stream.start[n], length: stream.length[n], flow: stream.spin ? run.flow(stream, n) : null };
  }

  move(x, y, event) {
    const row = this.rowAt(y);
    this.hover = { x, y };
    const slice = row ? this.sliceAt(row, this.t(x)) : null;
    if (slice) this.showTip(slice, event.clientX, event.clientY);
    else this.tip.hidden = true;
    this.invalidate("marks");
  }

  leave() {
    this.hover = null;
    this.tip.hidden = true;
    this.invalidate("marks");
  }

  showTip(slice, x, y) {
    this.tip.replaceChildren(h("b", {}, slice.title),
      ...shortFacts(slice).map(([name, value]) => h("div", {}, h("span", { class: "dim" }, name + " "), value)));
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    this.tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  }

  click(x, y) {
    const row = this.rowAt(y);
    this.select(row ? this.sliceAt(row, this.t(x)) : null);
  }

  select(slice, reveal = false) {
    this.selected = slice;
    this.detail.replaceChildren(...(slice ? facts(slice, this) : [hint()]));
    if (slice && reveal) {
      this.reveal(slice.start, slice.start + slice.length);
      const y = slice.row.y;
      if (y < this.body.scrollTop || y + 40 > this.body.scrollTop + this.visible) this.body.scrollTop = Math.max(0, y - this.visible / 3);
    }
    this.invalidate(slice?.flow || this.lastFlow ? "all" : "marks");
    this.lastFlow = slice?.flow;
  }

  /// Goes to a slice of a stream (lane from 1 as in the pack), unfolding its rank where that is needed.
  go(run, lane, n) {
    const stream = run.lanes[lane - 1];
    if (!this.rows.some((r) => r.run === run && r.stream === stream)) {
      this.expanded.add(`${this.runs.indexOf(run)}.${stream.rank}`);
      this.layout();
    }
    const row = this.rows.find((r) => r.run === run && r.stream === stream);
    const i = stream.place ? stream.place[n] : stream.spin ? 2 * n + 1 : n;
    this.select(this.slice(row, i), true);
  }

  /// The next match from where the selection, or the view, is.
  find(text, direction = 1) {
    text = text.trim();
    if (!text) return;
    const op = /^([FB])\s*(\d+)(?:\.(\d+))?$/i.exec(text);
    const hits = [];
    for (const row of this.rows) {
      if (op && row.type === "ops") {
        const { kind, mb, chunk } = row.run.ranks[row.rank].ops;
        const wanted = op[1].toUpperCase() === "F" ? opKinds.forward : opKinds.backward;
        for (let i = 0; i < row.track.n; i++) {
          const o = row.track.op[i];
          if (kind[o] === wanted && mb[o] === +op[2] && (op[3] === undefined || chunk[o] === +op[3])) hits.push([row.track.start[i], row, i]);
        }
      } else if (!op && row.stream) {
        const named = row.run.kernels.map((k) => k.name.toLowerCase().includes(text.toLowerCase()));
        for (let i = 0; i < row.track.n && hits.length < 200000; i++) {
          const n = row.track.ref ? row.track.ref[i] : i;
          if (n >= 0 && named[row.stream.what[n]] && !(row.stream.spin && i % 2 === 0)) hits.push([row.track.start[i], row, i]);
        }
      }
    }
    if (!hits.length) {
      this.found.textContent = "nothing found";
      return;
    }
    hits.sort((a, b) => a[0] - b[0]);
    const from = this.selected ? this.selected.start : this.view.t0 - 1;
    let next = direction > 0 ? hits.findIndex((hit) => hit[0] > from) : hits.findLastIndex((hit) => hit[0] < from);
    if (next < 0) next = direction > 0 ? 0 : hits.length - 1;
    this.found.textContent = `${next + 1} of ${hits.length}`;
    this.select(this.slice(hits[next][1], hits[next][2]), true);
  }

  // ---- Keys and pointers

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const s = this.selected;
    const actions = {
      w: () => this.zoom(0.6, this.focusTime()), "+": () => this.zoom(0.6, this.focusTime()), "=": () => this.zoom(0.6, this.focusTime()),
      s: () => this.zoom(1 / 0.6, this.focusTime()), "-": () => this.zoom(1 / 0.6, this.focusTime()),
      a: () => this.pan(-0.2), d: () => this.pan(0.2),
      0: () => this.look(0, this.step), Home: () => this.look(0, this.view.t1 - this.view.t0),
      End: () => this.look(this.step - (this.view.t1 - this.view.t0), this.step),
      ArrowLeft: () => (s ? this.step_(-1) : this.pan(-0.1)), ArrowRight: () => (s ? this.step_(1) : this.pan(0.1)),
      ArrowUp: () => this.rowStep(-1), ArrowDown: () => this.rowStep(1),
      Enter: () => (s ? this.reveal(s.start, s.start + s.length) : this.rowStep(0)), Escape: () => this.select(null),
      f: () => s && this.look(s.start - 2 * s.length, s.start + 3 * s.length),
      c: () => this.toggle("path"), l: () => this.toggle("flows"), e: () => this.expandAll(),
      "/": () => this.searchBox.focus(), "?": () => this.select(null),
    };
    const action = actions[e.key] ?? actions[e.key.toLowerCase()];
    if (!action) return;
    e.preventDefault();
    action();
  }

  focusTime() {
    const s = this.selected, middle = s && s.start + s.length / 2;
    return s && middle > this.view.t0 && middle < this.view.t1 ? middle : (this.view.t0 + this.view.t1) / 2;
  }

  step_(by) {
    const s = this.selected, row = this.rowFor(s);
    let i = s.i + by;
    // The two pieces of a transfer are one.
    if (row.track.ref) while (i >= 0 && i < row.track.n && row.track.ref[i] === row.track.ref[s.i]) i += by;
    if (i >= 0 && i < row.track.n) this.select(this.slice(row, i), true);
  }

  rowFor(s) {
    return this.rows.find((r) => r.run === s.run && r.rank === s.rank && r.type === s.type && r.stream === s.stream) ?? this.rows[0];
  }

  rowStep(by) {
    const s = this.selected, t = s ? s.start + Math.min(s.length, this.view.t1 - s.start) / 2 : this.focusTime();
    let n = s ? this.rows.indexOf(this.rowFor(s)) + by : 0;
    for (; n >= 0 && n < this.rows.length; n += by || 1) {
      const track = this.rows[n].track, i = Math.max(0, track.before(t));
      if (track.n) return this.select(this.slice(this.rows[n], i), true);
    }
  }

  /// Drags pan, two fingers zoom, the wheel zooms with Ctrl and pans with Shift; `click` and `move` get what is left.
  pointer(element, click, move) {
    const down = new Map();
    let moved = 0, apart = 0;
    const place = (e) => {
      const box = element.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    element.addEventListener("pointerdown", (e) => {
      if (e.button > 0) return;
      down.set(e.pointerId, e.clientX);
      moved = 0;
      if (e.shiftKey) this.range = [place(e)[0], place(e)[0]];
      element.setPointerCapture(e.pointerId);
      const xs = [...down.values()];
      if (xs.length === 2) apart = Math.abs(xs[0] - xs[1]);
      this.body.focus({ preventScroll: true });
    });
    element.addEventListener("pointermove", (e) => {
      const [x, y] = place(e);
      if (!down.has(e.pointerId)) return move(x, y, e);
      const by = e.clientX - down.get(e.pointerId);
      moved += Math.abs(by);
      down.set(e.pointerId, e.clientX);
      if (this.range) {
        this.range[1] = x;
        return this.invalidate();
      }
      if (down.size === 2) {
        const xs = [...down.values()], now = Math.abs(xs[0] - xs[1]), box = element.getBoundingClientRect();
        if (now > 10 && apart > 10) this.zoom(apart / now, this.t((xs[0] + xs[1]) / 2 - box.left));
        apart = now;
      } else if (moved > 3) {
        this.tip.hidden = true;
        this.pan(-by / this.width);
      }
    });
    const up = (e) => {
      if (!down.delete(e.pointerId)) return;
      if (this.range) {
        const [a, b] = this.range;
        this.range = null;
        if (Math.abs(a - b) > 3) return this.look(this.t(Math.min(a, b)), this.t(Math.max(a, b)));
      }
      if (moved <= 3 && e.type === "pointerup") click(...place(e), e);
    };
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("dblclick", (e) => this.zoom(0.25, this.t(place(e)[0])));
    element.addEventListener("wheel", (e) => {
      const [x] = place(e);
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        this.zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 100), this.t(x));
      } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        this.pan((e.deltaX || e.deltaY) / this.width);
      }
    }, { passive: false });
  }

  overviewPointer() {
    const over = this.overview.parentElement;
    let grabbed = false;
    const jump = (e) => {
      const box = over.getBoundingClientRect(), at = ((e.clientX - box.left) / box.width) * this.step;
      const length = this.view.t1 - this.view.t0;
      if (length < 0.999 * this.step) this.look(at - length / 2, at + length / 2);
      else this.look(at - this.step / 20, at + this.step / 20);
    };
    over.addEventListener("pointerdown", (e) => {
      grabbed = true;
      over.setPointerCapture(e.pointerId);
      jump(e);
    });
    over.addEventListener("pointermove", (e) => grabbed && jump(e));
    over.addEventListener("pointerup", () => (grabbed = false));
    over.addEventListener("pointercancel", () => (grabbed = false));
  }
}
