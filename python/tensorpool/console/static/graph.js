// The system as a graph: processes, streams and the frames between them, in layers from left to right.
//
// The layout is made for this one graph: streams and processes alternate, so that a longest path gives the
// layers, and two sweeps by the mean of the neighbours give the order. It changes only when a node comes or
// leaves; figures, widths and colours change in place.

import { bytes, h, hertz, number, perSecond, put, s, setText, streamName, whole } from "./dom.js";

const CARD = { width: 188, height: 46 }, NARROW = { width: 150, height: 46 }, GAP = { x: 92, y: 16 }, MAX_STREAMS = 48, MAX_CONSUMERS = 8, TOP = 26;

export class GraphView {
  constructor(app) {
    this.app = app;
    this.search = h("input", { type: "search", placeholder: "Filter streams", "aria-label": "Filter the streams of the graph", oninput: () => this.update() });
    this.note = h("span", { class: "muted" });
    this.links = s("g");
    this.nodes = s("g");
    this.frames = s("g");
    this.svg = s("svg", { role: "group", "aria-label": "Streams and the processes that write and read them" }, this.frames, this.links, this.nodes);
    this.empty = h("p", { class: "empty" }, "No stream is announced here yet. ", h("code", {}, "tensorpool demo"), " starts some.");
    const legend = h("span", { class: "legend" }, ["good", "warn", "bad", "limited", "gone"].map((kind) => h("span", {}, h("i", { class: kind }), { good: "healthy", warn: "losing or quiet", bad: "stale or wrong", limited: "limited", gone: "has left" }[kind])));
    this.element = h("section", { class: "panel graph" }, h("header", {}, h("h2", {}, "System"), this.note, legend, this.search), this.canvas = h("div", { class: "canvas", tabindex: "0", role: "region", "aria-label": "Graph of the system" }, this.svg, this.empty));
    new ResizeObserver(() => { if (app.connection.updatedAt && this.element.isConnected) this.update(); this.scale(); }).observe(this.canvas);
    this.byKey = new Map();
    this.linkByKey = new Map();
    this.shape = "";
  }

  update() {
    const graph = build(this.app.connection.document, this.search.value.toLowerCase(), this.app.selected);
    this.empty.hidden = graph.nodes.size > 0;
    this.svg.style.display = graph.nodes.size ? "" : "none";
    setText(this.note, graph.hidden ? `${whole(graph.hidden)} more streams: filter to see them` : "");
    const shape = [...graph.nodes.keys()].join(" ") + "|" + [...graph.links.keys()].join(" ");
    const box = this.canvas, room = [box.clientWidth, box.clientHeight].map((side) => Math.round(side / 40)).join("x");
    if (shape !== this.shape || room !== this.room) {
      const card = box.clientWidth < 620 ? NARROW : CARD;
      if (card !== this.card) { this.card = card; this.byKey.clear(); }
      this.shape = shape; this.room = room;
      layout(graph, card, box.clientWidth / Math.max(200, box.clientHeight));
      this.place(graph);
    }
    for (const [key, node] of graph.nodes) this.showNode(this.byKey.get(key), node);
    for (const [key, link] of graph.links) this.showLink(this.linkByKey.get(key), link);
  }

  place(graph) {
    const keep = new Map();
    for (const [key, node] of graph.nodes) {
      const old = this.byKey.get(key) || this.makeNode(key, node);
      old.setAttribute("transform", `translate(${node.x},${node.y})`);
      keep.set(key, old);
    }
    put(this.nodes, [...keep.values()]);
    this.byKey = keep;
    const links = new Map();
    for (const [key, link] of graph.links) {
      const group = s("g", {}, s("path", { class: "link" }));
      const from = graph.nodes.get(link.from), to = graph.nodes.get(link.to);
      const { card } = this, x1 = from.x + card.width, y1 = from.y + card.height / 2, x2 = to.x, y2 = to.y + card.height / 2;
      const bend = Math.max(36, Math.abs(x2 - x1) / 2);
      group.firstChild.setAttribute("d", `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`);
      if (link.limit !== undefined) {
        const x = (x1 + x2) / 2, y = (y1 + y2) / 2;
        group.append(s("path", { class: "limiter", d: `M${x},${y - 7} l7,7 l-7,7 l-7,-7 z` }), s("text", { class: "limit-text", x: x + 12, y: y + (y2 > y1 ? -4 : 12) }));
      }
      links.set(key, group);
    }
    put(this.links, [...links.values()]);
    this.linkByKey = links;
    const host = (this.app.connection.document.system[""] || {}).host || "";
    put(this.frames, s("rect", { class: "frame", x: 6, y: 6, width: graph.width - 12, height: graph.height - 12, rx: 10 }), s("text", { class: "sub", x: 18, y: 20 }, `host ${host}`));
    this.size = [graph.width, graph.height];
    this.svg.setAttribute("viewBox", `0 0 ${graph.width} ${graph.height}`);
    this.scale();
  }

