// Orders: each is shown in one sentence and confirmed before it is sent, and is an event of the system afterwards.

import { $, chip, h, put, setText } from "./dom.js";

// An input of a dialog, and how its value is read.
function input(field) {
  const id = `order-${field.name}`;
  if (field.type === "select") {
    const element = h("select", { id }, field.options.map(([value, text]) => h("option", { value }, text)));
    if (field.value !== undefined) element.value = field.value;
    return { element: h("label", { for: id }, field.label || field.name, element), controls: [element], read: () => element.value };
  }
  if (field.type === "checks") {
    const boxes = field.options.map(([value, text, checked]) => [value, h("input", { type: "checkbox", checked: Boolean(checked) }), text]);
    const element = h("fieldset", {}, h("legend", {}, field.label || field.name), boxes.map(([, box, text]) => h("label", { class: "check" }, box, text)));
    return { element, controls: boxes.map(([, box]) => box), read: () => boxes.filter(([, box]) => box.checked).map(([value]) => value) };
  }
  const element = h("input", { type: field.type || "text", id, name: field.name, min: field.min, step: field.type === "number" ? field.step || "any" : undefined, pattern: field.pattern, placeholder: field.placeholder, autocomplete: "off", required: field.type !== "checkbox" && field.required !== false });
  if (field.type === "checkbox") { element.checked = Boolean(field.value); return { element: h("label", { class: "check" }, element, field.label || field.name), controls: [element], read: () => element.checked }; }
  element.value = field.value ?? "";
  const read = field.type === "number" ? () => (element.value === "" ? null : Number(element.value)) : () => element.value;
  return { element: h("label", { for: id }, field.label || field.name, element), controls: [element], read };
}

// Asks for the values of an order, shows what it will do, and sends it. `request` makes the order of the values.
export function order(app, { title, hint, fields = [], request, done, danger = false }) {
  const dialog = $("dialog"), note = h("p", { role: "alert", class: "why bad", hidden: true }), inputs = fields.map(input);
  const sentence = h("p", { class: "why limited", hidden: true }), send = h("button", { class: danger ? "primary danger" : "primary", type: "submit" }, "Continue");
  let number = null;
  const close = () => { dialog.close(); };
  const lock = (locked) => { for (const { controls } of inputs) for (const control of controls) control.disabled = locked; };
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    note.hidden = true;
    try {
      if (number === null) {
        const read = Object.fromEntries(fields.map((field, i) => [field.name, inputs[i].read()]));
        const prepared = await app.connection.ask("prepare", request(read));
        number = prepared.number;
        lock(true);
        setText(sentence, prepared.text);
        sentence.hidden = false;
        setText(send, "Confirm");
        send.disabled = false;
        send.focus();
        return;
      }
      const { result } = await app.connection.ask("confirm", { number });
      close();
      if (done) done(result);
    } catch (error) {
      setText(note, error.message);
      note.hidden = false;
      sentence.hidden = true;
      send.disabled = false;
      number = null;
      setText(send, "Continue");
      lock(false);
    }
  } }, hint ? h("p", { class: "muted" }, hint) : null, inputs.map(({ element }) => element), sentence, note,
  h("menu", {}, h("button", { type: "button", onclick: close }, "Cancel"), send));
  put(dialog, h("h2", { id: "dialog-title" }, title), form);
  dialog.showModal();
}

// An order to a service: a command with arguments, or the value of a property.
export function serviceOrder(app, { tag, name, property = false, values = (v) => v, ...more }) {
  order(app, { ...more, request: (read) => ({ tag, name, property, value: values(read) }) });
}

const reason = { name: "reason", label: "reason, for the record", required: false };

export function orderButtons(app, kind, key, view) {
  if (app.connection.role !== "steer") return null;
  const button = (text, spec, danger) => h("button", { type: "button", class: danger ? "danger" : "", "data-focus": `order-${text}-${key}`, onclick: () => serviceOrder(app, { danger, ...spec }) }, text);
  const services = Object.values(app.connection.document.services), supervisor = services.find((s) => s.tag.startsWith("service:supervisor"));
  if (kind === "consumer") {
    if (!supervisor) return h("p", { class: "muted" }, "A supervisor can limit and redirect it: start tensorpool supervisor.");
    const target = { stream_id: view.stream_id, consumer_id: view.consumer_id }, { tag } = supervisor;
    return h("div", { class: "actions" },
      button("Limit", { title: "Limit its rate", tag, name: "limit", fields: [{ name: "max_rate_hz", label: "frames a second", type: "number", min: "1", step: "1", value: "5" }, reason], values: (v) => ({ ...target, ...v }) }),
      button("Redirect", { title: "Redirect it to a fallback", tag, name: "redirect", fields: [{ name: "uri", label: "fallback, as in bridge://…" }, reason], values: (v) => ({ ...target, ...v }) }),
      button("Release", { title: "End the order for it", tag, name: "release", fields: [reason], values: (v) => ({ ...target, ...v }) }));
  }
  if (kind === "lease") return button("Revoke", { title: "Revoke this lease", hint: "Its client loses the stream at once, and asks for it again.", tag: view.driver, name: "revoke", values: () => ({ lease_id: view.lease_id }) }, true);
  if (kind === "recorder") return h("div", { class: "actions" }, recorderButtons(app, key, view.state));
  if (kind === "driver") return h("div", { class: "actions" }, button("Stop", { title: "Stop this driver", hint: "All its streams end.", tag: key, name: "stop", fields: [reason], values: (v) => v }, true));
  return null;
}

