// Recordings: what there is, rows and gaps along the sequences of each epoch, any frame of them, and jobs.

import { bytes, chip, counts, h, perSecond, put, s, setText, streamName, Table, whole } from "./dom.js";
import { FrameViewer, RECORDED_WATCH } from "./frame.js";
import { order, recorderButtons } from "./steering.js";

const WIDTH = 900, POLL_MS = 700;
const FORMS = [["npy", "npy: one array, frames of one shape"], ["npz", "npz: any frames"], ["parquet", "Parquet"], ["mcap", "MCAP, for Foxglove"], ["zarr", "Zarr: a directory"]];
const base = (path) => path.replace(/\/+$/, "").split("/").pop();

// Jobs of this console, with their progress: checks, exports, reports, recorders, replays.
export class Jobs {
  constructor(app, kinds, { onEnd = () => {} } = {}) {
    this.app = app;
    this.kinds = kinds;
    this.onEnd = onEnd;
    this.rows = new Map();
    this.running = new Set();
    this.body = h("div", { class: "body jobs", role: "status", "aria-label": "Jobs" });
    this.element = h("section", { class: "panel", hidden: true }, h("header", {}, h("h2", {}, "Jobs")), this.body);
  }

  start() { this.stop(); this.load(); this.timer = setInterval(() => this.load(), POLL_MS); }
  stop() { clearInterval(this.timer); }

  async load() {
    if (this.busy) return;
    this.busy = true;
    try {
      const { jobs } = await this.app.connection.ask("jobs");
      this.show(jobs.filter((job) => this.kinds.includes(job.kind)));
    } catch { /* not connected: the notice on top says so */ }
    this.busy = false;
  }

  show(jobs) {
    this.element.hidden = !jobs.length;
    const keep = jobs.slice(0, 12).map((job) => this.row(job));
    if (keep.length !== this.body.children.length || keep.some((row, i) => this.body.children[i] !== row)) put(this.body, keep);
    for (const job of jobs) {
      if (this.running.has(job.job) && !job.running) this.onEnd(job);
      if (job.running) this.running.add(job.job); else this.running.delete(job.job);
    }
  }

  row(job) {
    let row = this.rows.get(job.job);
    const state = job.error ? "error" : job.running ? "running" : "ended";
    if (!row || row.dataset.state !== state) {
      const progress = h("progress", { max: 1, "aria-label": `Progress of ${job.title}` });
      const end = job.running && this.app.connection.role === "steer" && h("button", { type: "button", onclick: () => order(this.app, { title: "End this job", danger: true, request: () => ({ action: "end", job: job.job }), done: () => this.load() }) }, "End");
      const fetched = !job.running && job.result && !job.error && (job.kind === "export" || job.kind === "report") && job.result.bytes !== null;
      const link = fetched ? h("a", { href: `/job/${job.job}`, ...(job.kind === "report" ? { target: "_blank", rel: "noopener" } : { download: job.result.name }) }, job.kind === "report" ? "Open the page" : `Download ${bytes(job.result.bytes)}`) : null;
      const made = h("div", { class: "job" }, h("b", {}, job.title), job.running ? progress : chip(job.error ? "failed" : isWrong(job) ? "found faults" : "done", job.error || isWrong(job) ? "bad" : "good"), h("span", { class: "muted" }), link, end || null);
      made.dataset.state = state;
      if (row) row.replaceWith(made);
      row = made;
      this.rows.set(job.job, row);
    }
    const progress = row.querySelector("progress");
    if (progress) { if (job.total > 0) progress.value = job.done / job.total; else progress.removeAttribute("value"); }
    setText(row.children[2], job.error || resultText(job) || job.note || (job.total > 1 ? `${whole(job.done)} of ${whole(job.total)}` : ""));
    return row;
  }
}

const isWrong = ({ result: r }) => Boolean(r && (r.ok === false || (r.faults && r.faults.length)));

function resultText(job) {
  const r = job.result;
  if (!r) return "";
  if (job.kind === "verify") return r.ok ? `${whole(r.rows)} rows, ${bytes(r.bytes)}: every checksum is right` : r.problems.slice(0, 3).join("; ");
  if (job.kind === "export") return `${whole(r.frames)} frames${r.path ? `: ${r.path}` : ""}`;
  if (job.kind === "report") return r.faults.length ? r.faults.slice(0, 3).join("; ") : `${whole(r.frames)} frames: everything adds up`;
  return r.frames ? `${whole(r.frames)} frames` : "";
}