  // As large as fits, within what can be read: small on a phone, large on a wall.
  scale() {
    if (!this.size) return;
    const [width, height] = this.size, box = this.canvas;
    const fit = Math.min((box.clientWidth - 4) / width, Math.max(box.clientHeight - 4, 200) / height);
    const scale = Math.max(.66, Math.min(innerWidth > 2200 ? 4 : 1.6, fit));
    this.svg.setAttribute("width", Math.round(width * scale));
    this.svg.setAttribute("height", Math.round(height * scale));
  }

  makeNode(key, node) {
    const open = () => { const now = this.current && this.current.get(key); const target = (now || node).target; if (target) this.app.select(...target); };
    return s("g", { class: "node", tabindex: "0", role: "button", "data-key": key, onclick: open, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } } },
      s("title"), s("rect", { class: "card", width: this.card.width, height: this.card.height, rx: 7 }), s("rect", { class: "edge", width: 4, height: this.card.height - 14, x: 6, y: 7, rx: 2 }),
      s("text", { x: 18, y: 19 }), s("text", { class: "sub", x: 18, y: 35 }));
  }

  showNode(element, node) {
    const { selected } = this.app;
    const chosen = selected && node.target && node.target[0] === selected.kind && node.target[1] === selected.key && (selected.kind !== "stream" || node.key === `s${selected.key}`);
    const name = `node ${node.kind} ${node.health}${chosen ? " selected" : ""}`;
    if (element.getAttribute("class") !== name) element.setAttribute("class", name);
    const [title, , , head, sub] = element.children;
    const isNarrow = this.card === NARROW;
    setText(head, clip(node.label, isNarrow ? 19 : 25));
    setText(sub, clip(node.sub, isNarrow ? 22 : 28));
    const text = `${node.kindText} ${node.label}: ${node.sub}. ${node.why || ""}`;
    setText(title, text);
    if (element.getAttribute("aria-label") !== text) element.setAttribute("aria-label", text);
    (this.current ??= new Map()).set(node.key, node);
  }

  showLink(element, link) {
    const path = element.firstChild, name = `link ${link.health} ${link.kind || ""}`;
    if (path.getAttribute("class") !== name) path.setAttribute("class", name);
    path.setAttribute("stroke-width", width(link.bytes));
    if (link.limit !== undefined && element.lastChild !== path) setText(element.lastChild, link.limit);
  }
}

const clip = (text, size) => (text.length > size ? `${text.slice(0, size - 1)}…` : text);
const width = (value) => (value ? Math.min(11, 1.2 + Math.log2(1 + value / 2e5)).toFixed(2) : 1.2);

// Streams to show: those that match, or the selected, unhealthy and largest ones.
function chosenStreams(doc, filter, selected) {
  const all = Object.entries(doc.streams).filter(([key, row]) => !filter || `${key} ${row.name} ${row.tags.join(" ")} ${row.state}`.toLowerCase().includes(filter));
  const picked = selected && (selected.kind === "stream" ? selected.key : selected.kind === "consumer" ? selected.key.split("/")[0] : null);
  const weight = ([key, row]) => (key === picked ? 1e18 : 0) + (row.health === "bad" ? 1e15 : row.health === "warn" ? 1e14 : 0) + (row.bytes || 0) + row.consumers;
  const order = all.length > MAX_STREAMS ? all.sort((a, b) => weight(b) - weight(a) || Number(a[0]) - Number(b[0])) : all;
  return { shown: new Map(order.slice(0, MAX_STREAMS)), hidden: Math.max(0, all.length - MAX_STREAMS) };
}

