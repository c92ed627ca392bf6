// ---- Memory on the timeline's axis: who holds what, by the largest owners of all ranks; the segments at the peak.

class MemoryPanel {
  constructor(run, timeline, figures) {
    this.run = run;
    this.memory = run.memory;
    this.figures = figures;  // the ranks of the JSON
    this.timeline = timeline;
    this.rank = this.fullest();
    this.chosen = null;
    this.build();
    this.choose(this.rank);
  }

  /// The rank with the least to spare.
  fullest() {
    let best = 0, least = Infinity;
    this.figures.forEach((rank, r) => {
      const spare = this.run.json.limit_bytes - rank.peak_reserved_bytes - rank.outside_allocator_bytes;
      if (spare < least) [least, best] = [spare, r];
    });
    return best;
  }

  build() {
    this.ranks = h("div", { class: "chips", role: "radiogroup", "aria-label": "Rank whose memory is shown" },
      this.figures.map((rank, r) => h("button", { type: "button", role: "radio", "aria-checked": "false", onclick: () => this.choose(r),
        onkeydown: (e) => this.rankKey(e, r) },
        `rank ${rank.pp_rank}`, h("span", { class: "dim" }, " " + gib(rank.peak_reserved_bytes + rank.outside_allocator_bytes)))));
    this.canvas = h("canvas", { class: "memory-canvas", tabindex: "0", role: "img", "aria-label": "Memory over the step; Enter shows the peak, arrows move in time",
      onkeydown: (e) => this.key(e) });
    this.axis = h("canvas", { class: "memory-axis", "aria-hidden": "true" });
    this.legend = h("div", { class: "keys" });
    this.panel = h("div", { class: "memory-detail", "aria-live": "polite" });
    this.note = h("p", { class: "dim" });
    this.element = h("div", { class: "memory" }, this.ranks, h("div", { class: "tl-top" }, h("div", { class: "tl-corner" }, this.axis), h("div", { class: "memory-sheet" }, this.canvas)),
      this.legend, this.note, this.panel);
    this.timeline.pointer(this.canvas, (x) => this.pick(this.timeline.t(x)), (x, y, e) => this.move(x, e));
  }

