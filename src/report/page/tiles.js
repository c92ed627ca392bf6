// ---- Level of detail. A track's slices are added up once in bins (about sixteen slices each), these in pairs, and so on:
// however many kernels a step has, a row costs about its width in pixels. Zoomed in beyond the finest bins, the slices
// themselves are drawn.

class Levels {
  constructor(track, step) {
    this.track = track;
    this.step = step;
    const present = new Uint8Array(kinds.length);
    for (let i = 0; i < track.n; i++) present[track.kind[i]] = 1;
    this.kinds = [];  // that occur, in the order in which they are stacked
    this.number = new Uint8Array(kinds.length);
    for (let k = 0; k < kinds.length; k++)
      if (present[k]) {
        this.number[k] = this.kinds.length;
        this.kinds.push(k);
      }
    const slicesPerBin = 16, most = 1 << 17;
    let bins = 64;
    while (bins < most && bins * slicesPerBin < track.n) bins *= 2;
    this.levels = [this.finest(bins)];
    while (bins > 64) {
      bins /= 2;
      this.levels.push(this.pairs(this.levels[this.levels.length - 1], bins));
    }
    for (const level of this.levels) level.one = this.only(level);
  }

  /// The one kind of a bin; -1: several; -2: nothing is there.
  only({ bins, shares }) {
    const K = this.kinds.length, one = new Int8Array(bins);
    for (let b = 0; b < bins; b++) {
      one[b] = -2;
      for (let k = 0; k < K; k++)
        if (shares[b * K + k] > 0.002) one[b] = one[b] === -2 && shares[b * K + k] > 0.99 ? k : -1;
    }
    return one;
  }

  finest(bins) {
    const { track, step } = this, K = this.kinds.length;
    const shares = new Float32Array(bins * K), scale = bins / step;
    for (let i = 0; i < track.n; i++) {
      const from = track.start[i] * scale, to = Math.min(bins, (track.start[i] + track.length[i]) * scale);
      const k = this.number[track.kind[i]];
      let b = Math.min(bins - 1, Math.floor(from));
      if (to <= b + 1) {
        shares[b * K + k] += to - from;
        continue;
      }
      shares[b * K + k] += b + 1 - from;
      for (b++; b + 1 <= to; b++) shares[b * K + k] += 1;
      if (b < bins) shares[b * K + k] += to - b;
    }
    return { bins, shares };
  }

  pairs(below, bins) {
    const K = this.kinds.length, shares = new Float32Array(bins * K);
    for (let b = 0; b < bins; b++)
      for (let k = 0; k < K; k++) shares[b * K + k] = (below.shares[2 * b * K + k] + below.shares[(2 * b + 1) * K + k]) / 2;
    return { bins, shares };
  }

  /// Columns between two times, into a Painter: the one kind of each (`whole`; -2: nothing), else the shares of each kind
  /// and how many slices touch it.
  read(t0, t1, width, out) {
    const perPixel = (t1 - t0) / width;
    out.whole.fill(-2, 0, width);
    out.count.fill(0, 0, width);
    const level = this.levels.findLast((l) => this.step / l.bins <= perPixel);
    if (level) this.fromBins(level, t0, perPixel, width, out);
    else this.fromSlices(t0, t1, perPixel, width, out);
  }

  fromBins({ bins, shares, one }, t0, perPixel, width, out) {
    const K = this.kinds.length, scale = bins / this.step;
    for (let x = 0; x < width; x++) {
      const from = Math.max(0, Math.floor((t0 + x * perPixel) * scale));
      const to = Math.min(bins, Math.max(from + 1, Math.floor((t0 + (x + 1) * perPixel) * scale)));
      if (from >= bins) break;
      let same = one[from];
      for (let b = from + 1; b < to; b++) if (one[b] !== same) same = -1;
      out.whole[x] = same;
      if (same !== -1) continue;
      for (let k = 0; k < K; k++) {
        let sum = 0;
        for (let b = from; b < to; b++) sum += shares[b * K + k];
        out.shares[x * K + k] = sum / (to - from);
      }
      out.count[x] = 255;
    }
  }

