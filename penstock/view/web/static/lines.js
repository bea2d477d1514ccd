// Lines, spans and ticks over one shared axis: an episode's time, or the steps of a run. A line holds the smallest and
// largest value of each pixel column, as the server sends them; all plots of a page share one Axis: the same range, the
// same cursor.
export class Axis {
  // least: the shortest range, in the axis's unit.
  constructor(first, last, least = 10) {
    Object.assign(this, { first, last, least, from: first, to: last, at: first, brush: null, plots: [], moved: [], ranged: [] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      colours = null;
      this.draw(true);
    });
  }

  seek(at, why = "seek") {
    this.at = Math.max(this.first, Math.min(this.last, Math.round(at)));
    for (const hear of this.moved) hear(this.at, why);
    this.draw();
  }

  range(from, to) {
    const length = this.last - this.first, least = Math.min(length, Math.max(this.least, length * 1e-6));
    const width = Math.max(least, Math.min(length, to - from));
    this.from = Math.max(this.first, Math.min(this.last - width, from));
    this.to = this.from + width;
    for (const hear of this.ranged) hear();
    this.draw(true);
  }

  whole() {
    this.range(this.first, this.last);
  }

  // Moves the end. A cursor or a range that ended there moves along.
  grow(last) {
    const isAtEnd = this.at === this.last, isWhole = this.from === this.first && this.to === this.last;
    this.last = last;
    if (isWhole) this.whole();
    this.seek(isAtEnd ? last : this.at);
  }

  zoom(factor) {
    const width = (this.to - this.from) * factor;
    const share = Math.max(0, Math.min(1, (this.at - this.from) / (this.to - this.from)));
    this.range(this.at - share * width, this.at + (1 - share) * width);
  }

  draw(layers = false) {
    this.stale ||= layers;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      const all = this.stale;
      this.asked = this.stale = false;
      for (const plot of this.plots) plot.draw(all);
    });
  }
}

const TOKENS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "line", "text", "quiet", "odd", "bad", "ground", "link"];
let colours = null;

// The colours of the tokens, in the theme of now.
function palette() {
  if (colours) return colours;
  const probe = document.createElement("i");
  document.body.append(probe);
  colours = Object.fromEntries(TOKENS.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  return colours;
}

const category = (tokens, number) => tokens[`c${(number % 8) + 1}`];

// A step of the grid, of which 2 to 12 lie in the range.
function gridStep(range, most, whole) {
  const least = range / Math.max(2, most), ten = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= least);
  return whole ? Math.max(1, Math.round(step)) : step;
}

// Series of fewer values have a dot at each.
const FEW = 60;