  rankKey(e, r) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    const next = (r + by + this.figures.length) % this.figures.length;
    this.choose(next);
    this.ranks.children[next].focus();
  }

  key(e) {
    const data = this.memory.ranks[this.rank];
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (e.key === "Enter") this.showPeak();
    else if (by) this.show(Math.max(0, Math.min(data.at.length - 1, (this.chosen ?? data.peak) + by)));
    else return this.timeline.key(e);
    e.preventDefault();
  }

  choose(rank) {
    this.rank = rank;
    [...this.ranks.children].forEach((chip, r) => {
      chip.setAttribute("aria-checked", r === rank ? "true" : "false");
      chip.tabIndex = r === rank ? 0 : -1;
    });
    const data = this.memory.ranks[rank];
    this.most = Math.max(this.run.json.limit_bytes, ...data.reserved.map((b) => b + this.run.json.outside_bytes[rank])) * 1.02;
    this.colours = this.memory.owners.slice(0, this.memory.drawn).map((_, o) => ownerColours[o % ownerColours.length]);
    this.legend.replaceChildren(...this.memory.owners.slice(0, this.memory.drawn).map((name, o) => key(this.colours[o], name)),
      key("var(--rest)", "other owners"), key("var(--outside)", "outside the allocator"), key("var(--ink)", "reserved"), key("var(--bad)", "limit"));
    this.note.textContent = "Booked when the host runs the line, drawn where that line's kernels run." +
      (data.eager ? " These are the steps before the CUDA graphs are captured: they peak higher than replayed ones." : "");
    this.showPeak();
    this.timeline.invalidate();
  }

  showPeak() {
    this.show(this.memory.ranks[this.rank].peak);
  }

  sample(t) {
    const { at } = this.memory.ranks[this.rank];
    let low = 0, high = at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  /// The fullest sample within a pixel or two.
  near(t) {
    const { at, allocated } = this.memory.ranks[this.rank], slop = (3 * (this.timeline.view.t1 - this.timeline.view.t0)) / this.timeline.width;
    let best = this.sample(t);
    for (let i = best; i >= 0 && at[i] > t - slop; i--) if (allocated[i] > allocated[best]) best = i;
    for (let i = best; i < at.length && at[i] < t + slop; i++) if (allocated[i] > allocated[best]) best = i;
    return best;
  }

  pick(t) {
    this.show(this.near(t));
  }

  heldAt(data, i) {
    const held = data.held.map((values) => values[i]);
    return { held, other: data.allocated[i] - held.reduce((a, b) => a + b, 0) };
  }

  move(x, e) {
    const { timeline } = this, data = this.memory.ranks[this.rank], i = this.near(timeline.t(x));
    timeline.hover = { x, y: -99 };
    const { held, other } = this.heldAt(data, i);
    const rows = held.map((b, o) => [b, this.memory.owners[o]]).concat([[other, "other owners"]]).sort((a, b) => b[0] - a[0]).filter((r) => r[0] > 0).slice(0, 7);
    timeline.tip.replaceChildren(h("b", {}, `${gib(data.allocated[i])} GiB allocated, ${gib(data.reserved[i])} reserved`),
      h("div", { class: "dim" }, `rank ${this.rank} at ${moment(data.at[i])}`), ...rows.map(([b, name]) => h("div", {}, `${gib(b)} `, h("span", { class: "dim" }, name))));
    timeline.tip.hidden = false;
    const box = timeline.tip.getBoundingClientRect();
    timeline.tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - box.width - 8)) + "px";
    timeline.tip.style.top = Math.max(4, e.clientY - box.height - 12) + "px";
    timeline.invalidate("marks");
  }

  show(i) {
    const data = this.memory.ranks[this.rank], peak = i === data.peak;
    this.chosen = i;
    const rows = [];
    let rest = 0;
    if (peak) {
      for (const [owner, bytes] of [...data.peak_owners].sort((a, b) => b[1] - a[1])) rows.push([owner, bytes]);
    } else {
      const { held, other } = this.heldAt(data, i);
      held.forEach((bytes, owner) => bytes > 0 && rows.push([owner, bytes]));
      rows.sort((a, b) => b[1] - a[1]);
      rest = other;
    }
    const all = data.allocated[i];
    const cells = rows.map(([owner, bytes]) => [h("span", {}, h("i", { class: "swatch", style: `background:${owner < this.memory.drawn ? this.colours[owner] : "var(--rest)"}` }), this.memory.owners[owner]), gib(bytes), percent(bytes / all)]);
    if (rest > 0) cells.push(["other owners", gib(rest), percent(rest / all)]);
    this.panel.replaceChildren(
      h("h3", {}, `Rank ${this.rank}${peak ? " at its peak" : ""}, ${moment(data.at[i])}: ${gib(all)} GiB allocated, ${gib(data.reserved[i])} reserved`,
        peak ? null : h("button", { type: "button", onclick: () => this.showPeak() }, "Peak")),
      h("div", { class: "columns" }, this.owners(cells), peak ? this.segmentMap(data) : null));
    this.timeline.invalidate("marks");
  }

  /// The largest, and the rest folded away.
  owners(cells) {
    const most = 14, head = ["owner", "GiB", "share"];
    if (cells.length <= most + 2) return table(head, cells, { caption: "Who holds it" });
    const rest = cells.slice(most);
    return h("div", {}, table(head, cells.slice(0, most), { caption: "Who holds it" }),
      h("details", {}, h("summary", { class: "dim" }, `${rest.length} more`), table(head, rest, { caption: "The others" })));
  }

  // ---- The area

  draw(timeline) {
    const width = timeline.width, height = 190, ratio = timeline.ratio;
    for (const [canvas, w] of [[this.canvas, width], [this.axis, 60]]) {
      if (canvas.width === Math.round(w * ratio) && canvas.height === Math.round(height * ratio)) continue;
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = w + "px";
      canvas.style.height = height + "px";
    }
    const data = this.memory.ranks[this.rank], outside = this.run.json.outside_bytes[this.rank], { limit_bytes: limit } = this.run.json;
    const w = this.canvas.width, hgt = this.canvas.height;
    if (!this.image || this.image.width !== w || this.image.height !== hgt) this.image = this.canvas.getContext("2d").createImageData(w, hgt);
    const pixels = new Uint32Array(this.image.data.buffer), scale = hgt / this.most, held = data.held;
    const { css } = timeline, sheet = pixel(css.sheet), ink = pixel(css.ink), bad = pixel(css.bad);
    const layers = [pixel(css.outside), ...this.colours.map(pixel), pixel(css.rest)];
    const columns = this.columns(timeline, w, data);
    const limitLine = Math.round(hgt - limit * scale);
    let before = -1;
    for (let x = 0; x < w; x++) {
      const i = columns[x];
      let line = hgt, sum = outside;
      for (let l = 0; l < layers.length; l++) {
        if (l > 0) sum = l <= held.length ? sum + held[l - 1][i] : outside + data.allocated[i];
        for (const to = Math.max(0, Math.round(hgt - sum * scale)), colour = layers[l]; line > to; ) pixels[--line * w + x] = colour;
      }
      while (line > 0) pixels[--line * w + x] = sheet;
      const reserved = Math.max(0, Math.min(hgt - 2, Math.round(hgt - (outside + data.reserved[i]) * scale)));
      const [from, to] = before < 0 ? [reserved, reserved] : [Math.min(before, reserved), Math.max(before, reserved)];
      for (let y = from; y <= to + 1; y++) pixels[y * w + x] = ink;
      before = reserved;
      if (x % (10 * ratio) < 6 * ratio && limitLine >= 0) for (let y = limitLine; y < Math.min(hgt, limitLine + 2); y++) pixels[y * w + x] = bad;
    }
    this.drawAxis(ratio, (bytes) => height - (bytes / this.most) * height, height);
  }

  drawMarks(timeline) {
    const data = this.memory.ranks[this.rank], context = this.canvas.getContext("2d"), height = 190;
    if (!this.image) return;
    context.putImageData(this.image, 0, 0);
    context.setTransform(timeline.ratio, 0, 0, timeline.ratio, 0, 0);
    this.cursor(context, timeline, data, (bytes) => height - (bytes / this.most) * height, this.run.json.outside_bytes[this.rank], height);
  }

  /// Of each column the sample with the most allocated.
  columns(timeline, width, data) {
    const out = new Uint32Array(width);
    let i = this.sample(timeline.view.t0);
    for (let x = 0; x < width; x++) {
      const until = timeline.t(((x + 1) * timeline.width) / width);
      let best = i;
      while (i + 1 < data.at.length && data.at[i + 1] <= until) {
        i++;
        if (data.allocated[i] > data.allocated[best]) best = i;
      }
      out[x] = best;
    }
    return out;
  }

  cursor(context, timeline, data, y, outside, height) {
    const x = timeline.x(data.at[data.peak]);
    if (x >= -6 && x <= timeline.width + 6) {
      context.fillStyle = timeline.css.ink;
      context.beginPath();
      const top = y(outside + data.allocated[data.peak]);
      context.moveTo(x, top);
      context.lineTo(x - 5, top - 8);
      context.lineTo(x + 5, top - 8);
      context.fill();
    }
    if (this.chosen !== null && this.chosen !== data.peak) {
      context.fillStyle = timeline.css.accent;
      context.fillRect(timeline.x(data.at[this.chosen]) - 1, 0, 2, height);
    }
    if (timeline.hover) {
      context.fillStyle = timeline.css.cross;
      context.fillRect(Math.round(timeline.hover.x), 0, 1, height);
    }
  }

  drawAxis(ratio, y, height) {
    const context = this.axis.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, 60, height);
    context.font = `11px ${this.timeline.css.font}`;
    context.fillStyle = this.timeline.css.dim;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = roundBytes(this.most / 6);
    for (let bytes = 0; bytes <= this.most; bytes += step)
      context.fillText(step < GiB ? bytesText(bytes) : `${Math.round(bytes / GiB)} GiB`, 54, Math.max(7, Math.min(height - 7, y(bytes))));
  }

  // ---- Segments at the peak: the address space, line after line; holes are what is cached and cannot be given back.

  segmentMap(data) {
    if (!data.segments.length) return null;
    let all = 0, used = 0;
    for (const bytes of data.segments) all += bytes;
    for (let b = 0; b < data.block.length; b++) if (data.blockOwner[b] > 0) used += data.block[b];
    const canvas = h("canvas", { class: "segments", role: "img", "aria-label": `${data.segments.length} segments of the allocator, ${gib(all - used)} GiB of ${gib(all)} free` });
    const told = h("p", { class: "dim", "aria-live": "polite" }, "Point at a block to see whose it is; at a hole, what else lives in its segment.");
    const element = h("div", { class: "map" }, h("h4", {}, `The allocator's ${data.segments.length === 1 ? "segment" : `${data.segments.length} segments`}: ${gib(used)} of ${gib(all)} GiB in use`), canvas, told);
    const draw = () => this.drawSegments(canvas, data, all);
    new ResizeObserver(draw).observe(element);
    canvas.addEventListener("pointermove", (e) => {
      const box = canvas.getBoundingClientRect();
      told.textContent = this.blockAt(canvas, data, e.clientX - box.left, e.clientY - box.top);
    });
    return element;
  }

  drawSegments(canvas, data, all) {
    const width = Math.max(100, canvas.parentElement.clientWidth), lines = 24, line = 12, ratio = this.timeline.ratio;
    canvas.width = width * ratio;
    canvas.height = lines * line * ratio;
    canvas.style.width = width + "px";
    canvas.style.height = lines * line + "px";
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.timeline.css.sheet;
    context.fillRect(0, 0, width, lines * line);
    const perLine = all / lines;
    canvas.perLine = perLine;
    const bar = (from, bytes, colour) => {
      context.fillStyle = colour;
      for (let at = from; at < from + bytes - 1;) {
        const row = Math.min(lines - 1, Math.floor(at / perLine + 1e-9)), end = Math.min(from + bytes, (row + 1) * perLine);
        context.fillRect(((at - row * perLine) / perLine) * width, row * line, Math.max(0.4, ((end - at) / perLine) * width), line - 2);
        if (end <= at) break;
        at = end;
      }
    };
    const { hole, rest, ink } = this.timeline.css;
    let at = 0, b = 0;
    data.segments.forEach((bytes, s) => {
      bar(at, bytes, hole);
      let inside = at;
      for (let n = 0; n < data.segmentBlocks[s]; n++, b++) {
        const owner = data.blockOwner[b] - 1;
        if (owner >= 0) bar(inside, data.block[b], owner < this.memory.drawn ? this.colours[owner] : rest);
        inside += data.block[b];
      }
      const row = Math.min(lines - 1, Math.floor(at / perLine + 1e-9));
      context.fillStyle = ink;
      context.fillRect(((at - row * perLine) / perLine) * width, row * line, 1, line - 2);
      at += bytes;
    });
  }

  blockAt(canvas, data, x, y) {
    const width = canvas.clientWidth, address = Math.floor(y / 12) * canvas.perLine + (x / width) * canvas.perLine;
    let at = 0, b = 0;
    for (let s = 0; s < data.segments.length; s++) {
      if (address >= at + data.segments[s]) {
        at += data.segments[s];
        b += data.segmentBlocks[s];
        continue;
      }
      const first = b, owners = new Map();
      let inside = at, found = -1;
      for (let n = 0; n < data.segmentBlocks[s]; n++, b++) {
        if (address >= inside && address < inside + data.block[b]) found = b;
        inside += data.block[b];
        const owner = data.blockOwner[b] - 1;
        if (owner >= 0) owners.set(owner, (owners.get(owner) ?? 0) + data.block[b]);
      }
      void first;
      const kind = (data.segmentKind[s] & 2 ? "expandable segment" : data.segmentKind[s] & 1 ? "segment of small blocks" : "segment") + ` of ${bytesText(data.segments[s])}`;
      if (found < 0) return kind;
      const owner = data.blockOwner[found] - 1;
      if (owner >= 0) return `${this.memory.owners[owner]}: ${bytesText(data.block[found])}, in a ${kind}`;
      const pins = [...owners].sort((a, c) => c[1] - a[1]).slice(0, 3).map(([o, bytes]) => `${this.memory.owners[o]} ${bytesText(bytes)}`);
      return `free: ${bytesText(data.block[found])} in a ${kind}` + (pins.length && !(data.segmentKind[s] & 2) ? `, pinned by ${pins.join(", ")}` : "");
    }
    return "";
  }
}
