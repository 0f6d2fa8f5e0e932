// Elements, numbers as text, and tables. Text of other processes only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function put(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < BYTES.length - 1) { value /= 1024; unit += 1; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${BYTES[unit]}`;
}

export function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(size >= 100 ? 0 : digits);
}

export const whole = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));
export const hertz = (value) => (value === null || value === undefined ? "–" : `${number(value)} Hz`);
export const perSecond = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export function micros(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} s`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(value >= 1e4 ? 0 : 1)} ms`;
  return `${Math.round(value)} µs`;
}

export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const streamName = (key, row) => (row && row.name ? row.name : `stream ${key}`);
export const counts = (map) => Object.entries(map || {}).map(([k, n]) => `${k} ${whole(n)}`).join(", ") || "–";

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [
    h("dt", {}, name), h("dd", {}, value instanceof Node ? value : String(value ?? "–"))]));
}

// A table whose rows are kept and changed in place: a thousand rows a second stay cheap.
export class Table {
  constructor(columns, { caption, empty }) {
    this.columns = columns;
    this.sort = null;
    this.rows = new Map();
    this.body = h("tbody");
    this.empty = h("p", { class: "empty" }, empty);
    const heads = columns.map((column, index) => h("th", { scope: "col", class: column.number ? "number" : "" },
      column.sort === false ? column.title : h("button", { type: "button", onclick: () => this.sortBy(index) }, column.title)));
    this.heads = heads;
    this.table = h("table", {}, h("caption", { hidden: true }, caption), h("thead", {}, h("tr", {}, heads)), this.body);
    this.table.setAttribute("aria-label", caption);
    this.element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption}, table` }, this.table, this.empty);
  }

  sortBy(index) {
    const down = this.sort && this.sort.index === index ? !this.sort.down : Boolean(this.columns[index].number);
    this.sort = { index, down };
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", i !== index ? "none" : down ? "descending" : "ascending"));
    this.show(this.last || []);
  }

  // items: [key, row, class]; at most `limit` are shown.
  show(items, limit = 500) {
    this.last = items;
    if (this.sort) {
      const { index, down } = this.sort, value = this.columns[index].value;
      items = [...items].sort((a, b) => compare(value(a[1], a[0]), value(b[1], b[0])) * (down ? -1 : 1));
    }
    const shown = items.slice(0, limit), keep = new Set(shown.map(([key]) => key));
    for (const [key, tr] of this.rows) if (!keep.has(key)) { tr.remove(); this.rows.delete(key); }
    let before = null;
    for (const [key, row, className] of shown) {
      let tr = this.rows.get(key);
      if (!tr) {
        tr = h("tr", {}, this.columns.map((column) => h("td", { class: `${column.number ? "number" : ""} ${column.class || ""}` })));
        this.rows.set(key, tr);
      }
      if (tr.className !== (className || "")) tr.className = className || "";
      this.columns.forEach((column, i) => {
        const text = column.text(row, key);
        if (text instanceof Node) {
          if (tr.cells[i].dataset.value !== text.dataset.value || !text.dataset.value) {
            tr.cells[i].dataset.value = text.dataset.value || "";
            tr.cells[i].replaceChildren(text);
          }
        } else setText(tr.cells[i], text);
      });
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== tr) this.body.insertBefore(tr, next);
      before = tr;
    }
    this.empty.hidden = items.length > 0;
    this.table.hidden = items.length === 0;
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

export function chip(text, kind) {
  const element = h("span", { class: `chip ${kind || ""}` }, text);
  element.dataset.value = `${text}|${kind}`;
  return element;
}

export function link(text, href, title) {
  const element = h("a", { href, title }, text);
  element.dataset.value = `${text}|${href}`;
  return element;
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// How much larger than on a desktop text is: canvases on a wall display follow it.
export const unit = () => Math.max(1, parseFloat(getComputedStyle(document.body).fontSize) / 13);
