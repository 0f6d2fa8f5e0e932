// The system as a graph: processes, streams and the frames between them, in layers from left to right.
//
// The layout is made for this one graph: streams and processes alternate, so that a longest path gives the
// layers, and two sweeps by the mean of the neighbours give the order. It changes only when a node comes or
// leaves; figures, widths and colours change in place.

import { bytes, h, hertz, number, perSecond, put, s, setText, streamName, whole } from "./dom.js";

const CARD = { width: 188, height: 46 }, NARROW = { width: 150, height: 46 }, GAP = { x: 92, y: 16 }, MAX_STREAMS = 48, MAX_CONSUMERS = 8, MAX_PIPELINES = 8, TOP = 26, PIPELINES_MS = 10000;

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
    this.current = new Map();
    this.linkByKey = new Map();
    this.shape = "";
    this.pipelines = [];
  }

  onShown() { this.loadPipelines(); clearInterval(this.timer); this.timer = setInterval(() => this.loadPipelines(), PIPELINES_MS); }
  onHidden() { clearInterval(this.timer); }

  async loadPipelines() {
    if (this.busy) return;
    this.busy = true;
    try { this.pipelines = (await this.app.connection.ask("pipelines")).pipelines; } catch { /* not connected, or no pipelines here */ }
    this.busy = false;
  }

  update() {
    const graph = build(this.app.connection.document, this.search.value.toLowerCase(), this.app.selected, this.pipelines);
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
    } else this.show(graph);
  }

  show(graph) {
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
        group.append(s("path", { class: "limiter", d: `M${x},${y - 7} l7,7 l-7,7 l-7,-7 z` }), this.card === NARROW ? s("text", { class: "limit-text", x, y: y - 11, "text-anchor": "middle" }) : s("text", { class: "limit-text", x: x + 12, y: y + (y2 > y1 ? -4 : 12) }));
      }
      links.set(key, group);
    }
    this.linkByKey = links;
    // Only nodes that are there: a page stays open for weeks while consumers come and leave.
    this.current = new Map();
    // What is shown comes before the elements are part of the page: otherwise they would fade in from no colour.
    this.show(graph);
    put(this.nodes, [...keep.values()]);
    put(this.links, [...links.values()]);
    put(this.frames, graph.hosts.map(({ x, width: size, label }) => [s("rect", { class: "frame", x, y: 6, width: size, height: graph.height - 12, rx: 10 }), s("text", { class: "sub", x: x + 12, y: 20 }, clip(label, Math.floor(size / 7)))]));
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
    const open = () => { const now = this.current.get(key); const target = (now || node).target; if (target) this.app.open(...target); };
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
    this.current.set(node.key, node);
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

