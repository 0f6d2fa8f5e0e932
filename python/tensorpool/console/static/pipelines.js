// Pipelines: how far each is, the throughput of its stages, its tables with a few rows, and its report.

import { ago, bytes, chip, clock, counts, facts, h, perSecond, put, setText, Table, whole } from "./dom.js";
import { Jobs } from "./recordings.js";

const POLL_MS = 2000, QUIET_MS = 60000;
const base = (path) => path.replace(/\/+$/, "").split("/").pop();

export class PipelinesView {
  constructor(app) {
    this.app = app;
    this.root = null;
    this.list = h("div", { class: "body" });
    this.body = h("div", { class: "stack" });
    this.jobs = new Jobs(app, ["report"]);
    this.stages = new Table([
      { title: "stage", text: ([name]) => name, value: ([name]) => name, sort: false },
      { title: "batch", text: ([, st]) => (st.batch < 0 ? "–" : whole(st.batch)), number: true, sort: false },
      { title: "rows", text: ([, st]) => (st.batch < 0 ? "–" : whole(st.rows)), number: true, sort: false },
      { title: "throughput", text: ([, st]) => (st.bytes_per_s ? perSecond(st.bytes_per_s) : "–"), number: true, sort: false },
      { title: "took", text: ([, st]) => (st.batch < 0 ? "–" : `${st.seconds.toFixed(2)} s`), number: true, sort: false },
      { title: "committed", text: ([, st]) => (st.at_ns === null ? "–" : clock(Number(BigInt(st.at_ns) / 1000000n))), sort: false },
      { title: "since the beginning", class: "wrap", text: ([, st]) => totalsText(st.totals) || "nothing yet", sort: false },
    ], { caption: "Stages", empty: "Nothing yet." });
    this.tables = new Table([
      { title: "table", text: (r) => this.tableButton(r), value: (r) => r.name },
      { title: "rows", text: (r) => whole(r.rows), value: (r) => r.rows, number: true },
      { title: "size", text: (r) => bytes(r.bytes), value: (r) => r.bytes, number: true },
      { title: "files", text: (r) => whole(r.files), value: (r) => r.files, number: true },
      { title: "version", text: (r) => whole(r.version), value: (r) => r.version, number: true },
    ], { caption: "Tables", empty: "There are no tables yet." });
    this.title = h("h2", {}, "Pipeline");
    this.facts = h("div", { class: "body" });
    this.sample = h("section", { class: "panel", hidden: true });
    this.detail = h("div", { class: "stack", hidden: true }, h("section", { class: "panel" }, h("header", {}, this.title, h("button", { type: "button", onclick: () => this.report() }, "Report")), this.facts, this.stages.element), this.jobs.element,
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Tables")), this.tables.element), this.sample);
    this.note = h("p", { class: "empty" }, "tensorpool console --pipelines ROOT shows the tables of a pipeline.");
    this.element = h("div", { class: "grid2" }, h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Pipelines")), this.list), h("div", {}, this.detail, this.noteBox = h("section", { class: "panel" }, this.note)));
  }

  onShown(root) { if (root && root !== this.root) { this.root = root; this.sample.hidden = true; } this.load(); clearInterval(this.timer); this.timer = setInterval(() => this.load(), POLL_MS); this.jobs.start(); }
  onHidden() { clearInterval(this.timer); this.jobs.stop(); }
  onConnected() { this.load(); }
  update() {}

  tableButton(r) {
    const element = h("button", { type: "button", class: "name", onclick: () => this.show(r.name) }, r.name);
    element.dataset.value = r.name;
    return element;
  }

  async load() {
    if (this.busy) return;
    this.busy = true;
    try {
      const { pipelines, now_ns: now } = await this.app.connection.ask("pipelines");
      if (!pipelines.some((p) => p.root === this.root)) this.root = pipelines.length ? pipelines[0].root : null;
      put(this.list, pipelines.length ? h("div", { class: "choices" }, pipelines.map((p) => h("button", { type: "button", title: p.root, "aria-pressed": String(p.root === this.root), onclick: () => { this.root = p.root; this.sample.hidden = true; this.load(); } }, h("b", {}, base(p.root)), chip(p.error ? "unreadable" : p.is_running ? "running" : "at rest", p.error ? "bad" : p.is_running ? "good" : "")))) : h("p", { class: "muted" }, "none"));
      this.showPipeline(pipelines.find((p) => p.root === this.root), Number(BigInt(now) / 1000000n));
    } catch (error) { setText(this.note, error.message); this.showPipeline(undefined); }
    this.busy = false;
  }

  showPipeline(pipeline, now) {
    const good = pipeline && !pipeline.error;
    this.detail.hidden = !good;
    this.noteBox.hidden = Boolean(good);
    if (pipeline && pipeline.error) setText(this.note, pipeline.error);
    if (!good) return;
    setText(this.title, base(pipeline.root));
    const { streams } = this.app.connection.document;
    const last = Object.entries(pipeline.last_frames_ns).map(([id, at]) => [id, Number(BigInt(at) / 1000000n)]);
    const latest = Math.max(...last.map(([, at]) => at)), quiet = last.filter(([, at]) => latest - at > QUIET_MS);
    const name = (id) => (streams[id] && streams[id].name) || id;
    put(this.facts, facts([["root", pipeline.root], ["id", pipeline.id], ["lag", last.length ? `newest frame in the tables is ${ago(now - latest)} old` : "no frame yet"],
      ["streams", last.map(([id, at]) => `${name(id)} ${ago(now - at)} behind`).join(", ") || "none"], quiet.length ? ["gone quiet", quiet.map(([id]) => name(id)).join(", ")] : null,
      ...Object.entries(pipeline.pending).map(([alignment, n]) => [`waiting in ${alignment}`, `${whole(n)} frames`])]));
    this.stages.show(Object.entries(pipeline.stages).map(([stage, row]) => [stage, [stage, row]]));
    this.tables.show(pipeline.tables.map((row) => [row.name, row, row.name === this.shown && !this.sample.hidden ? "selected" : ""]));
  }

  async show(table) {
    this.shown = table;
    this.sample.hidden = false;
    try {
      const { columns, rows } = await this.app.connection.ask("table", { root: this.root, table });
      put(this.sample, h("header", {}, h("h2", {}, table), h("span", { class: "muted" }, `${whole(rows.length)} rows of its newest file`)),
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Rows of ${table}` }, h("table", {}, h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", { class: "mono" }, cell))))))));
    } catch (error) { put(this.sample, h("p", { class: "why bad" }, error.message)); }
    this.load();
  }

  async report() {
    try { await this.app.connection.ask("report", { root: this.root }); this.jobs.load(); } catch (error) { setText(this.note, error.message); this.noteBox.hidden = false; }
  }
}

function totalsText(totals) {
  return Object.entries(totals).map(([name, value]) => (typeof value === "object" && value ? `${name}: ${counts(value)}` : name === "bytes" ? bytes(value) : `${whole(value)} ${name}`)).join(" · ");
}