function build(doc, filter, selected) {
  const { shown, hidden } = chosenStreams(doc, filter, selected);
  const nodes = new Map(), links = new Map();
  const add = (key, node) => { if (!nodes.has(key)) nodes.set(key, { key, ...node }); return nodes.get(key); };
  const join = (from, to, more) => links.set(`${from}>${to}`, { from, to, ...more });
  const services = servicePids(doc), makers = new Map();
  for (const [key, row] of shown) {
    add(`s${key}`, { kind: "stream", kindText: "Stream", label: streamName(key, row), sub: `${hertz(row.rate)} · ${perSecond(row.bytes)}`, health: row.health, why: row.why, target: ["stream", key] });
    if (row.producer !== null) {
      // A process that makes its stream from others stands between them; sources of one process are one node.
      const name = row.sources.length ? `x${row.pid}:${key}` : `p${row.pid ?? key}`;
      const process = processNode(add, services.get(row.pid)?.writes.has(key) ? services : null, row.pid, name, "Producer", { label: `producer ${row.producer}`, target: ["stream", key] });
      process.makes = (process.makes || 0) + 1;
      if (process.makes > 1) process.label = `process ${row.pid}`;
      if (!process.fixed) process.sub = process.makes > 1 ? `produces ${process.makes} streams` : `process ${row.pid ?? "unknown"}`;
      makers.set(`${row.pid}:${key}`, process);
      join(process.key, `s${key}`, { health: row.health === "bad" ? "bad" : "good", bytes: row.bytes });
    }
  }
  const transformers = [...shown].filter(([, row]) => row.sources.length && row.producer !== null);
  const perStream = new Map();
  for (const [key, row] of Object.entries(doc.consumers)) {
    const stream = shown.get(String(row.stream));
    if (!stream) continue;
    const count = (perStream.get(row.stream) || 0) + 1;
    perStream.set(row.stream, count);
    if (count > MAX_CONSUMERS && row.health === "good") continue;
    const size = stream.rate && stream.bytes && row.rate !== null ? (stream.bytes / stream.rate) * row.rate : 0;
    const made = row.pid === null ? undefined : transformers.find(([, other]) => other.pid === row.pid && other.sources.includes(row.stream));
    const process = made ? makers.get(`${row.pid}:${made[0]}`) : processNode(add, !row.label && services.get(row.pid)?.reads.has(String(row.stream)) ? services : null, row.pid, row.pid !== null && row.label ? `c${row.pid}:${row.label}` : `e${key}`, "Consumer", { label: row.label || `consumer ${row.id}`, target: ["consumer", key] });
    if (made && row.label) process.label = row.label;
    if (worse(row.health, process.health)) { process.health = row.health; process.why = row.why; }
    process.reads = (process.reads || 0) + 1;
    if (!process.fixed) process.sub = process.reads > 1 ? `reads ${process.reads} streams` : `${hertz(row.rate)}${row.lost_s ? ` · loses ${number(row.lost_s)}/s` : ""}`;
    join(`s${row.stream}`, process.key, { health: row.health, bytes: size, limit: row.mode === "rate_limited" ? (row.limit ? `≤ ${row.limit} Hz` : "limited") : undefined });
  }
  for (const [stream, count] of perStream) {
    const more = count - MAX_CONSUMERS;
    if (more > 0) { add(`m${stream}`, { kind: "more", kindText: "Consumers", label: `${whole(more)} more consumers`, sub: "select the stream to see them", health: "good", target: ["stream", String(stream)] }); join(`s${stream}`, `m${stream}`, { health: "good", bytes: 0 }); }
  }
  for (const [tag, row] of Object.entries(doc.recorders)) for (const stream of row.streams) {
    if (!shown.has(String(stream))) continue;
    const node = serviceNode(add, services, row.pid, tag, "recorder", row);
    join(`s${stream}`, node.key, { health: row.health, bytes: shown.get(String(stream)).bytes });
  }
  for (const [tag, row] of Object.entries(doc.bridges)) for (const mapping of row.mappings) {
    const node = serviceNode(add, services, row.pid, tag, "bridge", row);
    if (mapping.direction === "send" && shown.has(String(mapping.source))) join(`s${mapping.source}`, node.key, { health: mapping.connected ? "good" : "bad", bytes: shown.get(String(mapping.source)).bytes });
    if (mapping.direction === "receive" && shown.has(String(mapping.dest))) join(node.key, `s${mapping.dest}`, { health: mapping.connected && !mapping.fault ? "good" : "bad", bytes: shown.get(String(mapping.dest)).bytes });
  }
  // Lineage that no process here shows, as across a bridge.
  for (const [key, row] of shown) for (const source of row.sources) {
    if (shown.has(String(source)) && String(source) !== key && !isJoined(links, `s${source}`, `s${key}`)) join(`s${source}`, `s${key}`, { health: "good", kind: "lineage", bytes: 0 });
  }
  for (const gone of Object.values(doc.gone)) {
    const stream = gone.stream === null ? null : `s${gone.stream}`;
    if (gone.kind === "stream" && !filter) add(`s${gone.key}`, { kind: "gone", kindText: "Stream", label: gone.label, sub: gone.reason, health: "gone", target: ["stream", gone.key], why: "It has left." });
    else if (gone.kind === "driver" || gone.kind === "bridge" || gone.kind === "recorder") add(`g${gone.kind}${gone.key}`, { kind: "gone", kindText: gone.kind, label: gone.label, sub: gone.reason, health: "gone", why: "It has left.", target: [gone.kind, gone.key] });
    else if (stream && nodes.has(stream)) {
      const key = `g${gone.kind}${gone.key}`;
      add(key, { kind: "gone", kindText: gone.kind, label: gone.label, sub: gone.reason, health: "gone", target: [gone.kind === "producer" ? "stream" : gone.kind, gone.kind === "producer" ? String(gone.stream) : gone.key], why: "It has left." });
      if (gone.kind === "producer") join(key, stream, { health: "gone", bytes: 0 }); else join(stream, key, { health: "gone", bytes: 0 });
    }
  }
  const apart = [];
  for (const [tag, row] of Object.entries(doc.drivers)) apart.push(serviceNode(add, services, `d${tag}`, tag, "driver", row));
  for (const row of Object.values(doc.services)) {
    const name = row.tag.replace(/^service:/, "");
    if (/^(driver|recorder|bridge)(:|$)/.test(name)) continue;
    apart.push(add(`v${row.tag}${row.pid}`, { kind: "service", target: ["service", row.tag], kindText: "Service", label: name, sub: `process ${row.pid}`, health: "good", why: "It answers." }));
  }
  for (const node of apart) node.apart = true;
  return { nodes, links, hidden };
}