function build(doc, filter, selected, pipelines) {
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
      const process = processNode(add, services.get(row.pid)?.find((service) => service.writes.has(key)), name, "Producer", { label: `producer ${row.producer}`, target: ["stream", key] });
      process.makes = (process.makes || 0) + 1;
      if (process.makes > 1) process.label = `process ${row.pid}`;
      if (!process.fixed) process.sub = process.makes > 1 ? `produces ${process.makes} streams` : `process ${row.pid ?? "unknown"}`;
      makers.set(`${row.pid}:${key}`, process);
      join(process.key, `s${key}`, { health: row.health === "bad" ? "bad" : "good", bytes: row.bytes });
    }
  }
  const transformers = [...shown].filter(([, row]) => row.sources.length && row.producer !== null);
  // A limiter names its stream: other consumers of its process do not make it.
  const limited = new Set(Object.values(doc.consumers).map((row) => LIMITER.exec(row.label || "")).filter(Boolean).map((match) => match[1]));
  const perStream = new Map();
  for (const [key, row] of Object.entries(doc.consumers)) {
    const stream = shown.get(String(row.stream));
    if (!stream) continue;
    const count = (perStream.get(row.stream) || 0) + 1;
    perStream.set(row.stream, count);
    if (count > MAX_CONSUMERS && row.health === "good") continue;
    const size = stream.rate && stream.bytes && row.rate !== null ? (stream.bytes / stream.rate) * row.rate : 0;
    const limiter = LIMITER.exec(row.label || ""), made = row.pid === null ? undefined : transformers.find(([id, other]) => other.pid === row.pid && other.sources.includes(row.stream) && (limiter ? limiter[1] === id : !limited.has(id)));
    const process = made ? makers.get(`${row.pid}:${made[0]}`) : processNode(add, row.label ? undefined : services.get(row.pid)?.find((service) => service.reads.has(String(row.stream))), row.pid !== null && row.label ? `c${row.pid}:${row.label}` : `e${key}`, "Consumer", { label: row.label || `consumer ${row.id}`, target: ["consumer", key] });
    if (made && row.label) process.label = row.label;
    if (made && limiter) Object.assign(process, { kind: "process limiter-node", kindText: "Limiter", label: "limiter", target: ["consumer", key], fixed: true, sub: `${hertz(stream.rate)} to ${hertz(made[1].rate)}` });
    else if (SPARK.test(row.label || "")) process.kindText = "Spark query";
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
    const node = serviceNode(add, tag, "recorder", row);
    join(`s${stream}`, node.key, { health: row.health, bytes: shown.get(String(stream)).bytes });
  }
  for (const [tag, row] of Object.entries(doc.bridges)) for (const mapping of row.mappings) {
    const node = serviceNode(add, tag, "bridge", row);
    const { source, dest, connected } = mapping, health = connected && !mapping.fault ? "good" : "bad";
    const isHere = (direction) => Object.values(doc.bridges).some((other) => other.mappings.some((m) => m.direction === direction && m.source === source && m.dest === dest));
    if (mapping.direction === "send" && shown.has(String(source))) {
      const size = shown.get(String(source)).bytes;
      join(`s${source}`, node.key, { health: connected ? "good" : "bad", bytes: size });
      // The receiver is part of another system, on another host: only its address is known.
      if (!isHere("receive")) { add(`fs${mapping.peer}/${dest}`, { kind: "process far", kindText: "Stream of another host", label: dest === source ? streamName(source, shown.get(String(source))) : `stream ${dest}`, sub: mapping.peer, health, far: "to", why: mapping.fault || "", target: ["bridge", tag] }); join(node.key, `fs${mapping.peer}/${dest}`, { health, bytes: size }); }
    }
    if (mapping.direction === "receive" && shown.has(String(dest))) {
      const size = shown.get(String(dest)).bytes;
      join(node.key, `s${dest}`, { health, bytes: size });
      if (!isHere("send")) { add(`fr${tag}/${source}`, { kind: "process far", kindText: "Stream of another host", label: source === dest ? streamName(dest, shown.get(String(dest))) : `stream ${source}`, sub: hertz(mapping.rate), health, far: "from", why: mapping.fault || "", target: ["bridge", tag] }); join(`fr${tag}/${source}`, node.key, { health, bytes: size }); }
    }
  }
  for (const pipeline of pipelines.slice(0, MAX_PIPELINES)) addPipeline(pipeline, shown, doc, nodes, add, join);
  // Lineage that no process here shows, as across a bridge.
  for (const [key, row] of shown) for (const source of row.sources) {
    if (shown.has(String(source)) && String(source) !== key && !isJoined(links, `s${source}`, `s${key}`)) join(`s${source}`, `s${key}`, { health: "good", kind: "lineage", bytes: 0 });
  }
  const gone = Object.values(doc.gone), departed = (row, more) => add(`g${row.kind}${row.key}`, { kind: "gone", kindText: row.kind, label: row.label, sub: row.reason, health: "gone", why: "It has left.", target: [row.kind, row.key], ...more });
  if (!filter) for (const row of gone) if (row.kind === "stream") add(`s${row.key}`, { kind: "gone", kindText: "Stream", label: row.label, sub: row.reason, health: "gone", target: ["stream", row.key], why: "It has left." });
  for (const row of gone) {
    const stream = row.stream === null ? null : `s${row.stream}`;
    if (row.kind === "producer" && nodes.has(stream)) { departed(row, { target: ["stream", String(row.stream)] }); join(`gproducer${row.key}`, stream, { health: "gone", bytes: 0 }); }
    else if (row.kind === "consumer" && nodes.has(stream)) { departed(row); join(stream, `gconsumer${row.key}`, { health: "gone", bytes: 0 }); }
    else if (stream === null) departed(row, { apart: true });
  }
  const apart = [], limiters = new Set(Object.values(doc.consumers).filter((row) => LIMITER.test(row.label || "")).map((row) => row.pid));
  for (const [tag, row] of Object.entries(doc.drivers)) apart.push(serviceNode(add, tag, "driver", row));
  for (const row of Object.values(doc.services)) {
    const name = row.tag.replace(/^service:/, "");
    if (/^(driver|recorder|bridge)(:|$)/.test(name) || (/^limiter(:|$)/.test(name) && limiters.has(row.pid))) continue;
    apart.push(add(`v${row.tag}${row.pid}`, { kind: "service", target: ["service", row.tag], kindText: "Service", label: name, sub: `process ${row.pid}`, health: "good", why: "It answers." }));
  }
  for (const node of apart) node.apart = true;
  return { nodes, links, hidden, host: (doc.system[""] || {}).host || "" };
}

