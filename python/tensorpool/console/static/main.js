// The connection to the console's server, the document that it keeps, and the views.

import { $, ago, bytes, chip, clock, counts, css, facts, h, hertz, link, micros, number, perSecond, put, setText, streamName, Table, whole } from "./dom.js";
import { GraphView } from "./graph.js";
import { FrameViewer } from "./frame.js";
import { TimeView } from "./plots.js";
import { PipelinesView } from "./pipelines.js";
import { RecordingsView } from "./recordings.js";
import { ServicesView, orderButtons } from "./steering.js";

const SECTIONS = ["system", "streams", "consumers", "drivers", "recorders", "bridges", "services", "gone", "ledger", "notices"];

// Rows by keys that other processes choose: without a prototype, no key is special.
const rows = () => Object.create(null);

// --- connection

// A socket that brings nothing for so long is given up: after a sleep or a change of network no side reports its end.
const DEAD_MS = 15000;

export class Connection extends EventTarget {
  constructor() {
    super();
    this.document = Object.fromEntries(SECTIONS.map((name) => [name, rows()]));
    this.role = "watch";
    this.hello = null;
    this.updatedAt = 0;
    this.silent = 0;
    this.delay = 500;
    this.replies = new Map();
    this.nextId = 1;
    this.state = "connecting";
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}/ws`);
    this.socket.binaryType = "arraybuffer";
    this.openedAt = performance.now();
    this.socket.onmessage = (event) => this.onMessage(event.data);
    this.socket.onclose = (event) => this.ended(event.code);
  }

  ended(code) {
    const wasOpen = this.state === "live";
    for (const { reject } of this.replies.values()) reject(new Error("the connection has ended"));
    this.replies.clear();
    if (code === 4429) this.setState("full");
    else if (wasOpen || this.state !== "refused") this.setState("lost");
    if (!wasOpen) this.checkAccess();
    setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(this.delay * 1.7, 8000);
  }

  // A WebSocket does not say why it was refused; a request does.
  async checkAccess() {
    try {
      const { status } = await fetch("icon.svg", { cache: "no-store" });
      if (this.state !== "live" && (status === 401 || this.state === "refused")) this.setState(status === 401 ? "refused" : "lost");
    } catch { /* the console does not answer */ }
  }

  renewIfDead() {
    const isOpen = this.socket.readyState <= WebSocket.OPEN, since = Math.max(this.openedAt, this.state === "live" ? this.updatedAt : 0);
    if (!isOpen || performance.now() - since < DEAD_MS) return;
    this.socket.onmessage = this.socket.onclose = null;
    this.socket.close();
    this.ended(1006);
  }

  setState(state) { this.state = state; this.emit("state"); }
  emit(type, detail) { this.dispatchEvent(new CustomEvent(type, { detail })); }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  ask(what, args = {}) {
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      if (this.socket.readyState !== WebSocket.OPEN) { reject(new Error("not connected")); return; }
      this.replies.set(id, { resolve, reject });
      this.send({ type: "ask", id, what, arguments: args });
    });
  }

  onMessage(data) {
    if (data instanceof ArrayBuffer) { this.onBinary(data); return; }
    const message = JSON.parse(data);
    switch (message.type) {
      case "hello": this.hello = message; this.role = message.role; this.delay = 500; this.setState("live"); this.emit("hello"); this.emit("connected"); break;
      case "update": this.onUpdate(message); break;
      case "reply": {
        const waiting = this.replies.get(message.id);
        this.replies.delete(message.id);
        if (!waiting) break;
        if (message.error !== undefined) waiting.reject(new Error(message.error)); else waiting.resolve(message.result);
        break;
      }
      default: this.emit(message.type, message);
    }
  }

  onBinary(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    this.emit("frame", { header, buffer, offset: 4 + size });
  }

  onUpdate(message) {
    if (message.base === null) for (const name of SECTIONS) this.document[name] = rows();
    for (const [name, keys] of Object.entries(message.remove)) for (const key of keys) delete this.document[name][key];
    for (const [name, changed] of Object.entries(message.set)) {
      const section = (this.document[name] ??= rows());
      for (const [key, members] of Object.entries(changed)) {
        if (section[key]) Object.assign(section[key], members); else section[key] = members;
      }
    }
    this.updatedAt = performance.now();
    this.silent = message.silent_s;
    this.emit("update");
  }
}

// --- views of tables

class StreamsView {
  constructor(app) {
    this.app = app;
    this.search = h("input", { type: "search", placeholder: "Filter by name, id, tag or state", "aria-label": "Filter the streams", oninput: () => this.update() });
    this.count = h("span", { class: "muted" });
    this.table = new Table([
      { title: "stream", text: (r, k) => link(streamName(k, r), `#/frame/${k}`, "Show its frames"), value: (r, k) => r.name || k },
      { title: "id", text: (r, k) => k, value: (r, k) => Number(k), number: true },
      { title: "state", text: (r) => chip(r.state, r.health), value: (r) => r.state },
      { title: "rate", text: (r) => hertz(r.rate), value: (r) => r.rate, number: true },
      { title: "bandwidth", text: (r) => perSecond(r.bytes), value: (r) => r.bytes, number: true },
      { title: "p50", text: (r) => micros(r.p50), value: (r) => r.p50, number: true },
      { title: "p99", text: (r) => micros(r.p99), value: (r) => r.p99, number: true },
      { title: "lost/s", text: (r) => number(r.lost_s), value: (r) => r.lost_s, number: true },
      { title: "lost", text: (r) => whole(r.lost), value: (r) => r.lost, number: true },
      { title: "consumers", text: (r) => whole(r.consumers), value: (r) => r.consumers, number: true },
      { title: "memory", text: (r) => bytes(r.memory), value: (r) => r.memory, number: true },
      { title: "epochs", text: (r) => whole(r.epochs), value: (r) => r.epochs, number: true },
      { title: "tags", text: (r) => r.tags.join(" "), value: (r) => r.tags.join(" ") },
    ], { caption: "Streams", empty: "No stream matches." });
    this.table.body.addEventListener("click", (event) => {
      const tr = event.target.closest("tr");
      if (tr && !event.target.closest("a")) for (const [key, row] of this.table.rows) if (row === tr) app.select("stream", key);
    });
    this.element = h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Streams"), this.count, this.search), this.table.element);
  }

  update() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = Object.entries(this.app.connection.document.streams).filter(([key, row]) => {
      const text = `${key} ${row.name} ${row.state} ${row.tags.join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const selected = this.app.selected;
    setText(this.count, rows.length > 500 ? `the first 500 of ${whole(rows.length)}` : `${whole(rows.length)} streams`);
    this.table.show(rows.map(([key, row]) => [key, row, selected && selected.kind === "stream" && selected.key === key ? "selected" : ""]));
  }
}

class LedgerView {
  constructor(app) {
    this.app = app;
    this.only = h("input", { type: "checkbox", onchange: () => this.update() });
    this.summary = h("span", { class: "legend" });
    const name = (r) => streamName(r.stream, app.connection.document.streams[r.stream]);
    this.table = new Table([
      { title: "stream", text: (r) => name(r), value: name },
      { title: "path", text: (r) => r.path, value: (r) => r.path },
      { title: "endpoint", text: (r) => (r.label ? `${r.label} ${r.who}` : r.who), value: (r) => r.who },
      { title: "verdict", text: (r) => chip(r.verdict, { exact: "good", mismatch: "bad", settling: "warn", waiting: "", gone: "warn" }[r.verdict]), value: (r) => r.verdict },
      { title: "published", text: (r) => whole(r.published), value: (r) => r.published, number: true },
      { title: "delivered", text: (r) => whole(r.delivered), value: (r) => r.delivered, number: true },
      { title: "dropped", text: (r) => counts(r.dropped), value: (r) => Object.values(r.dropped).reduce((a, b) => a + b, 0) },
      { title: "waiting", text: (r) => whole(r.waiting), value: (r) => r.waiting, number: true },
      { title: "unaccounted", text: (r) => whole(r.unaccounted), value: (r) => Math.abs(r.unaccounted), number: true },
      { title: "what it means", class: "wrap", text: (r) => (r.problem ? `${r.problem}. ${r.meaning}` : r.ended ? "It has closed; every frame is accounted for." : r.meaning), value: (r) => r.meaning },
    ], { caption: "The ledger: what became of every frame on every path", empty: "No endpoint has reported yet." });
    this.element = h("section", { class: "panel" },
      h("header", {}, h("h2", {}, "Ledger"), this.summary, h("label", {}, this.only, " only mismatches")),
      h("p", { class: "body muted" }, "Published = delivered + dropped by reason + waiting, for every path of every frame."), this.table.element);
  }

  update() {
    const { ledger, system } = this.app.connection.document;
    const paths = (system[""] || {}).paths || {};
    put(this.summary, Object.entries(paths).map(([verdict, n]) => chip(`${whole(n)} ${verdict}`, { mismatch: "bad", exact: "good", settling: "warn", gone: "warn" }[verdict])));
    const order = { mismatch: 0, settling: 1 };
    const rows = Object.entries(ledger).filter(([, r]) => !this.only.checked || r.verdict === "mismatch");
    rows.sort((a, b) => (order[a[1].verdict] ?? 2) - (order[b[1].verdict] ?? 2) || a[1].stream - b[1].stream || a[1].path.localeCompare(b[1].path));
    this.table.show(rows.map(([key, row]) => [key, row, row.verdict === "mismatch" ? "bad" : row.verdict === "gone" ? "gone" : ""]), 1000);
  }
}

class SystemView {
  constructor(app) {
    this.app = app;
    this.graph = new GraphView(app);
    this.events = h("tbody");
    this.eventPanel = h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Events")),
      h("div", { class: "events", tabindex: "0", role: "log", "aria-label": "Events of the system" }, h("table", {}, this.events)));
    this.element = h("div", { class: "system" }, this.graph.element, this.eventPanel);
    this.shown = "";
  }

  get search() { return this.graph.search; }
  onShown() { this.graph.onShown(); }
  onHidden() { this.graph.onHidden(); }
  onConnected() { this.graph.loadPipelines(); }

  update() {
    this.graph.update();
    const { notices, streams, consumers, gone } = this.app.connection.document;
    const keys = Object.keys(notices);
    // Labels of consumers arrive after their first event.
    const version = `${keys.length}|${keys[keys.length - 1]}|${Object.values(consumers).filter((row) => row.label).length}`;
    if (version === this.shown) return;
    this.shown = version;
    const rows = Object.values(notices).sort((a, b) => b.at - a.at).slice(0, 60);
    put(this.events, rows.length ? rows.map((notice) => h("tr", {},
      h("td", { class: "muted mono" }, clock(notice.at)), h("td", {}, chip(notice.kind, { decision: "limited", order: "limited", lease: "warn", shutdown: "bad", mismatch: "bad" }[notice.kind])),
      h("td", {}, notice.stream === null ? "" : streamName(notice.stream, streams[notice.stream])), h("td", { class: "wrap" }, eventText(notice, consumers, gone))))
      : h("tr", {}, h("td", { class: "muted" }, "Nothing has happened since the console started.")));
  }
}

// The text of an event; consumers have their label beside their number.
function eventText(notice, consumers, gone) {
  return notice.text.replace(/\bconsumer (\d+)\b/, (text, id) => {
    const key = `${notice.stream}/${id}`, label = consumers[key] ? consumers[key].label : (gone[`consumer ${key}`] || {}).label;
    return label && label !== text ? `${text} (${label})` : text;
  });
}

// --- the application

class App {
  constructor() {
    this.connection = new Connection();
    this.selected = null;
    this.detail = null;
    this.views = new Map();
    this.makers = {
      system: { title: "System", make: () => new SystemView(this) },
      streams: { title: "Streams", make: () => new StreamsView(this) },
      frame: { title: "Frames", make: () => new FrameViewer(this) },
      time: { title: "Time", make: () => new TimeView(this) },
      ledger: { title: "Ledger", make: () => new LedgerView(this) },
      recordings: { title: "Recordings", make: () => new RecordingsView(this) },
      pipelines: { title: "Pipelines", make: () => new PipelinesView(this) },
      services: { title: "Services", make: () => new ServicesView(this) },
    };
    this.tabs = new Map();
    for (const [name, { title }] of Object.entries(this.makers)) {
      const anchor = h("a", { href: `#/${name}` }, title);
      this.tabs.set(name, anchor);
      $("tabs").append(anchor);
    }
    this.mismatches = h("span", { class: "chip bad count", hidden: true });
    this.tabs.get("ledger").append(this.mismatches);
    addEventListener("hashchange", () => this.route());
    this.connection.addEventListener("update", () => this.update());
    this.connection.addEventListener("state", () => this.showState());
    this.connection.addEventListener("hello", () => this.showRole());
    this.connection.addEventListener("connected", () => { this.select(this.selected && this.selected.kind, this.selected && this.selected.key, false); this.view && this.view.onConnected && this.view.onConnected(); });
    this.connection.addEventListener("detail", (event) => this.showDetail(event.detail));
    setInterval(() => { this.connection.renewIfDead(); this.showState(); }, 1000);
    $("theme").addEventListener("click", () => this.changeTheme());
    addEventListener("keydown", (event) => this.onKey(event));
    try { const theme = localStorage.getItem("theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* private windows */ }
    this.route();
  }

  changeTheme() {
    const dark = css("color-scheme") === "dark" || getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* private windows */ }
    this.update();
  }

  onKey(event) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
    const names = [...this.tabs.keys()], at = Number(event.key) - 1;
    if (at >= 0 && at < names.length) location.hash = `#/${names[at]}`;
    else if (event.key === "Escape") this.select(null);
    else if (event.key === "/" && this.view && this.view.search) { this.view.search.focus(); event.preventDefault(); }
  }

  route() {
    const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    const chosen = this.makers[name] ? name : "system";
    if (this.name !== chosen) {
      if (this.view && this.view.onHidden) this.view.onHidden();
      this.name = chosen;
      if (!this.views.has(chosen)) this.views.set(chosen, this.makers[chosen].make());
      this.view = this.views.get(chosen);
      put($("main"), this.view.element);
      for (const [key, tab] of this.tabs) if (key === chosen) tab.setAttribute("aria-current", "page"); else tab.removeAttribute("aria-current");
      document.title = `${this.makers[chosen].title} · TensorPool console`;
    }
    if (this.view.onShown) this.view.onShown(...rest);
    if (this.connection.updatedAt) this.view.update();
  }

  update() {
    const system = this.connection.document.system[""] || {};
    setText($("host"), system.host || "");
    const states = system.states || {}, paths = system.paths || {};
    const bad = paths.mismatch || 0;
    this.mismatches.hidden = !bad;
    setText(this.mismatches, String(bad));
    this.showTotals([
      ["streams", `${whole(states.live || 0)} of ${whole(system.streams)} live`],
      ["consumers", whole(system.consumers)],
      ["frames", hertz(system.rate)],
      ["bandwidth", perSecond(system.bytes)],
      ["p99", micros(system.p99)],
      ["lost", `${number(system.lost_s)}/s`, system.lost_s > 0 ? "warn" : ""],
      ["memory", bytes(system.memory)],
      ["ledger", bad ? `${whole(bad)} mismatches` : "adds up", bad ? "bad" : "good"],
    ]);
    this.showState();
    this.view.update();
  }

  showTotals(items) {
    const list = $("totals");
    if (list.children.length !== items.length) put(list, items.map(([name]) => h("div", {}, h("dt", {}, name), h("dd"))));
    items.forEach(([, text, kind], i) => { const dd = list.children[i].lastChild; setText(dd, text); dd.className = kind || ""; });
  }

  showRole() {
    const role = $("role");
    role.hidden = false;
    setText(role, this.connection.role === "steer" ? "steering" : "read-only");
    role.className = `chip ${this.connection.role === "steer" ? "limited" : ""}`;
  }

  showState() {
    const { connection } = this, box = $("link"), old = $("old");
    const age = connection.updatedAt ? performance.now() - connection.updatedAt : 0;
    const period = ((connection.hello && connection.hello.period_s) || 1) * 1000;
    let text = "live", kind = "good", notice = "";
    if (connection.state === "full") { text = "full"; kind = "bad"; notice = "The console has as many viewers as it allows. Close another window; this one tries again."; }
    else if (connection.state === "refused") {
      text = "no access"; kind = "bad";
      notice = `This console was started again and does not know this browser: open the address that it printed.${connection.updatedAt ? ` Data are ${ago(age)} old.` : ""}`;
    } else if (connection.state !== "live") {
      text = "reconnecting"; kind = "warn";
      if (connection.updatedAt) notice = `No connection to the console: data are ${ago(age)} old. This page reconnects by itself.`;
      else if (connection.delay > 2000) notice = "No connection to the console yet. If it was started again, open the address that it printed.";
    } else if (connection.updatedAt && age > 3 * period) { text = "old"; kind = "warn"; notice = `Data are ${ago(age)} old: the console sends no updates.`; }
    else if (connection.silent > 5) { text = "silent"; kind = "warn"; notice = `The system is silent: no message for ${Math.round(connection.silent)} s. Data are that old; is the driver running?`; }
    setText(box, text);
    box.className = `chip ${kind}`;
    old.hidden = !notice;
    setText(old, notice);
  }

  // Details of a thing, or the view that has them.
  open(kind, key) {
    if (kind === "pipeline") location.hash = `#/pipelines/${encodeURIComponent(key)}`; else this.select(kind, key);
  }

  select(kind, key, update = true) {
    this.selected = kind ? { kind, key } : null;
    this.detail = null;
    this.connection.send(this.selected ? { type: "select", kind, key } : { type: "select" });
    if (!kind) { $("drawer").hidden = true; }
    if (update && this.connection.updatedAt) this.view.update();
  }

  showDetail({ kind, key, view }) {
    if (!this.selected || this.selected.kind !== kind || this.selected.key !== key) return;
    const drawer = $("drawer"), doc = this.connection.document;
    drawer.hidden = false;
    const close = h("button", { class: "icon", type: "button", "aria-label": "Close the details", onclick: () => this.select(null) }, "✕");
    if (!view) {
      const gone = doc.gone[`${kind} ${key}`];
      put(drawer, h("header", {}, h("h2", {}, gone ? gone.label : `${kind} ${key}`), close),
        h("p", { class: "why" }, gone ? `It has left: ${gone.reason}.` : "It is not part of the system any more."));
      return;
    }
    const focus = document.activeElement && drawer.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const scroll = drawer.scrollTop;
    put(drawer, h("header", {}, h("h2", {}, detailTitle(kind, key, view)), close), detailBody(this, kind, key, view, doc));
    drawer.scrollTop = scroll;
    if (focus) { const again = drawer.querySelector(`[data-focus="${CSS.escape(focus)}"]`); if (again) again.focus(); }
  }
}