  fromSlices(t0, t1, perPixel, width, out) {
    const { track } = this, K = this.kinds.length;
    let i = Math.max(0, track.before(t0) - 1);
    const touch = (x) => {
      if (out.whole[x] !== -1) {
        out.whole[x] = -1;
        out.shares.fill(0, x * K, (x + 1) * K);
      }
      if (out.count[x] < 254) out.count[x]++;
    };
    for (; i < track.n && track.start[i] < t1; i++) {
      const from = (track.start[i] - t0) / perPixel, to = (track.start[i] + track.length[i] - t0) / perPixel;
      if (to <= 0) continue;
      const k = this.number[track.kind[i]];
      const first = Math.max(0, Math.floor(from)), last = Math.min(width - 1, Math.ceil(to) - 1);
      if (last < first) continue;
      touch(first);
      if (first === last) {
        out.shares[first * K + k] += Math.min(to, width) - Math.max(from, 0);
        continue;
      }
      touch(last);
      out.shares[first * K + k] += first + 1 - Math.max(from, 0);
      out.shares[last * K + k] += Math.min(to, width) - last;
      if (last > first + 1) out.whole.fill(k, first + 1, last);
    }
  }
}

/// Paints rows of pixels: a column of one kind in its colour, of two neighbours in a mixture, of many as a stack of shares.
class Painter {
  constructor() {
    this.width = 0;
  }

  prepare(width) {
    if (width === this.width) return;
    this.width = width;
    this.shares = new Float32Array(width * kinds.length);
    this.whole = new Int16Array(width);
    this.count = new Uint8Array(width);
    this.stacked = new Uint32Array(width);
    this.images = new Map();
  }

  row(context, levels, view, y, height, background, colours) {
    const width = this.width, K = levels.kinds.length;
    levels.read(view.t0, view.t1, width, this);
    let image = this.images.get(height);
    if (!image) {
      const data = context.createImageData(width, height);
      image = { data, pixels: new Uint32Array(data.data.buffer) };
      this.images.set(height, image);
    }
    const pixels = image.pixels, local = levels.kinds.map((k) => colours[k]);
    const stacked = this.stacked;
    let high = 0;
    for (let x = 0; x < width; x++) {
      if (this.whole[x] !== -1) {
        pixels[x] = this.whole[x] === -2 ? background : local[this.whole[x]];
        continue;
      }
      let used = 0, all = 0, most = 0, best = -1;
      for (let k = 0; k < K; k++) {
        const share = this.shares[x * K + k];
        if (share <= 0.004) continue;
        used++;
        all += share;
        if (share > most) {
          most = share;
          best = k;
        }
      }
      if (used === 0) pixels[x] = background;
      else if (used === 1 && all > 0.985) pixels[x] = local[best];
      else if (this.count[x] < 3) pixels[x] = this.mixed(x, K, local, background, all);
      else {
        pixels[x] = background;
        stacked[high++] = x;
      }
    }
    for (let line = 1; line < height; line++) pixels.copyWithin(line * width, 0, width);
    for (let i = 0; i < high; i++) this.stack(pixels, stacked[i], K, local, background, height);
    context.putImageData(image.data, 0, y);
  }

  mixed(x, K, local, background, all) {
    let r = 0, g = 0, b = 0;
    const rest = Math.max(0, 1 - all), scale = 1 / Math.max(1, all);
    const add = (colour, share) => {
      r += (colour & 255) * share;
      g += ((colour >> 8) & 255) * share;
      b += ((colour >> 16) & 255) * share;
    };
    for (let k = 0; k < K; k++) {
      const share = this.shares[x * K + k];
      if (share > 0) add(local[k], share * scale);
    }
    add(background, rest);
    return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
  }

  stack(pixels, x, K, local, background, height) {
    let line = height, exact = height;
    let all = 0;
    for (let k = 0; k < K; k++) all += this.shares[x * K + k];
    const scale = height / Math.max(1, all);
    for (let k = 0; k < K; k++) {
      exact -= this.shares[x * K + k] * scale;
      const to = Math.max(0, Math.round(exact));
      while (line > to) pixels[--line * this.width + x] = local[k];
    }
    while (line > 0) pixels[--line * this.width + x] = background;
  }
}