// A recorder or bridge has consumers and producers of its own, which are not shown beside it. A program may embed
// one: its other endpoints stand for themselves.
function servicePids(doc) {
  const pids = new Map();
  for (const [tag, row] of Object.entries(doc.recorders)) pids.set(row.pid, { tag, kind: "recorder", row, reads: new Set(row.streams.map(String)), writes: new Set() });
  for (const [tag, row] of Object.entries(doc.bridges)) pids.set(row.pid, { tag, kind: "bridge", row, reads: new Set(row.mappings.filter((m) => m.direction === "send").map((m) => String(m.source))), writes: new Set(row.mappings.filter((m) => m.direction === "receive").map((m) => String(m.dest))) });
  return pids;
}

function processNode(add, services, pid, key, kindText, more) {
  const service = services ? services.get(pid) : undefined;
  if (service) return serviceNode(add, services, pid, service.tag, service.kind, service.row);
  return add(key, { kind: "process", kindText, health: "good", sub: "", ...more });
}

const SERVICE_TEXT = {
  driver: (row) => `${whole(row.streams)} streams · ${bytes(row.memory)}`,
  recorder: (row) => `${row.state} · ${perSecond(row.bytes)}`,
  bridge: (row) => `${whole(row.mappings.length)} mappings`,
};

