// The newest frame of a stream, or a recorded one: image, line or waterfall, with the values that were sent.
//
// The server sends elements in their own type, so that every figure here is computed from true values: the
// colours, the histogram, the profiles and the value under the pointer.

import { ago, bytes, css, facts, h, hertz, number, put, setText, streamName, unit } from "./dom.js";

// The watch of a live stream, and that of a recorded frame, which the server uses too.
const LIVE_WATCH = 1;
export const RECORDED_WATCH = 900;

const ARRAYS = { u8: Uint8Array, i8: Int8Array, u16: Uint16Array, i16: Int16Array, u32: Uint32Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
const LEVELS = 4096, SAMPLE = 32768, BINS = 96, WATERFALL = 240, GOLDEN = (Math.sqrt(5) - 1) / 2;

// Colours as a few points, between which they are interpolated.
const MAPS = {
  grey: [[0, 0, 0], [255, 255, 255]],
  viridis: [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]],
  magma: [[0, 0, 4], [28, 16, 68], [79, 18, 123], [129, 37, 129], [181, 54, 122], [229, 80, 100], [251, 135, 97], [254, 194, 135], [252, 253, 191]],
  turbo: [[48, 18, 59], [70, 107, 227], [40, 187, 236], [50, 242, 152], [164, 252, 60], [238, 207, 58], [251, 126, 33], [209, 47, 5], [122, 4, 3]],
  "blue-red": [[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]],
};
const NOT_A_NUMBER = 0xffb000ff >>> 0, TOO_LOW = 0xffff9030 >>> 0, TOO_HIGH = 0xff2040ff >>> 0; // ABGR: magenta, blue, red

const palettes = new Map();
function palette(name) {
  if (!palettes.has(name)) {
    const points = MAPS[name], colours = new Uint32Array(256);
    for (let i = 0; i < 256; i += 1) {
      const at = (i / 255) * (points.length - 1), k = Math.min(Math.floor(at), points.length - 2), part = at - k;
      const [r, g, b] = [0, 1, 2].map((c) => Math.round(points[k][c] + (points[k + 1][c] - points[k][c]) * part));
      colours[i] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    }
    palettes.set(name, colours);
  }
  return palettes.get(name);
}

// The position in a palette for LEVELS steps of a value between the ends of the scale.
function curve(isLog) {
  const steps = new Uint8Array(LEVELS);
  for (let i = 0; i < LEVELS; i += 1) { const part = i / (LEVELS - 1); steps[i] = Math.round(255 * (isLog ? Math.log1p(999 * part) / Math.log(1000) : part)); }
  return steps;
}
const CURVES = { linear: curve(false), log: curve(true) };

export function decode({ header, buffer, offset }) {
  const Type = ARRAYS[header.elements];
  return { header, elements: Type ? new Type(buffer, offset) : null };
}

// Extremes and counts are of all elements: one hot pixel is seen. Percentiles are of a sample; its places follow the
// golden ratio, since a fixed step could fall on the same few columns of each row.
export function statistics(elements) {
  const { length } = elements, size = Math.min(length, SAMPLE), values = new Float64Array(size);
  let count = 0, low = 0, high = 0, nan = 0, min = Infinity, max = -Infinity, used = 0;
  for (let i = 0; i < length; i += 1) {
    const value = elements[i];
    if (value !== value) nan += 1; else if (value === Infinity) high += 1; else if (value === -Infinity) low += 1;
    else { count += 1; if (value < min) min = value; if (value > max) max = value; }
  }
  for (let k = 0; k < size; k += 1) {
    const value = elements[size === length ? k : Math.floor(((k * GOLDEN) % 1) * length)];
    if (Number.isFinite(value)) { values[used] = value; used += 1; }
  }
  if (!count) min = max = 0;
  const sorted = values.subarray(0, used).sort();
  const at = (part) => (used ? sorted[Math.min(used - 1, Math.floor(part * (used - 1) + .5))] : min);
  return { sorted, min, max, p1: at(.01), p99: at(.99), p01: at(.001), p999: at(.999), median: at(.5), nan, low, high, count };
}