// Commands of a recorder that make sense in its state.
export function recorderButtons(app, tag, state) {
  const names = state === "stopped" ? ["start"] : state === "armed" ? ["trigger", "stop"] : ["stop", "rotate"];
  const hints = { start: "Frames that were published in between are a gap.", stop: "It writes what it has received and seals its segments; start continues.", rotate: "It writes what it has received and seals its open segments.", trigger: "It writes its buffer, and all frames from now on." };
  const title = (name) => name[0].toUpperCase() + name.slice(1);
  return names.map((name) => h("button", { type: "button", class: name === "stop" ? "danger" : "", "data-focus": `order-${name}-${tag}`, onclick: () => serviceOrder(app, { title: `${title(name)} this recorder`, hint: hints[name], tag, name, danger: name === "stop", values: () => ({}) }) }, title(name)));
}

export class ServicesView {
  constructor(app) {
    this.app = app;
    this.list = h("div", { class: "body" });
    this.body = h("div", { class: "body" }, h("p", { class: "empty" }, "Choose a service to see its properties and commands."));
    this.element = h("div", { class: "grid2" }, h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Services")), this.list), h("section", { class: "panel" }, h("header", {}, this.title = h("h2", {}, "Properties and commands")), this.body));
  }

  onShown(tag) { if (tag && tag !== this.tag) this.show(tag); }

  update() {
    const rows = Object.entries(this.app.connection.document.services), key = rows.map(([k]) => k).join("|") + this.tag;
    if (key === this.key) return;
    this.key = key;
    put(this.list, rows.length ? h("div", { class: "choices" }, rows.map(([, row]) => h("button", { type: "button", "aria-pressed": String(row.tag === this.tag), onclick: () => this.show(row.tag) }, h("b", {}, row.tag.replace(/^service:/, "")), h("span", { class: "muted" }, `process ${row.pid}`)))) : h("p", { class: "empty" }, "No service answers here."));
    if (!this.tag && rows.length) this.show(rows[0][1].tag);
  }

  async show(tag) {
    this.tag = tag;
    this.update();
    setText(this.title, tag.replace(/^service:/, ""));
    try {
      const { description } = await this.app.connection.ask("describe", { tag });
      if (this.tag !== tag) return;
      const steer = this.app.connection.role === "steer";
      const properties = Object.entries(description.properties || {}), commands = Object.entries(description.commands || {});
      put(this.body, h("h3", {}, "Properties"), properties.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Properties" }, h("table", {}, h("thead", {}, h("tr", {}, ["name", "value", "meaning", ""].map((t) => h("th", { scope: "col" }, t || h("span", { class: "hidden" }, "order"))))),
        h("tbody", {}, properties.map(([name, p]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "mono wrap" }, String(p.value ?? "–")), h("td", { class: "muted wrap" }, p.doc || ""), h("td", {}, steer && p.writable ? h("button", { type: "button", onclick: () => this.set(tag, name, p) }, "Set") : null)))))) : h("p", { class: "muted" }, "none"),
        h("h3", {}, "Commands"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Commands" }, h("table", {}, h("thead", {}, h("tr", {}, ["command", "meaning", ""].map((t) => h("th", { scope: "col" }, t || h("span", { class: "hidden" }, "order"))))),
          h("tbody", {}, commands.map(([name, c]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "muted wrap" }, c.doc || "", " ", c.needs_token ? chip("needs the service's token", "warn") : null), h("td", {}, steer ? h("button", { type: "button", onclick: () => this.call(tag, name) }, "Call") : null)))))),
        steer ? null : h("p", { class: "muted" }, "This address only watches: it gives no orders."));
    } catch (error) { put(this.body, h("p", { class: "why bad" }, error.message)); }
  }

  call(tag, name) { serviceOrder(this.app, { title: `Call ${name}`, tag, name, fields: [{ name: "arguments", label: "arguments, as a JSON object", value: "{}" }], values: (v) => JSON.parse(v.arguments), done: () => this.show(tag) }); }
  set(tag, name, p) { serviceOrder(this.app, { title: `Set ${name}`, tag, name, property: true, fields: [{ name: "value", value: JSON.stringify(p.value ?? "") }], values: (v) => JSON.parse(v.value), done: () => this.show(tag) }); }
}