export class RecordingsView {
  constructor(app) {
    this.app = app;
    this.table = new Table([
      { title: "recording", text: (r) => this.nameButton(r), value: (r) => r.root },
      { title: "streams", class: "wrap", text: (r) => r.error || r.streams.join(", "), value: (r) => r.streams.length },
      { title: "size", text: (r) => bytes(r.bytes), value: (r) => r.bytes, number: true },
      { title: "segments", text: (r) => whole(r.segments), value: (r) => r.segments, number: true },
      { title: "state", text: (r) => this.state(r), value: (r) => r.state },
      { title: "orders", sort: false, text: (r) => this.buttons(r) },
    ], { caption: "Recordings", empty: "No recorder runs here. tensorpool console --recordings DIR shows the recordings of a directory." });
    this.jobs = new Jobs(app, ["verify", "export", "record", "replay"], { onEnd: () => { this.load(); } });
    this.fresh = h("button", { type: "button", class: "primary", hidden: true, onclick: () => this.record() }, "New recording");
    this.body = h("div");
    this.element = h("div", { class: "stack" }, h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Recordings"), h("button", { type: "button", onclick: () => this.load() }, "Refresh"), this.fresh), this.table.element), this.jobs.element, this.body);
  }

  onShown() { this.load(); this.jobs.start(); }
  onHidden() { this.jobs.stop(); }
  onConnected() { this.load(); }

  update() {
    // Rates and states of running recorders change by themselves; a new recorder needs a new list.
    const roots = Object.values(this.app.connection.document.recorders).map((r) => r.root).join("|");
    if (this.roots !== undefined && roots !== this.roots) this.load();
    this.roots = roots;
    if (this.rows) this.showRows();
  }

  recorder(r) { return Object.entries(this.app.connection.document.recorders).find(([, row]) => row.root === r.root); }

  nameButton(r) {
    const element = h("button", { type: "button", class: "name", title: r.root, onclick: () => this.open(r.root) }, base(r.root));
    element.dataset.value = r.root;
    return element;
  }

  state(r) {
    const running = this.recorder(r);
    if (r.error) return chip("damaged", "bad");
    if (!running) return "";
    const [, row] = running;
    return chip(row.state === "recording" ? `recording ${perSecond(row.bytes)}` : row.state, row.health === "good" ? "good" : row.health === "bad" ? "bad" : "warn");
  }

  buttons(r) {
    const running = this.recorder(r), steer = this.app.connection.role === "steer";
    const element = h("span", { class: "buttons" }, running && steer ? recorderButtons(this.app, running[0], running[1].state) : null);
    element.dataset.value = `${r.root}|${running ? running[1].state : ""}|${steer}`;
    return element;
  }

  async load() {
    try {
      const { recordings, directory } = await this.app.connection.ask("recordings");
      this.directory = directory;
      this.rows = recordings;
      this.fresh.hidden = this.app.connection.role !== "steer" || !directory;
      this.showRows();
      if (recordings.length && !this.root) this.open(recordings[0].root);
    } catch (error) { this.table.show([]); setText(this.table.empty, error.message); }
  }

  showRows() { this.table.show(this.rows.map((row) => [row.root, row, row.root === this.root ? "selected" : ""])); }

  record() {
    const { streams } = this.app.connection.document, now = new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-");
    order(this.app, {
      title: "New recording", hint: `A recorder of its own writes into ${this.directory}. It continues when the console ends.`,
      fields: [{ name: "name", label: "name", value: `run-${now}`, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" }, { name: "streams", type: "checks", label: "streams", options: Object.entries(streams).slice(0, 64).map(([key, row]) => [Number(key), streamName(key, row), row.state === "live"]) },
        { name: "seconds", label: "seconds; empty: until it is ended", type: "number", min: "1", required: false }],
      request: (v) => ({ action: "record", ...v }), done: () => this.jobs.load(),
    });
  }

  async open(root) {
    this.root = root;
    this.at = null;
    if (this.rows) this.showRows();
    const recording = await this.app.connection.ask("recording", { root }).catch((error) => { put(this.body, h("p", { class: "why bad" }, error.message)); return null; });
    if (!recording || this.root !== root) return;
    if (!this.viewer) {
      this.viewer = new FrameViewer(this.app, { recorded: true });
      this.viewer.onView = () => this.showFrame();
      this.app.connection.addEventListener("frame", (event) => { if (event.detail.header.watch === RECORDED_WATCH) { this.viewer.onFrame(event.detail); this.showPlace(event.detail.header.seq); } });
    }
    this.place = h("span", { class: "mono muted", role: "status" });
    const steer = this.app.connection.role === "steer";
    const tracks = recording.streams.flatMap((stream) => stream.epochs.map((epoch) => this.track(stream, epoch)));
    put(this.body, h("section", { class: "panel" }, h("header", {}, h("h2", { title: root }, base(root)), this.place, h("button", { type: "button", onclick: () => this.verify() }, "Verify"),
      steer ? h("button", { type: "button", onclick: () => this.export(recording) }, "Export") : null, steer ? h("button", { type: "button", onclick: () => this.replay() }, "Replay") : null),
    h("div", { class: "body tracks" }, tracks.length ? tracks : h("p", { class: "empty" }, "It has no frames yet."))), this.viewer.element);
    const first = recording.streams[0];
    if (first && first.epochs.length) this.scrub(first, first.epochs[0], BigInt(first.epochs[0].first_seq));
  }

  // One epoch of a stream: a bar of its sequences, gaps in red, and a slider that chooses a frame.
  track(stream, epoch) {
    const first = BigInt(epoch.first_seq), span = epoch.span, x = (seq) => (Number(seq - first) / Math.max(1, span)) * WIDTH;
    const gaps = stream.gaps.filter(([e]) => e === epoch.epoch).map(([, seq, count, reason]) => s("rect", { class: "gap", x: x(BigInt(seq)), y: 0, width: Math.max(1, (count / Math.max(1, span)) * WIDTH), height: 14 }, s("title", {}, `${whole(count)} missing: ${reason}`)));
    const slider = h("input", { type: "range", min: "0", max: String(Math.max(0, span - 1)), value: "0", "aria-label": `Frame of ${stream.name || stream.stream}, epoch ${epoch.epoch}`, oninput: () => this.scrub(stream, epoch, first + BigInt(slider.value)) });
    const missing = Object.values(epoch.gaps).reduce((a, b) => a + b, 0);
    return h("div", { class: "track" }, h("p", {}, h("b", {}, stream.name || `stream ${stream.stream}`), h("span", { class: "muted" }, `epoch ${epoch.epoch}`), h("span", {}, `${whole(epoch.rows)} rows of ${whole(span)}`),
      missing ? h("span", { class: "gaps" }, `gaps: ${counts(epoch.gaps)}`) : h("span", { class: "muted" }, "no gaps"), chip(epoch.balanced ? "adds up" : "does not add up", epoch.balanced ? "good" : "bad")),
    h("div", { class: "line" }, s("svg", { viewBox: `0 0 ${WIDTH} 14`, preserveAspectRatio: "none", height: "14", role: "img", "aria-label": `${whole(epoch.rows)} rows and gaps: ${counts(epoch.gaps)}` }, s("rect", { class: "rows", x: 0, y: 0, width: WIDTH, height: 14 }), gaps), slider));
  }

  scrub(stream, epoch, seq) {
    const isNew = !this.at || this.at.stream !== stream.stream;
    this.at = { stream: stream.stream, epoch: epoch.epoch, seq: String(seq) };
    this.name = stream.name || stream.stream;
    this.showPlace(this.at.seq);
    if (isNew) this.viewer.reset();
    this.viewer.stream = stream.stream;
    this.showFrame();
  }

  // Within a gap the frame behind it is shown.
  showPlace(seq) {
    setText(this.place, `${this.name}, sequence ${seq}${BigInt(seq) > BigInt(this.at.seq) ? `; ${this.at.seq} is in a gap` : ""}`);
  }

  async showFrame() {
    if (!this.at) return;
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try { await this.app.connection.ask("recorded-frame", { root: this.root, ...this.at, view: this.viewer.view() }); } catch (error) { setText(this.place, error.message); }
    this.busy = false;
    if (this.again) { this.again = false; this.showFrame(); }
  }

  async verify() {
    try { await this.app.connection.ask("verify", { root: this.root }); this.jobs.load(); } catch (error) { setText(this.place, error.message); }
  }

  export(recording) {
    order(this.app, {
      title: `Export ${base(this.root)}`,
      fields: [{ name: "stream", label: "stream", type: "select", options: recording.streams.map((st) => [String(st.stream), st.name ? `${st.name} (${st.stream})` : String(st.stream)]) }, { name: "form", label: "format", type: "select", options: FORMS }],
      request: (v) => ({ action: "export", root: this.root, ...v }), done: () => this.jobs.load(),
    });
  }

  replay() {
    order(this.app, {
      title: `Replay ${base(this.root)}`, hint: "Frames keep their spacing, timestamps and metadata; a process of its own publishes them.",
      fields: [{ name: "speed", label: "speed", type: "select", value: "1", options: [["0.1", "a tenth"], ["0.5", "half"], ["1", "as recorded"], ["2", "twice"], ["10", "ten times"], ["max", "as fast as possible"]] },
        { name: "first_id", label: "first stream id; empty: the recorded ids", type: "number", min: "1", step: "1", required: false }, { name: "loop", label: "start over at the end", type: "checkbox" }],
      request: (v) => ({ action: "replay", root: this.root, speed: v.speed === "max" ? "max" : Number(v.speed), first_id: v.first_id, loop: v.loop }), done: () => this.jobs.load(),
    });
  }
}