// A pipeline reads what a recorder of its streams has written, or the streams themselves.
function addPipeline(row, shown, doc, nodes, add, join) {
  const ids = row.error ? [] : Object.keys(row.last_frames_ns), name = row.root.replace(/\/+$/, "").split("/").pop();
  const node = add(`y${row.root}`, { kind: "service", kindText: "Pipeline, Spark queries", label: `pipeline ${name}`, sub: row.error ? "unreadable" : row.is_running ? "running" : "at rest", health: row.error ? "bad" : row.is_running ? "good" : "idle", why: row.error || "", target: ["pipeline", row.root], fixed: true });
  for (const id of ids) {
    if (!shown.has(id)) continue;
    const recorders = Object.entries(doc.recorders).filter(([tag, r]) => r.streams.includes(Number(id)) && nodes.has(`recorder:${tag}`)).map(([tag]) => `recorder:${tag}`);
    for (const from of recorders.length ? recorders : [`s${id}`]) join(from, node.key, { health: row.is_running ? "good" : "idle", kind: "lineage", bytes: 0 });
  }
}

// A recorder or bridge has consumers and producers of its own, which are not shown beside it. A program may embed
// one: its other endpoints stand for themselves.
function servicePids(doc) {
  const pids = new Map();
  const put = (pid, service) => { if (pids.has(pid)) pids.get(pid).push(service); else pids.set(pid, [service]); };
  for (const [tag, row] of Object.entries(doc.recorders)) put(row.pid, { tag, kind: "recorder", row, reads: new Set(row.streams.map(String)), writes: new Set() });
  for (const [tag, row] of Object.entries(doc.bridges)) put(row.pid, { tag, kind: "bridge", row, reads: new Set(row.mappings.filter((m) => m.direction === "send").map((m) => String(m.source))), writes: new Set(row.mappings.filter((m) => m.direction === "receive").map((m) => String(m.dest))) });
  return pids;
}

function processNode(add, service, key, kindText, more) {
  return service ? serviceNode(add, service.tag, service.kind, service.row) : add(key, { kind: "process", kindText, health: "good", sub: "", ...more });
}

const SERVICE_TEXT = {
  driver: (row) => `${whole(row.streams)} streams · ${bytes(row.memory)}`,
  recorder: (row) => `${row.state} · ${perSecond(row.bytes)}`,
  bridge: (row) => `${whole(row.mappings.length)} mappings`,
};

function serviceNode(add, tag, kind, row) {
  const node = add(`${kind}:${tag}`, { kind: "service", kindText: kind, label: kind === "driver" ? `driver ${row.namespace}` : tag.replace(/^service:/, ""), health: row.health, target: [kind, tag], fixed: true });
  node.sub = SERVICE_TEXT[kind](row);
  node.why = row.problem || "";
  return node;
}