// A value in a few characters.
export function number(value) {
  if (!Number.isFinite(value) || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || (size && size < 1e-3) ? value.toExponential(2) : value.toFixed(3);
}

export class Plot {
  // series: [{x, low, high, colour, alpha, width, dashed, dots, joined, hidden, range}]; spans: [{from, to, text, colour}];
  // ticks: [{from, to, top, tall, colour, alpha, tone}]; ruler: position -> text; pick: (position, share of the height);
  // scale: the values at the bottom and the top, else those of the series; hover: the cursor follows the pointer.
  constructor(canvas, axis, options) {
    const usual = { series: [], spans: [], ticks: [], ruler: null, unit: "", whole: false, pick: null, scale: null, hover: false };
    Object.assign(this, { canvas, axis, normalised: false }, usual, options);
    axis.plots.push(this);
    this.hearPointer();
    new ResizeObserver(() => this.draw(true)).observe(canvas);
  }

  hearPointer() {
    const { canvas, axis } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [axis.from + ((event.clientX - box.left) / box.width) * (axis.to - axis.from), (event.clientY - box.top) / box.height];
    };
    const zooms = (event) => this.hover || event.shiftKey;
    const isDrag = (event) => Math.abs(event.clientX - down.x) > 4;
    let down = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      down = { at: place(event)[0], x: event.clientX };
      canvas.setPointerCapture(event.pointerId);
      if (!zooms(event)) axis.seek(down.at);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = place(event)[0];
      axis.brush = down !== null && zooms(event) && isDrag(event) ? [Math.min(at, down.at), Math.max(at, down.at)] : null;
      if (axis.brush) axis.draw();
      else if (down !== null || this.hover) axis.seek(at);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (down === null) return;
      if (axis.brush) axis.range(...axis.brush);
      else if (!isDrag(event)) this.pick?.(...place(event));
      down = axis.brush = null;
    });
    canvas.addEventListener("pointercancel", () => { down = axis.brush = null; });
    canvas.addEventListener("dblclick", () => axis.whole());
  }

  px(at, width) {
    return ((at - this.axis.from) / (this.axis.to - this.axis.from)) * width;
  }

  draw(layers) {
    const box = this.canvas.getBoundingClientRect(), scale = devicePixelRatio || 1;
    const width = Math.round(box.width * scale), height = Math.round(box.height * scale);
    if (!width || !height) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    if (layers || !this.layer || this.layer.width !== width || this.layer.height !== height) {
      this.layer = new OffscreenCanvas(width, height);
      this.colours = palette();
      this.drawLayer(this.layer.getContext("2d"), width, height, scale);
    }
    const c = this.canvas.getContext("2d"), x = Math.round(this.px(this.axis.at, width)) + 0.5;
    c.clearRect(0, 0, width, height);
    c.drawImage(this.layer, 0, 0);
    c.strokeStyle = c.fillStyle = this.colours.link;
    if (this.axis.brush) {
      const [from, to] = this.axis.brush.map((at) => this.px(at, width));
      c.globalAlpha = 0.15;
      c.fillRect(from, 0, to - from, height);
      c.globalAlpha = 1;
    }
    c.lineWidth = scale;
    c.beginPath();
    c.moveTo(x, 0);
    c.lineTo(x, height);
    c.stroke();
    if (!this.ruler) return;
    c.beginPath();
    c.moveTo(x - 5 * scale, height - 9 * scale);
    c.lineTo(x + 5 * scale, height - 9 * scale);
    c.lineTo(x, height);
    c.fill();
  }

  drawLayer(c, width, height, scale) {
    c.font = `${11 * scale}px system-ui, sans-serif`;
    c.textBaseline = "middle";
    c.lineJoin = "round";
    this.drawGrid(c, width, height, scale);
    for (const span of this.spans) this.drawSpan(c, span, width, height, scale);
    this.drawSeries(c, width, height, scale);
    for (const tick of this.ticks) {
      const from = this.px(tick.from, width), to = this.px(tick.to, width);
      if (to < 0 || from > width) continue;
      c.globalAlpha = tick.alpha ?? 1;
      c.fillStyle = tick.tone ? this.colours[tick.tone] : category(this.colours, tick.colour ?? 0);
      c.fillRect(Math.round(from), tick.top * height, Math.max(2 * scale, to - from), Math.max(scale, tick.tall * height));
    }
    c.globalAlpha = 1;
  }

  drawGrid(c, width, height, scale) {
    const { from, to } = this.axis, step = gridStep(to - from, width / scale / 90, this.whole);
    c.lineWidth = scale;
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = Math.round(this.px(at, width)) + 0.5;
      c.strokeStyle = this.colours.line;
      c.beginPath();
      c.moveTo(x, this.ruler ? height - 7 * scale : 0);
      c.lineTo(x, height);
      c.stroke();
      c.fillStyle = this.colours.quiet;
      if (this.ruler) c.fillText(this.ruler(at), x + 4 * scale, height / 2 - scale);
    }
  }

  drawSpan(c, span, width, height, scale) {
    const from = this.px(span.from, width), to = this.px(span.to, width);
    if (to < 0 || from > width) return;
    const wide = Math.max(2 * scale, to - from - 2);
    c.fillStyle = category(this.colours, span.colour);
    c.globalAlpha = 0.2;
    c.fillRect(from + 1, 3 * scale, wide, height - 6 * scale);
    c.globalAlpha = 1;
    c.fillRect(from + 1, 3 * scale, 3 * scale, height - 6 * scale);
    c.save();
    c.beginPath();
    c.rect(from, 0, Math.max(0, to - from - 4), height);
    c.clip();
    c.fillStyle = this.colours.text;
    c.fillText(span.text, Math.max(from, 0) + 9 * scale, height / 2);
    c.restore();
  }

  drawSeries(c, width, height, scale) {
    const shown = this.series.filter((one) => !one.hidden && one.x?.length);
    if (!shown.length) return;
    const [least, most] = this.scale ?? this.extents(shown);
    if (!(least <= most)) return; // no finite value
    for (const one of shown) {
      const [low, high] = this.normalised ? one.range : [0, 1], own = this.normalised && high > low ? high - low : 1;
      const y = (value) => height - ((this.normalised ? (value - low) / own : value) - least) / (most - least) * height;
      c.strokeStyle = category(this.colours, one.colour);
      c.globalAlpha = one.alpha ?? 1;
      c.lineWidth = (one.width ?? 1.5) * scale;
      c.setLineDash(one.dashed ? [3 * scale, 3 * scale] : []);
      this.stroke(c, one, width, y);
      if (one.dots && one.x.length < FEW) this.dots(c, one, width, y, scale);
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
    if (this.normalised) return;
    for (const share of [this.ticks.length ? 0.16 : 0.08, 0.92]) { // above the ticks at the foot
      const value = least + (most - least) * share, text = `${Number(value.toPrecision(3))}${this.unit && ` ${this.unit}`}`;
      const y = height - share * height;
      c.fillStyle = this.colours.ground;
      c.globalAlpha = 0.8;
      c.fillRect(2 * scale, y - 8 * scale, c.measureText(text).width + 5 * scale, 16 * scale);
      c.globalAlpha = 1;
      c.fillStyle = this.colours.quiet;
      c.fillText(text, 4 * scale, y);
    }
  }

  // The values that the height shows: those of all series, with some room.
  extents(shown) {
    const ends = this.normalised ? [[0, 1]] : shown.map(extent);
    const least = Math.min(...ends.map(([low]) => low)), most = Math.max(...ends.map(([, high]) => high));
    const room = (most - least || 1) * 0.08;
    return [least - room, most + room];
  }

  // Few values: a line alone would hide where they are, and one value has no line.
  dots(c, { x, low }, width, y, scale) {
    c.fillStyle = c.strokeStyle;
    x.forEach((at, i) => c.fillRect(this.px(at, width) - 1.5 * scale, y(low[i]) - 1.5 * scale, 3 * scale, 3 * scale));
  }

  stroke(c, { x, low, high, joined }, width, y) {
    let pen = false;
    const go = (px, value) => {
      if (Number.isNaN(value)) { pen = false; return; }
      if (pen) c.lineTo(px, y(value));
      else c.moveTo(px, y(value));
      pen = true;
    };
    const gap = joined ? Infinity : (5 * (x.at(-1) - x[0])) / (x.length - 1); // no line over a gap of the clock
    c.beginPath();
    for (let i = 0; i < x.length; i++) {
      const px = this.px(x[i], width);
      if (x[i] - x[i - 1] > gap) pen = false;
      go(px, low[i]);
      if (high !== low) go(px, high[i]);
    }
    c.stroke();
  }
}

// The smallest and the largest value of a series.
export function extent({ low, high }) {
  let least = Infinity, most = -Infinity;
  for (const value of low) if (value < least) least = value;
  for (const value of high) if (value > most) most = value;
  return [least, most];
}

// A lane's columns, as the server sends them: {x, low, high}, by dimension, and how much of the stream it has read.
export function columns(buffer) {
  const [n, dims, exact, percent] = new Uint32Array(buffer, 0, 4), x = new Float64Array(buffer, 16, n);
  const row = (block, dim) => new Float32Array(buffer, 16 + 8 * n + 4 * n * (block * dims + dim), n);
  const read = Array.from({ length: dims }, (_, dim) => {
    const low = row(0, dim);
    return { x, low, high: exact ? low : row(1, dim) };
  });
  return { read, percent };
}