function paint(frame, pixels, { low, high, isLog, map }) {
  const { elements, header } = frame, { channels } = header, colours = palette(map), steps = CURVES[isLog ? "log" : "linear"];
  const scale = high > low ? (LEVELS - 1) / (high - low) : 0, size = header.rows * header.columns;
  if (channels === 1) {
    const isSmall = header.elements === "u8" || header.elements === "u16";
    if (isSmall) {
      const table = new Uint32Array(header.elements === "u8" ? 256 : 65536);
      for (let v = 0; v < table.length; v += 1) { const at = (v - low) * scale; table[v] = colours[steps[at <= 0 ? 0 : at >= LEVELS - 1 ? LEVELS - 1 : at | 0]]; }
      for (let i = 0; i < size; i += 1) pixels[i] = table[elements[i]];
      return;
    }
    for (let i = 0; i < size; i += 1) {
      const v = elements[i];
      if (v !== v) { pixels[i] = NOT_A_NUMBER; continue; }
      if (v === Infinity) { pixels[i] = TOO_HIGH; continue; }
      if (v === -Infinity) { pixels[i] = TOO_LOW; continue; }
      const at = (v - low) * scale;
      pixels[i] = colours[steps[at <= 0 ? 0 : at >= LEVELS - 1 ? LEVELS - 1 : at | 0]];
    }
    return;
  }
  const level = (v) => { const at = (v - low) * scale; return steps[at <= 0 || at !== at ? 0 : at >= LEVELS - 1 ? LEVELS - 1 : at | 0]; };
  for (let i = 0, k = 0; i < size; i += 1, k += channels) pixels[i] = (255 << 24 | level(elements[k + 2]) << 16 | level(elements[k + 1]) << 8 | level(elements[k])) >>> 0;
}

export class FrameViewer {
  constructor(app, { recorded = false } = {}) {
    this.app = app;
    this.recorded = recorded;
    this.watch = recorded ? RECORDED_WATCH : LIVE_WATCH;
    this.stream = null;
    this.frame = null;
    this.zoom = null;
    this.pointer = null;
    this.pinned = null;
    this.options = { map: "grey", scale: "percentile", isLog: false, bayer: "", axes: null, index: [] };
    this.drawn = [];
    this.ages = [];
    this.lines = [];
    this.paused = false;
    this.build();
    if (!recorded) {
      app.connection.addEventListener("frame", (event) => { if (event.detail.header.watch === this.watch) this.onFrame(event.detail); });
      app.connection.addEventListener("error", (event) => { if (event.detail.about === "watch" && event.detail.watch === this.watch) this.refuse(event.detail.error); });
    }
    new ResizeObserver(() => { this.resize(); this.draw(); this.requestSoon(); }).observe(this.stage);
  }