// --- details

function detailTitle(kind, key, view) {
  if (kind === "stream") return view.name || `stream ${key}`;
  if (kind === "consumer") return view.label || `consumer ${view.consumer_id}`;
  return `${kind} ${key.replace(/^service:/, "")}`;
}

const seconds = (ns) => (ns === null || ns === undefined ? "–" : `${(ns / 1e9).toFixed(1)} s`);

function latencyText(latency) {
  return latency ? `p50 ${micros(latency.p50_ns / 1e3)} · p99 ${micros(latency.p99_ns / 1e3)} · max ${micros(latency.max_ns / 1e3)}${latency.since ? ` since ${latency.since}` : ""}` : "–";
}

function detailBody(app, kind, key, view, doc) {
  if (kind === "stream") return streamDetail(app, key, view, doc);
  if (kind === "consumer") {
    const row = doc.consumers[key] || {};
    return [h("p", { class: `why ${row.health || ""}` }, row.why || ""),
      facts([["stream", link(streamName(view.stream_id, doc.streams[view.stream_id]), `#/frame/${view.stream_id}`)], ["id", view.consumer_id], ["process", view.pid], ["mode", view.mode], ["rate", hertz(view.rate_hz)],
        ["latency", latencyText(view.latency)], ["received", whole(view.received)], ["lost", `${number(view.dropped_per_s)}/s`], ["dropped", counts(view.dropped)], ["behind", whole(view.backlog)],
        ["first, last seq", `${view.first_seq ?? "–"}, ${view.last_seq ?? "–"}`], ["epoch", view.epoch], ["asked limit", view.max_rate_hz ? hertz(view.max_rate_hz) : "none"],
        ["per-consumer stream", view.per_consumer_stream_id || "no"], ["fallback", view.fallback_uri || "no"], ["reported", `${seconds(view.report_age_ns)} ago`]]),
      orderButtons(app, "consumer", key, view)];
  }
  const skip = new Set(["report_age_ns", "mappings", "written", "streams"]);
  const pairs = Object.entries(view).filter(([name]) => !skip.has(name)).map(([name, value]) => [name.replace(/_/g, " "), typeof value === "object" && value ? counts(value) : name.includes("bytes") || name === "quota" ? bytes(value) : value]);
  if (view.report_age_ns !== undefined) pairs.push(["reported", `${seconds(view.report_age_ns)} ago`]);
  return [facts(pairs), view.written && view.written.length ? h("section", {}, h("h3", {}, "Written"), h("div", { class: "scroll", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, ["stream", "rows", "gaps"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, view.written.map((w) => h("tr", {}, h("td", {}, streamName(w.stream_id, doc.streams[w.stream_id])), h("td", { class: "number" }, whole(w.rows)), h("td", {}, counts(w.gaps)))))))) : null,
    view.mappings ? view.mappings.map((m) => h("section", {}, h("h3", {}, `${m.direction} ${m.source_stream_id} → ${m.dest_stream_id}`),
      facts([["connected", m.connected ? "yes" : "no"], ["frames", whole(m.frames)], ["rate", hertz(m.frames_per_s)], ["dropped", counts(m.dropped)], ["network", whole(m.network)], m.fault ? ["fault", m.fault] : null]))) : null,
    kind === "service" || kind === "recorder" || kind === "driver" || kind === "bridge" ? h("div", { class: "actions" }, h("a", { href: `#/services/${encodeURIComponent(key)}`, "data-focus": "service" }, "Properties and commands")) : null,
    orderButtons(app, kind, key, view)];
}