function serviceNode(add, services, pid, tag, kind, row) {
  const node = add(`${kind}:${tag}`, { kind: "service", kindText: kind, label: kind === "driver" ? `driver ${row.namespace}` : tag.replace(/^service:/, ""), health: row.health, target: [kind, tag], fixed: true });
  node.sub = SERVICE_TEXT[kind](row);
  node.why = row.problem || "";
  return node;
}

function isJoined(links, from, to) {
  for (const link of links.values()) if (link.from === from) for (const next of links.values()) if (next.from === link.to && next.to === to) return true;
  return false;
}

const RANK = { gone: 0, good: 1, idle: 1, limited: 2, warn: 3, bad: 4 };
const worse = (a, b) => (RANK[a] || 0) > (RANK[b] || 0);

// `ratio`: width by height of the room; wider room gives wider gaps, a phone narrow ones.
function layout(graph, card, ratio) {
  const { nodes, links } = graph;
  const out = new Map(), into = new Map();
  for (const key of nodes.keys()) { out.set(key, []); into.set(key, []); }
  for (const link of links.values()) { out.get(link.from).push(link.to); into.get(link.to).push(link.from); }
  // Longest path; a cycle (a process that reads what it writes) ends where it began.
  const rank = new Map(), open = new Set();
  const visit = (key) => {
    if (rank.has(key)) return rank.get(key);
    if (open.has(key)) return -1;
    open.add(key);
    const value = Math.max(-1, ...into.get(key).map(visit)) + 1;
    open.delete(key);
    rank.set(key, value);
    return value;
  };
  for (const [key, node] of nodes) if (!node.apart) visit(key);
  // Streams without a producer stand below the streams, not below the producers.
  for (const [key, node] of nodes) if (!node.apart && key.startsWith("s") && rank.get(key) === 0) rank.set(key, 1);
  for (const [key, node] of nodes) if (!node.apart && !key.startsWith("s") && into.get(key).length) rank.set(key, Math.max(...into.get(key).map((k) => rank.get(k))) + 1);
  const layers = [];
  for (const [key, node] of nodes) if (!node.apart) (layers[rank.get(key)] ??= []).push(key);
  const columns = layers.filter(Boolean);
  const place = new Map();
  const number = (keys) => keys.forEach((key, i) => place.set(key, i));
  columns.forEach(number);
  const mean = (keys) => (keys.length ? keys.reduce((sum, key) => sum + (place.get(key) ?? 0), 0) / keys.length : null);
  for (let sweep = 0; sweep < 3; sweep += 1) {
    for (const column of sweep % 2 ? [...columns].reverse() : columns) {
      const weights = new Map(column.map((key) => [key, mean(sweep % 2 ? out.get(key) : into.get(key)) ?? place.get(key)]));
      column.sort((a, b) => weights.get(a) - weights.get(b));
      number(column);
    }
  }
  const rows = Math.max(1, ...columns.map((column) => column.length));
  const apart = [...nodes.values()].filter((node) => node.apart);
  const step = card.height + GAP.y, above = apart.length ? step + 8 : 0;
  const tall = rows * step, wanted = (TOP + above + tall + 10) * ratio;
  const gap = Math.max(card === NARROW ? 34 : GAP.x, Math.min(260, (wanted - 44 - columns.length * card.width) / Math.max(1, columns.length - 1)));
  columns.forEach((column, x) => {
    const start = TOP + above + (tall - column.length * step) / 2;
    column.forEach((key, y) => Object.assign(nodes.get(key), { x: Math.round(22 + x * (card.width + gap)), y: Math.round(start + y * step) }));
  });
  apart.forEach((node, i) => Object.assign(node, { x: 22 + i * (card.width + 16), y: TOP + 4 }));
  graph.width = Math.round(Math.max(22 + columns.length * (card.width + gap) - gap + 22, 22 + apart.length * (card.width + 16) + 10, 320));
  graph.height = TOP + above + tall + 10;
}