  build() {
    const select = (label, options, value, change) => {
      const element = h("select", { onchange: () => { change(element.value); this.optionsChanged(); } }, options.map(([v, text]) => h("option", { value: v }, text)));
      element.value = value;
      return [h("label", {}, label, element), element];
    };
    this.pick = h("select", { "aria-label": "The stream whose frames are shown", onchange: () => { location.hash = `#/frame/${this.pick.value}`; } });
    const [map] = select("colours", Object.keys(MAPS).map((m) => [m, m]), "grey", (v) => { this.options.map = v; });
    const [scale] = this.scale = select("scale", [["percentile", "1 to 99 %"], ["wide", "0.1 to 99.9 %"], ["minmax", "least to greatest"], ["type", "range of the type"]], "percentile", (v) => { this.options.scale = v; });
    const [bayer, bayerSelect] = select("Bayer", [["", "no"], ["rggb", "RGGB"], ["bggr", "BGGR"], ["grbg", "GRBG"], ["gbrg", "GBRG"]], "", (v) => { this.options.bayer = v; });
    this.bayerSelect = bayerSelect;
    const toggle = (text, change) => { const b = h("button", { type: "button", "aria-pressed": "false", onclick: () => { const on = b.getAttribute("aria-pressed") !== "true"; b.setAttribute("aria-pressed", String(on)); change(on); this.optionsChanged(); } }, text); return b; };
    const log = toggle("log", (on) => { this.options.isLog = on; });
    const pause = toggle("pause", (on) => { this.paused = on; if (on) this.onHidden(); else this.request(); });
    const fit = h("button", { type: "button", onclick: () => { this.zoom = null; this.optionsChanged(); } }, "fit");
    this.planes = h("span", { class: "planes" });
    this.canvas = h("canvas", { class: "shown", tabindex: "0", role: "img", "aria-label": "No frame yet" });
    this.over = h("div", { class: "over mono", hidden: true });
    this.stale = h("div", { class: "stale chip warn", role: "status", hidden: true });
    this.message = h("div", { class: "message" }, "Choose a stream.");
    this.stage = h("div", { class: "stage" }, this.canvas, this.over, this.stale, this.message);
    this.facts = h("div", { class: "panel" });
    this.histogram = h("canvas", { role: "img", "aria-label": "Histogram" });
    this.histogramText = h("div", { class: "muted" });
    this.rowProfile = h("canvas", { role: "img", "aria-label": "Profile along the row" });
    this.columnProfile = h("canvas", { role: "img", "aria-label": "Profile along the column" });
    const side = h("div", { class: "side" }, this.facts, h("div", { class: "panel" }, h("h2", { class: "label" }, "Histogram"), this.histogram, this.histogramText),
      this.profiles = h("div", { class: "panel" }, h("h2", { class: "label" }, "Profiles"), this.hint = h("p", { class: "muted" }, "Point at the image, or use the arrow keys; a click keeps the crosshair."), this.rowProfile, this.columnProfile));
    this.element = h("div", { class: "viewer" }, h("div", { class: "tools" }, this.recorded ? null : this.pick, map, scale, log, bayer, this.planes, fit, this.recorded ? null : pause), this.stage, side);
    this.canvas.addEventListener("pointermove", (event) => this.onPointer(event));
    this.canvas.addEventListener("pointerleave", () => { this.pointer = null; this.showPointer(); this.draw(); });
    this.touches = new Map();
    this.canvas.addEventListener("pointerdown", (event) => { this.touches.set(event.pointerId, event); this.drag = this.touches.size > 1 ? null : { x: event.clientX, y: event.clientY, zoom: this.zoom, moved: false }; this.canvas.setPointerCapture(event.pointerId); if (this.drag) this.onPointer(event); });
    this.canvas.addEventListener("pointerup", () => { if (this.drag && !this.drag.moved) { this.pinned = this.pinned ? null : this.pointer; this.draw(); } this.drag = null; });
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, (event) => { this.touches.delete(event.pointerId); });
    this.canvas.addEventListener("dblclick", () => { this.zoom = null; this.pinned = null; this.optionsChanged(); });
    this.canvas.addEventListener("wheel", (event) => { event.preventDefault(); const box = this.canvas.getBoundingClientRect(); this.zoomAt(event.clientX - box.left, event.clientY - box.top, event.deltaY < 0 ? .8 : 1.25); }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  // --- what is asked for

  onShown(stream) {
    const keys = Object.keys(this.app.connection.document.streams);
    const next = stream || (this.stream !== null ? String(this.stream) : keys[0]);
    if (next !== undefined && Number(next) !== this.stream) {
      this.stream = Number(next);
      this.reset();
    }
    this.request();
  }

  reset() {
    this.refused = null;
    this.frame = null; this.zoom = null; this.pinned = null; this.stats = null; this.lines = []; this.drawn = []; this.ages = [];
    Object.assign(this.options, { axes: null, index: [], bayer: "" });
    this.bayerSelect.value = "";
    put(this.planes); this.planeKey = "";
    setText(this.message, "Waiting for a frame.");
    this.message.hidden = false;
    this.draw();
  }

  onHidden() { this.app.connection.send({ type: "unwatch", watch: this.watch }); }
  onConnected() { this.request(); }

  view() {
    const ratio = devicePixelRatio || 1, view = { max_rows: Math.min(4096, Math.max(16, Math.round(this.stage.clientHeight * ratio))), max_columns: Math.min(4096, Math.max(16, Math.round(this.stage.clientWidth * ratio))), bayer: this.options.bayer, index: this.options.index };
    if (this.zoom) {
      const { left, top, width, height } = this.zoom, frame = this.frame && this.frame.header;
      const clamp = (v, limit) => Math.max(0, Math.min(Math.round(v), limit));
      if (frame) {
        view.left = clamp(Math.floor(left), frame.width - 1); view.top = clamp(Math.floor(top), Math.max(0, frame.height - 1));
        view.width = Math.max(1, clamp(Math.ceil(left + width) + 1, frame.width) - view.left); view.height = Math.max(1, clamp(Math.ceil(top + height) + 1, frame.height) - view.top);
      }
    }
    const { axes } = this.options;
    if (axes) Object.assign(view, { rows_axis: axes[0] ?? -1, columns_axis: axes[1], channels_axis: axes[2] ?? -1 });
    return view;
  }

  request() {
    if (this.recorded) { if (this.onView) this.onView(this.view()); return; }
    if (this.stream === null || !this.element.isConnected || this.paused) return;
    this.app.connection.send({ type: "watch", watch: this.watch, stream: this.stream, hz: 30, view: this.view() });
  }

  requestSoon() { clearTimeout(this.timer); this.timer = setTimeout(() => this.request(), 60); }
  optionsChanged() { this.stats = null; this.lines = []; this.draw(); this.requestSoon(); }

  // The console cannot show the stream now, as when it shows as many as it may; the next update tries again.
  refuse(why) {
    this.refused = why;
    this.frame = null;
    setText(this.message, why);
    this.message.hidden = false;
    this.draw();
  }

  // --- what arrives

  onFrame(message) {
    const frame = decode(message);
    if (!this.recorded && frame.header.stream !== this.stream) return;
    this.refused = null;
    if (this.paused) { this.app.connection.send({ type: "drawn", watch: this.watch }); return; }
    requestAnimationFrame(() => {
      this.frame = frame;
      this.show();
      if (!this.recorded) this.app.connection.send({ type: "drawn", watch: this.watch });
    });
  }

  show() {
    const { header, elements } = this.frame, now = performance.now();
    if (!elements) {
      setText(this.message, header.why || "This frame cannot be shown.");
      this.message.hidden = false;
      this.image = null;
      this.showFacts(); this.draw();
      return;
    }
    this.message.hidden = true;
    this.drawn.push(now);
    while (this.drawn[0] < now - 2000) this.drawn.shift();
    if (header.sent_ms) { this.ages.push(header.age_ms + (Date.now() - header.sent_ms)); if (this.ages.length > 60) this.ages.shift(); }
    if (!this.stats || now - this.statsAt > 200) { this.stats = statistics(elements); this.statsAt = now; this.drawHistogram(); this.showFacts(); this.showPlanes(); }
    this.profiles.hidden = header.kind !== "image";
    this.scale[0].hidden = header.kind !== "image";
    this.stale.hidden = true;
    if (header.kind === "image") this.makeImage(); else { this.image = null; this.addLine(); }
    this.draw();
  }

  limits() {
    const { scale } = this.options, { header } = this.frame, s = this.stats;
    if (scale === "type") { const range = { u8: [0, 255], i8: [-128, 127], u16: [0, 65535], i16: [-32768, 32767] }[header.elements]; if (range) return range; }
    if (scale === "percentile") {
      // A detector's few bright points must not vanish because most of the frame has one value.
      return s.p99 > s.p1 ? [s.p1, s.p99] : [s.min, s.max];
    }
    if (scale === "wide" && s.p999 > s.p01) return [s.p01, s.p999];
    if (header.channels > 1 && header.elements === "u8") return [0, 255];
    return [s.min, s.max];
  }

  makeImage() {
    const { header } = this.frame;
    if (!this.image || this.image.canvas.width !== header.columns || this.image.canvas.height !== header.rows) {
      const canvas = document.createElement("canvas");
      canvas.width = header.columns; canvas.height = header.rows;
      const pen = canvas.getContext("2d"), data = pen.createImageData(header.columns, header.rows);
      this.image = { canvas, pen, data, pixels: new Uint32Array(data.data.buffer) };
    }
    const [low, high] = header.channels > 1 && header.elements === "u8" && this.options.scale === "percentile" ? [0, 255] : this.limits();
    paint(this.frame, this.image.pixels, { low, high, isLog: this.options.isLog, map: this.options.map });
    this.image.pen.putImageData(this.image.data, 0, 0);
    this.image.header = header;
  }

  addLine() {
    this.lines.push(this.frame.elements);
    if (this.lines.length > WATERFALL) this.lines.shift();
  }

  // --- drawing

  resize() {
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.stage.clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(this.stage.clientHeight * ratio));
  }