function streamDetail(app, key, view, doc) {
  const row = doc.streams[key] || {}, producer = view.producer || {};
  const near = (ids) => (ids.length ? h("span", {}, ids.map((id, i) => [i ? ", " : "", link(streamName(id, doc.streams[id]), `#/frame/${id}`)])) : "none");
  return [
    view.summary ? h("p", { class: "muted" }, view.summary) : null,
    h("p", { class: `why ${row.health || ""}` }, row.why || ""),
    h("div", { class: "actions" }, h("a", { href: `#/frame/${key}`, "data-focus": "frames" }, "Frames"), h("a", { href: `#/time/${key}`, "data-focus": "time" }, "Over time")),
    facts([["id", key], ["state", chip(view.state, row.health)], ["rate", hertz(producer.rate_hz)], ["bandwidth", perSecond(producer.bytes_per_s)], ["latency", latencyText(view.latency)],
      ["dropped", counts(view.dropped)], ["memory", bytes(view.nbytes)], ["tags", view.tags.join(" ") || "none"], ["made from", near(view.sources)], ["used for", near(view.derived)]]),
    h("section", {}, h("h3", {}, "Producer"), view.producer ? facts([["id", producer.producer_id], ["process", producer.pid], ["sequence", producer.current_seq ?? "–"], ["committed", whole(producer.committed)], ["published", whole(producer.published)],
      ["unpublished", counts(producer.unpublished)], ["dropped", counts(producer.dropped)], ["slots in use", producer.watermark ?? "–"], ["reported", `${seconds(producer.report_age_ns)} ago`]]) : h("p", { class: "muted" }, "none")),
    h("section", {}, h("h3", {}, "Layout"), facts([["epoch", view.epoch], ["epochs seen", view.epochs], ["slots", view.nslots], ["pools", view.pools.map((p) => `${p.nslots} × ${bytes(p.stride_bytes)}`).join(", ") || "–"],
      ["announced", `${seconds(view.announce_age_ns)} ago`], ["activity", view.activity_age_ns === null ? "not readable" : `${seconds(view.activity_age_ns)} ago`]])),
    view.consumers.length ? h("section", {}, h("h3", {}, `Consumers (${view.consumers.length})`), h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, ["consumer", "rate", "p99", "lost"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, view.consumers.map((c) => h("tr", {}, h("td", {}, h("button", { type: "button", "data-focus": `c${c.consumer_id}`, onclick: () => app.select("consumer", `${key}/${c.consumer_id}`) }, c.label || c.consumer_id)),
        h("td", { class: "number" }, hertz(c.rate_hz)), h("td", { class: "number" }, c.latency ? micros(c.latency.p99_ns / 1e3) : "–"), h("td", { class: "number" }, number(c.dropped_per_s))))))) ) : null,
    view.leases.length ? h("section", {}, h("h3", {}, `Leases (${view.leases.length})`), h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, ["role", "client", "state", "expires"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, view.leases.map((lease) => h("tr", {}, h("td", {}, lease.role), h("td", {}, lease.client_id), h("td", {}, lease.state), h("td", {}, lease.expires_in_s === null ? "–" : `${lease.expires_in_s.toFixed(1)} s`),
        app.connection.role === "steer" ? h("td", {}, orderButtons(app, "lease", lease.lease_id, lease)) : null)))))) : null,
  ];
}

window.tensorpool = new App();
