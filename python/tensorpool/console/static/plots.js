// Plots over time on a canvas: lines or stacked areas, marks of events, one crosshair for all.
//
// Hand-made because the job is small: six plots with one time axis, at most ten lines and 720 points each.

import { bytes, chip, clock, css, h, hertz, micros, number, perSecond, put, setText, streamName, unit } from "./dom.js";

const MARGIN = { left: 74, right: 12, top: 8, bottom: 22 };
const MARKS = { lease: "--bad", shutdown: "--bad", mismatch: "--bad", consumer: "--idle", producer: "--warn", epoch: "--warn", decision: "--limited", order: "--limited" };
const PLOTS = [
  { title: "Frame rate", series: ["rate"], text: hertz },
  { title: "Bandwidth", series: ["bytes"], text: perSecond },
  { title: "Latency", system: "Latency of the slowest consumer", series: ["p50", "p99"], text: micros },
  { title: "Lost frames", series: ["lost"], text: (v) => `${number(v)}/s` },
  { title: "Drops by reason", series: "drop:", text: (v) => `${number(v)}/s`, stacked: true },
  { title: "Memory", series: ["memory"], text: bytes },
];

export class TimeView {
  constructor(app) {
    this.app = app;
    this.track = "system";
    this.span = "minutes";
    this.history = null;
    this.pick = h("select", { "aria-label": "What the plots show", onchange: () => { location.hash = `#/time/${this.pick.value}`; } });
    this.spans = ["minutes", "hours"].map((span) => h("button", { type: "button", onclick: () => { this.span = span; this.load(); } }, span === "minutes" ? "10 minutes" : "4 hours"));
    this.plots = PLOTS.map((spec) => new Plot(spec, (at) => this.hover(at)));
    this.marks = h("div", { class: "legend" }, [["lease or shutdown", "--bad"], ["epoch or producer", "--warn"], ["order", "--limited"], ["consumer", "--idle"]].map(([name, colour]) => { const i = h("i"); i.style.background = `var(${colour})`; return h("span", {}, i, name); }));
    this.element = h("div", {}, h("div", { class: "row" }, h("h2", {}, "Over time"), this.marks, this.pick, this.spans), h("div", { class: "plots" }, this.plots.map((plot) => plot.element)));
    app.connection.addEventListener("history", (event) => { if (event.detail.track === this.track && event.detail.span === this.span) { this.history = event.detail; this.draw(); } });
    app.connection.addEventListener("point", (event) => this.onPoint(event.detail));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  onShown(track) { const next = track || "system"; if (next !== this.track || !this.history) { this.track = next; this.history = null; } this.load(); }
  onConnected() { this.load(); }
  onHidden() { this.app.connection.send({ type: "track", track: null }); }

  load() {
    this.spans.forEach((button, i) => button.setAttribute("aria-pressed", String((i === 0) === (this.span === "minutes"))));
    this.app.connection.send({ type: "track", track: this.track, span: this.span });
    this.loaded = performance.now();
    this.draw();
  }

  onPoint({ track, at, values }) {
    const { history } = this;
    if (!history || track !== this.track || this.span !== "minutes" || history.at[history.at.length - 1] >= at) return;
    const length = history.at.push(at);
    for (const [name, value] of Object.entries(values)) {
      const points = (history.series[name] ??= new Array(length - 1).fill(null));
      points.push(value);
    }
    for (const points of Object.values(history.series)) if (points.length < length) points.push(null);
    if (length > 600) { history.at.shift(); for (const points of Object.values(history.series)) points.shift(); }
    this.draw();
  }

  update() {
    const { streams } = this.app.connection.document;
    const keys = ["system", ...Object.keys(streams).slice(0, 300)];
    const version = keys.map((key) => `${key}${(streams[key] || {}).name}`).join("|");
    if (version !== this.keys) {
      this.keys = version;
      put(this.pick, keys.map((key) => h("option", { value: key }, key === "system" ? "the whole system" : streamName(key, streams[key]))));
    }
    this.pick.value = this.track;
    if (this.span === "hours" && performance.now() - this.loaded > 20000) this.load();
  }

  hover(at) { for (const plot of this.plots) plot.hover(at); }

  draw() {
    if (!this.history || !this.element.isConnected) return;
    const notices = Object.values(this.app.connection.document.notices).filter((n) => MARKS[n.kind] && (this.track === "system" || n.stream === null || String(n.stream) === this.track));
    // What the console found when it started has not happened then.
    const { at } = this.history, begin = this.span === "minutes" && at.length < 600 ? at[0] + 3000 : 0;
    for (const plot of this.plots) plot.draw(this.history, notices.filter((n) => n.at > begin || !["epoch", "consumer", "producer"].includes(n.kind)));
  }
}

export class Plot {
  constructor(spec, onHover) {
    this.spec = spec;
    this.onHover = onHover;
    this.value = h("span", { class: "value" });
    this.canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": spec.title });
    this.keys = h("div", { class: "keys" });
    this.element = h("section", { class: "panel plot" }, h("header", {}, this.title = h("h2", {}, spec.title), this.value), this.canvas, this.keys);
    this.canvas.addEventListener("pointermove", (event) => { const box = this.canvas.getBoundingClientRect(); onHover(this.timeAt(event.clientX - box.left)); });
    this.canvas.addEventListener("pointerleave", () => onHover(null));
    this.canvas.addEventListener("keydown", (event) => {
      if (!this.data || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      event.preventDefault();
      const { at } = this.data, now = this.cursor === null || this.cursor === undefined ? at.length - 1 : nearest(at, this.cursor);
      onHover(at[Math.max(0, Math.min(at.length - 1, now + (event.key === "ArrowLeft" ? -5 : 5)))]);
    });
  }

  names(history) {
    const { series } = this.spec;
    return typeof series === "string" ? Object.keys(history.series).filter((name) => name.startsWith(series)).sort() : series;
  }

  timeAt(x) {
    if (!this.range) return null;
    return this.range[0] + ((x - MARGIN.left) / (this.canvas.clientWidth - MARGIN.left - MARGIN.right)) * (this.range[1] - this.range[0]);
  }

  hover(at) { this.cursor = at; if (this.data) this.draw(this.data, this.notices); }

  draw(history, notices) {
    setText(this.title, (history.track === "system" && this.spec.system) || this.spec.title);
    this.data = history;
    this.notices = notices;
    const { canvas, spec } = this, ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const scale = unit();
    Object.assign(MARGIN, { left: Math.round(74 * scale), top: Math.round(8 * scale), bottom: Math.round(22 * scale) });
    pen.font = `${Math.round(11 * scale)}px system-ui, sans-serif`;
    const names = this.names(history), { at } = history, last = at.length ? at[at.length - 1] : Date.now();
    const span = history.span === "hours" ? Math.max(60e3, Math.min(4 * 3600e3, last - at[0])) : Math.max(60e3, Math.min(600e3, last - at[0]));
    this.range = [last - span, last];
    // Reports arrive once a second: their counts are shown as the mean of a few.
    const lines = names.map((name) => (name.startsWith("drop:") ? smooth(history.series[name] || []) : history.series[name] || []));
    const sums = spec.stacked ? stack(lines, at.length) : lines;
    let top = 0;
    for (const line of sums) for (const value of line) if (value !== null && value > top) top = value;
    top = niceTop(top, spec.text === bytes || spec.text === perSecond);
    const x = (t) => MARGIN.left + ((t - this.range[0]) / span) * (width - MARGIN.left - MARGIN.right);
    const y = (v) => height - MARGIN.bottom - (v / top) * (height - MARGIN.top - MARGIN.bottom);
    pen.strokeStyle = css("--grid"); pen.fillStyle = css("--muted"); pen.lineWidth = 1;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    for (let i = 0; i <= 4; i += 1) {
      const value = (top * i) / 4, line = Math.round(y(value)) + .5;
      pen.beginPath(); pen.moveTo(MARGIN.left, line); pen.lineTo(width - MARGIN.right, line); pen.stroke();
      pen.fillText(spec.text(value), MARGIN.left - 6, line);
    }
    pen.textAlign = "center"; pen.textBaseline = "top";
    const step = [10e3, 30e3, 60e3, 120e3, 300e3, 900e3, 1800e3, 3600e3].find((s) => (span / s) * 74 * scale < width - MARGIN.left) || 3600e3;
    for (let t = Math.ceil(this.range[0] / step) * step; t <= this.range[1]; t += step) if (x(t) > MARGIN.left + 20 * scale && x(t) < width - 30 * scale) pen.fillText(clock(t).slice(0, step < 60e3 ? 8 : 5), x(t), height - MARGIN.bottom + 5);
    for (const notice of notices) {
      if (notice.at < this.range[0]) continue;
      pen.strokeStyle = css(MARKS[notice.kind]); pen.globalAlpha = .55; pen.setLineDash([3, 3]);
      pen.beginPath(); pen.moveTo(x(notice.at), MARGIN.top); pen.lineTo(x(notice.at), height - MARGIN.bottom); pen.stroke();
      pen.setLineDash([]); pen.globalAlpha = 1;
    }
    sums.forEach((line, i) => {
      const colour = css(`--s${(i % 8) + 1}`), below = spec.stacked && i ? sums[i - 1] : null;
      pen.strokeStyle = colour; pen.fillStyle = colour; pen.lineWidth = 1.6 * Math.sqrt(scale);
      if (spec.stacked || names.length === 1) area(pen, at, line, below, x, y, this.range[0]);
      pen.beginPath();
      let isOn = false, before = 0;
      for (let k = 0; k < at.length; k += 1) {
        const value = line[k];
        if (value === null || value === undefined || at[k] < this.range[0]) { isOn = false; continue; }
        if (isOn && at[k] - before < 60e3) pen.lineTo(x(at[k]), y(value)); else pen.moveTo(x(at[k]), y(value));
        isOn = true; before = at[k];
      }
      pen.stroke();
    });
    const cursor = this.cursor === null || this.cursor === undefined ? at.length - 1 : nearest(at, this.cursor);
    if (this.cursor !== null && this.cursor !== undefined && at.length) {
      pen.strokeStyle = css("--muted"); pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(x(at[cursor]), MARGIN.top); pen.lineTo(x(at[cursor]), height - MARGIN.bottom); pen.stroke();
    }
    this.showKeys(names, lines, cursor, at, notices);
  }

  showKeys(names, lines, cursor, at, notices) {
    const hovered = this.cursor !== null && this.cursor !== undefined && at.length > 0;
    const values = names.map((name, i) => [name.replace("drop:", ""), this.spec.text(lines[i][cursor] ?? null)]);
    const near = hovered ? notices.filter((n) => Math.abs(n.at - at[cursor]) < 1500).slice(-2) : [];
    if (this.keys.children.length !== values.length + near.length + (hovered ? 1 : 0) || hovered || near.length) put(this.keys, hovered ? h("span", { class: "muted" }, clock(at[cursor])) : null,
      values.map(([name, text], i) => h("span", {}, h("i", { class: `i${(i % 8) + 1}` }), `${name} ${text}`)), near.map((n) => chip(`${n.kind}: ${n.text}`.slice(0, 60))));
    else values.forEach(([name, text], i) => setText(this.keys.children[i].lastChild, `${name} ${text}`));
    const text = values.map(([name, value]) => (values.length > 1 ? `${name} ${value}` : value)).join(" · ") || "none";
    setText(this.value, this.spec.stacked ? "" : text);
    this.keys.hidden = values.length < 2 && !hovered;
    this.canvas.setAttribute("aria-label", `${this.spec.title}: ${text}`);
  }
}

function area(pen, at, line, below, x, y, from) {
  pen.globalAlpha = .14;
  let start = -1;
  const close = (end) => {
    if (start < 0) return;
    pen.beginPath();
    for (let k = start; k < end; k += 1) pen.lineTo(x(at[k]), y(line[k]));
    for (let k = end - 1; k >= start; k -= 1) pen.lineTo(x(at[k]), y(below ? below[k] || 0 : 0));
    pen.fill();
    start = -1;
  };
  for (let k = 0; k < at.length; k += 1) {
    if (line[k] === null || line[k] === undefined || at[k] < from) close(k); else if (start < 0) start = k;
  }
  close(at.length);
  pen.globalAlpha = 1;
}

function stack(lines, length) {
  const sum = new Array(length).fill(0);
  return lines.map((line) => { for (let k = 0; k < length; k += 1) sum[k] += line[k] || 0; return [...sum]; });
}

function smooth(line) {
  return line.map((value, i) => {
    if (value === null) return null;
    const part = line.slice(Math.max(0, i - 4), i + 1).filter((v) => v !== null);
    return part.reduce((a, b) => a + b, 0) / part.length;
  });
}

function niceTop(value, binary) {
  if (!(value > 0)) return 1;
  const base = binary ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1, rest = value / base;
  const size = 10 ** Math.floor(Math.log10(rest));
  for (const step of [1, 2, 4, 5, 8, 10]) if (step * size >= rest) return step * size * base;
  return 10 * size * base;
}

function nearest(at, time) {
  let low = 0, high = at.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (at[mid] < time) low = mid; else high = mid; }
  return Math.abs(at[low] - time) < Math.abs(at[high] - time) ? low : high;
}