  // The rectangle of the frame that fills the canvas, with square pixels.
  window() {
    const { header } = this.frame, ratio = this.stage.clientWidth / Math.max(1, this.stage.clientHeight);
    if (this.zoom) return this.zoom;
    let { width, height } = header;
    if (width / height < ratio) width = height * ratio; else height = width / ratio;
    return { left: (header.width - width) / 2, top: (header.height - height) / 2, width, height };
  }

  draw() {
    const pen = this.canvas.getContext("2d"), ratio = devicePixelRatio || 1;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.frame || !this.frame.elements) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.frame.header.kind === "line") { this.drawLines(pen); this.showPointer(); return; }
    if (!this.image) return;
    const { header, canvas } = this.image, box = this.window(), scale = this.stage.clientWidth / box.width;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, (header.left - box.left) * scale, (header.top - box.top) * scale, header.columns * header.step * scale, header.rows * header.step * scale);
    const at = this.pinned || this.pointer;
    if (at) {
      const x = (at.column + .5 - box.left) * scale, y = (at.row + .5 - box.top) * scale;
      pen.strokeStyle = css("--accent"); pen.globalAlpha = .8; pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, this.stage.clientHeight); pen.moveTo(0, y); pen.lineTo(this.stage.clientWidth, y); pen.stroke();
      pen.globalAlpha = 1;
    }
    this.drawProfiles(at);
    this.showPointer();
  }

  drawLines(pen) {
    const { header, elements } = this.frame, width = this.stage.clientWidth, height = this.stage.clientHeight;
    const upper = Math.round(height * .42), [low, high] = this.stats.max > this.stats.min ? [this.stats.min, this.stats.max] : [this.stats.min - .5, this.stats.max + .5];
    const y = (v) => 10 + (1 - (v - low) / (high - low)) * (upper - 26), size = Math.round(11 * unit());
    const ticks = [0, 1, 2, 3, 4].map((i) => low + ((high - low) * i) / 4);
    pen.strokeStyle = css("--grid");
    for (const v of ticks) { pen.beginPath(); pen.moveTo(0, y(v)); pen.lineTo(width, y(v)); pen.stroke(); }
    pen.strokeStyle = css("--s1"); pen.lineWidth = 1.3 * Math.sqrt(unit());
    pen.beginPath();
    const points = elements.length, x = (i) => (points > 1 ? (i / (points - 1)) * width : width / 2);
    let isOn = false;
    for (let i = 0; i < points; i += 1) { const v = elements[i]; if (!Number.isFinite(v)) { isOn = false; continue; } if (isOn) pen.lineTo(x(i), y(v)); else pen.moveTo(x(i), y(v)); isOn = true; }
    pen.stroke();
    pen.font = `${size}px system-ui, sans-serif`;
    ticks.forEach((v, i) => {
      const text = number(v, 3), base = y(v) + (i === 4 ? size + 1 : -3);
      pen.globalAlpha = .8; pen.fillStyle = css("--panel"); pen.fillRect(3, base - size + 1, pen.measureText(text).width + 6, size + 2);
      pen.globalAlpha = 1; pen.fillStyle = css("--muted"); pen.fillText(text, 6, base);
    });
    if (points === 1) { pen.font = "28px system-ui, sans-serif"; pen.fillStyle = css("--text"); pen.textAlign = "center"; pen.fillText(String(elements[0]), width / 2, upper / 2); pen.textAlign = "left"; }
    this.drawWaterfall(pen, upper, width, height - upper, low, high);
    if (this.pointer) { pen.strokeStyle = css("--accent"); const px = x(this.pointer.index); pen.beginPath(); pen.moveTo(px, 0); pen.lineTo(px, height); pen.stroke(); }
  }

  drawWaterfall(pen, top, width, height, low, high) {
    const columns = this.frame.elements.length, rows = Math.min(WATERFALL, Math.max(60, this.lines.length));
    if (columns < 2 || height < 20) return;
    if (!this.fall || this.fall.width !== columns || this.fall.height !== rows) { this.fall = document.createElement("canvas"); this.fall.width = columns; this.fall.height = rows; }
    const brush = this.fall.getContext("2d"), data = brush.createImageData(columns, rows), pixels = new Uint32Array(data.data.buffer);
    const colours = palette(this.options.map === "grey" ? "viridis" : this.options.map), steps = CURVES[this.options.isLog ? "log" : "linear"], scale = high > low ? (LEVELS - 1) / (high - low) : 0;
    this.lines.forEach((line, i) => {
      const row = (this.lines.length - 1 - i) * columns;
      if (line.length !== columns) return;
      for (let k = 0; k < columns; k += 1) { const at = (line[k] - low) * scale; pixels[row + k] = at !== at ? NOT_A_NUMBER : colours[steps[at <= 0 ? 0 : at >= LEVELS - 1 ? LEVELS - 1 : at | 0]]; }
    });
    brush.putImageData(data, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.fall, 0, top, width, height);
  }

  small(canvas) {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return null;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  }

  drawHistogram() {
    const target = this.small(this.histogram), { stats } = this;
    if (!target || !stats.count) { setText(this.histogramText, stats.count ? "" : "no finite value"); return; }
    const { pen, width, height } = target, bins = new Uint32Array(BINS), span = stats.max - stats.min || 1;
    for (const value of stats.sorted) bins[Math.min(BINS - 1, Math.floor(((value - stats.min) / span) * BINS))] += 1;
    const top = Math.log1p(Math.max(...bins));
    pen.fillStyle = css("--s1");
    bins.forEach((n, i) => { const size = top ? (Math.log1p(n) / top) * (height - 2) : 0; pen.fillRect((i * width) / BINS, height - size, width / BINS - .5, size); });
    const [low, high] = this.limits();
    pen.strokeStyle = css("--s2");
    for (const edge of [low, high]) { const x = Math.max(0, Math.min(width - 1, ((edge - stats.min) / span) * width)); pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke(); }
    const odd = [stats.nan ? `${stats.nan} NaN` : "", stats.high ? `${stats.high} +inf` : "", stats.low ? `${stats.low} −inf` : ""].filter(Boolean).join(", ");
    const short = (v) => value(Number.isInteger(v) ? v : Number(v.toPrecision(4)));
    setText(this.histogramText, `${short(stats.min)} to ${short(stats.max)}, median ${short(stats.median)}${odd ? ` · ${odd}` : ""}`);
    this.histogram.setAttribute("aria-label", `Histogram of the shown values: ${this.histogramText.textContent}`);
  }

  drawProfiles(at) {
    this.hint.hidden = Boolean(at);
    this.rowProfile.hidden = this.columnProfile.hidden = !at;
    const row = this.small(this.rowProfile), column = this.small(this.columnProfile), { header, elements } = this.frame;
    if (!row || !at) return;
    const r = Math.floor((at.row - header.top) / header.step), c = Math.floor((at.column - header.left) / header.step);
    if (r < 0 || c < 0 || r >= header.rows || c >= header.columns) return;
    const colours = (header.channels > 1 ? ["--bad", "--good", "--accent"] : ["--s1"]).map(css), channels = colours.map((_, k) => k);
    profile(row, `row ${at.row}`, header.columns, channels.map((k) => (i) => elements[(r * header.columns + i) * header.channels + k]), colours, this.rowProfile);
    profile(column, `column ${at.column}`, header.rows, channels.map((k) => (i) => elements[(i * header.columns + c) * header.channels + k]), colours, this.columnProfile);
  }

  // --- pointer, zoom, keys

  // Two fingers zoom; the part between them stays where it is.
  pinch(event) {
    const before = this.touches.get(event.pointerId), other = [...this.touches.values()].find((touch) => touch.pointerId !== event.pointerId);
    const distance = (touch) => Math.max(1, Math.hypot(touch.clientX - other.clientX, touch.clientY - other.clientY)), box = this.canvas.getBoundingClientRect();
    this.touches.set(event.pointerId, event);
    this.zoomAt((event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top, distance(before) / distance(event));
  }

  onPointer(event) {
    if (!this.frame || !this.frame.elements) return;
    if (this.touches.size > 1 && this.touches.has(event.pointerId)) { this.pinch(event); return; }
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top, { header } = this.frame;
    if (header.kind === "line") { this.pointer = { index: Math.max(0, Math.min(header.columns - 1, Math.round((x / box.width) * (header.columns - 1)))) }; this.draw(); return; }
    const view = this.window(), scale = view.width / this.stage.clientWidth;
    if (this.drag && event.buttons) {
      const dx = event.clientX - this.drag.x, dy = event.clientY - this.drag.y;
      if (this.drag.moved || Math.hypot(dx, dy) > 4) {
        const from = this.drag.zoom || this.window();
        this.drag.zoom = from; this.drag.moved = true;
        this.zoom = { ...from, left: from.left - dx * scale, top: from.top - dy * scale };
        this.draw(); this.requestSoon();
        return;
      }
    }
    const at = { row: Math.floor(view.top + y * scale), column: Math.floor(view.left + x * scale) };
    this.pointer = at.row >= 0 && at.column >= 0 && at.row < header.height && at.column < header.width ? at : null;
    this.draw();
  }

  zoomAt(x, y, factor) {
    if (!this.frame || this.frame.header.kind !== "image") return;
    const view = this.window(), { header } = this.frame, scale = view.width / this.stage.clientWidth;
    const width = Math.max(8, view.width * factor), grow = width / view.width;
    if (factor > 1 && width > header.width * 2 && width > header.height * 4) { this.zoom = null; this.optionsChanged(); return; }
    this.zoom = { left: view.left + x * scale * (1 - grow), top: view.top + y * scale * (1 - grow), width, height: view.height * grow };
    this.draw(); this.requestSoon();
  }

  onKey(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const middle = [this.stage.clientWidth / 2, this.stage.clientHeight / 2];
    if (event.key === "+" || event.key === "=") this.zoomAt(...middle, .8);
    else if (event.key === "-") this.zoomAt(...middle, 1.25);
    else if (event.key === "0") { this.zoom = null; this.pinned = null; this.optionsChanged(); }
    else if (steps && this.frame && this.frame.elements) {
      const { header } = this.frame;
      if (header.kind === "line") this.pointer = { index: Math.max(0, Math.min(header.columns - 1, (this.pointer ? this.pointer.index : 0) + steps[0])) };
      else {
        const at = this.pinned || this.pointer || { row: Math.floor(header.height / 2), column: Math.floor(header.width / 2) }, size = event.shiftKey ? 10 : 1;
        this.pinned = { row: Math.max(0, Math.min(header.height - 1, at.row + steps[1] * size * header.step)), column: Math.max(0, Math.min(header.width - 1, at.column + steps[0] * size * header.step)) };
      }
      this.draw();
    } else return;
    event.preventDefault(); event.stopPropagation();
  }

  showPointer() {
    const at = this.pinned || this.pointer, { frame } = this;
    if (!at || !frame || !frame.elements) { this.over.hidden = true; return; }
    const { header, elements } = frame;
    let text = "";
    if (header.kind === "line") {
      const i = at.index;
      text = header.envelope ? `[${header.left + Math.floor(i / 2) * header.step} …] ${value(elements[i & ~1])} to ${value(elements[i | 1])}` : `[${header.left + i}] ${value(elements[i])}`;
    } else {
      const r = Math.floor((at.row - header.top) / header.step), c = Math.floor((at.column - header.left) / header.step);
      if (r < 0 || c < 0 || r >= header.rows || c >= header.columns) { this.over.hidden = true; return; }
      const k = (r * header.columns + c) * header.channels;
      const values = Array.from(elements.subarray(k, k + header.channels), value).join(", ");
      text = `row ${header.top + r * header.step}, column ${header.left + c * header.step}: ${values}${header.rounded ? " (rounded)" : ""}`;
    }
    this.over.hidden = false;
    setText(this.over, text);
  }

  showFacts() {
    const { header } = this.frame, fps = this.drawn.length > 1 ? ((this.drawn.length - 1) * 1000) / (this.drawn[this.drawn.length - 1] - this.drawn[0]) : null;
    const ages = [...this.ages].sort((a, b) => a - b), age = ages.length ? ages[ages.length >> 1] : null;
    const meta = Object.entries(header.meta || {});
    put(this.facts, facts([["sequence", header.seq ?? "–"], ["shape", header.shape ? header.shape.join(" × ") || "scalar" : "–"], ["type", header.type ?? "–"], ["size", bytes(header.nbytes ?? null)],
      this.recorded ? null : ["stream", hertz(header.rate_hz)], this.recorded ? null : ["shown", hertz(fps)], this.recorded || age === null ? null : ["capture to pixels", `${age.toFixed(1)} ms`],
      header.step > 1 ? ["shown elements", `every ${header.step}th`] : ["shown elements", "all"], ["epoch", header.epoch ?? "–"], ...meta]));
    const name = streamName(header.stream, this.app.connection.document.streams[header.stream]);
    this.canvas.setAttribute("aria-label", header.kind === "none" ? `${name}: ${header.why}` : `Frame ${header.seq} of ${name}, ${header.type} ${(header.shape || []).join(" by ")}, values ${this.histogramText.textContent}. Arrow keys move a crosshair, plus and minus zoom.`);
    this.element.dataset.fps = fps === null ? "" : fps.toFixed(1);
    this.element.dataset.age = age === null ? "" : age.toFixed(2);
  }

  // Choosers of planes for axes that are not shown, and of the axes themselves.
  showPlanes() {
    const { header } = this.frame, shape = header.shape || [], shown = header.axes || [];
    const key = `${shape}|${shown}`;
    if (key === this.planeKey) return;
    this.planeKey = key;
    this.bayerSelect.parentElement.hidden = header.kind !== "image" || (header.channels > 1 && !header.bayer);
    const others = shape.map((size, axis) => [size, axis]).filter(([size, axis]) => !shown.includes(axis) && size > 1);
    const controls = others.map(([size, axis]) => {
      const text = h("span", { class: "mono" }, "0"), slider = h("input", { type: "range", min: "0", max: String(size - 1), value: String(header.index[axis] || 0), "aria-label": `Index of axis ${axis}`,
        oninput: () => { const index = [...this.options.index]; for (let i = 0; i < shape.length; i += 1) index[i] ??= 0; index[axis] = Number(slider.value); this.options.index = index; setText(text, slider.value); this.optionsChanged(); } });
      return h("label", {}, `axis ${axis}`, slider, text);
    });
    const choices = shape.length > 2 ? axisChoices(shape) : [];
    if (choices.length > 1) {
      const select = h("select", { "aria-label": "Axes that are shown", onchange: () => { this.options.axes = choices[select.value]; this.zoom = null; this.planeKey = ""; this.optionsChanged(); } }, choices.map((axes, i) => h("option", { value: String(i) }, axes[2] === null ? `axes ${axes[0]} × ${axes[1]}` : `axes ${axes[0]} × ${axes[1]}, colours ${axes[2]}`)));
      const now = choices.findIndex((axes) => String(axes) === String(shown.map((a) => a ?? null)));
      if (now >= 0) select.value = String(now);
      controls.unshift(select);
    }
    put(this.planes, controls);
  }

  update() {
    if (this.recorded) return;
    const { streams } = this.app.connection.document, keys = Object.keys(streams);
    const version = keys.map((key) => `${key}${streams[key].name}`).join("|");
    if (version !== this.keys) {
      this.keys = version;
      put(this.pick, keys.map((key) => h("option", { value: key }, streamName(key, streams[key]))));
    }
    if (this.stream === null && keys.length) this.onShown();
    this.pick.value = String(this.stream);
    if (this.refused) { this.request(); return; }
    const row = streams[this.stream], quiet = this.frame && this.frame.elements && !this.paused && this.drawn.length ? performance.now() - this.drawn[this.drawn.length - 1] : 0;
    this.stale.hidden = quiet < 3000;
    if (quiet >= 3000) setText(this.stale, `No new frame for ${ago(quiet)}. ${row ? (row.health === "good" ? "" : row.why) : "The stream is not announced any more."}`.trim());
    if (this.frame === null || !row || row.state === "stale" || row.state === "vacant") {
      const text = this.stream === null ? "No stream is announced here yet." : !row ? `Stream ${this.stream} is not announced. Its frames are shown as soon as it is.` : row.state === "live" ? "Waiting for a frame." : row.why;
      if (this.frame === null || !row) { setText(this.message, text); this.message.hidden = this.frame !== null && Boolean(this.frame.elements); }
    }
  }
}