function isJoined(links, from, to) {
  for (const link of links.values()) if (link.from === from) for (const next of links.values()) if (next.from === link.to && next.to === to) return true;
  return false;
}

const LIMITER = /^limiter to (\d+)$/, SPARK = /^Spark( query|$)/;
const RANK = { gone: 0, good: 1, idle: 1, limited: 2, warn: 3, bad: 4 };
const worse = (a, b) => (RANK[a] || 0) > (RANK[b] || 0);

// `ratio`: width by height of the room; wider room gives wider gaps, a phone narrow ones.
function layout(graph, card, ratio) {
  const { nodes, links } = graph;
  const out = new Map(), into = new Map(), isFar = (key) => Boolean(nodes.get(key).far);
  for (const key of nodes.keys()) { out.set(key, []); into.set(key, []); }
  for (const link of links.values()) if (!isFar(link.from) && !isFar(link.to)) { out.get(link.from).push(link.to); into.get(link.to).push(link.from); }
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
  for (const [key, node] of nodes) if (!node.apart && !node.far) visit(key);
  // Streams without a producer stand below the streams, not below the producers.
  for (const [key, node] of nodes) if (!node.apart && !node.far && key.startsWith("s") && rank.get(key) === 0) rank.set(key, 1);
  for (const [key, node] of nodes) if (!node.apart && !node.far && !key.startsWith("s") && into.get(key).length) rank.set(key, Math.max(...into.get(key).map((k) => rank.get(k))) + 1);
  const layers = [];
  for (const [key, node] of nodes) if (!node.apart && !node.far) (layers[rank.get(key)] ??= []).push(key);
  const columns = layers.filter(Boolean);
  // Streams of other hosts stand outside of this one.
  const [from, to] = ["from", "to"].map((side) => [...nodes.values()].filter((node) => node.far === side).map((node) => node.key));
  for (const link of links.values()) if (isFar(link.from) || isFar(link.to)) { out.get(link.from).push(link.to); into.get(link.to).push(link.from); }
  if (from.length) columns.unshift(from);
  if (to.length) columns.push(to);
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
  const perRow = Math.max(2, columns.length - (from.length ? 1 : 0) - (to.length ? 1 : 0));
  const step = card.height + GAP.y, above = apart.length ? Math.ceil(apart.length / perRow) * step + 8 : 0;
  const tall = rows * step, wanted = (TOP + above + tall + 10) * ratio;
  const gap = Math.max(card === NARROW ? 34 : GAP.x, Math.min(260, (wanted - 44 - columns.length * card.width) / Math.max(1, columns.length - 1)));
  columns.forEach((column, x) => {
    const start = TOP + above + (tall - column.length * step) / 2;
    column.forEach((key, y) => Object.assign(nodes.get(key), { x: Math.round(22 + x * (card.width + gap)), y: Math.round(start + y * step) }));
  });
  const left = from.length ? Math.round(22 + card.width + gap) : 22, step2 = card.width + 16;
  apart.forEach((node, i) => Object.assign(node, { x: left + (i % perRow) * step2, y: TOP + 4 + Math.floor(i / perRow) * step }));
  const far = Math.round(22 + (columns.length - 1) * (card.width + gap)), edge = to.length ? far - Math.round(gap) : far + card.width;
  graph.height = TOP + above + tall + 10;
  const right = Math.max(edge, left + Math.min(apart.length, perRow) * step2 - 16, left + 276);
  graph.hosts = [{ x: left - 16, width: right - left + 32, label: `host ${graph.host}` }];
  if (from.length) graph.hosts.push({ x: 6, width: card.width + 32, label: "another host" });
  if (to.length) {
    // The row above may be wider than the columns.
    const shift = Math.max(0, right + Math.round(gap) - far);
    for (const key of to) nodes.get(key).x += shift;
    const names = [...new Set(to.map((key) => nodes.get(key).sub).filter(Boolean))];
    graph.hosts.push({ x: far + shift - 16, width: card.width + 32, label: names.length === 1 ? `host ${names[0]}` : "other hosts" });
  }
  graph.width = Math.max(...graph.hosts.map((host) => host.x + host.width)) + 6;
}