function axisChoices(shape) {
  const all = shape.map((_, axis) => axis), result = [];
  for (const rows of all) for (const columns of all) if (rows < columns) {
    result.push([rows, columns, null]);
    for (const channels of all) if (channels !== rows && channels !== columns && (shape[channels] === 3 || shape[channels] === 4)) result.push([rows, columns, channels]);
  }
  return result.slice(0, 24);
}

// The values along a row or a column, from the least to the greatest of them.
function profile({ pen, width, height }, title, count, lines, colours, canvas) {
  const values = lines.map((at) => Array.from({ length: count }, (_, i) => at(i))), known = values.flat().filter(Number.isFinite);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity), span = high - low || 1;
  const size = Math.round(11 * unit()), top = size + 5, short = (v) => value(Number.isInteger(v) ? v : Number(v.toPrecision(4)));
  const text = known.length ? `${title}: ${short(low)} to ${short(high)}` : `${title}: no finite value`;
  pen.font = `${size}px system-ui, sans-serif`; pen.fillStyle = css("--muted"); pen.fillText(text, 0, size);
  canvas.setAttribute("aria-label", `Profile along ${text}`);
  values.forEach((line, k) => {
    pen.strokeStyle = colours[k]; pen.lineWidth = 1.1;
    pen.beginPath();
    line.forEach((v, i) => { if (Number.isFinite(v)) pen.lineTo((i / Math.max(1, count - 1)) * width, height - 2 - ((v - low) / span) * (height - top - 4)); });
    pen.stroke();
  });
}

// The shortest text that is exact for integers and has 7 digits for others.
function value(v) { return Number.isInteger(v) ? String(v) : Number.isFinite(v) ? String(Number(v.toPrecision(7))) : String(v).replace("Infinity", "inf"); }
