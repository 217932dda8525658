// Line charts in SVG: axes with units, a value under the pointer or the arrow keys, and the same as a table.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 10, right: 12, bottom: 44, left: 54 };
const TABLE_ROWS = 24;

/**
 * figure: where it goes. options: height, label (what is drawn, in words), y (a value, as text), tick (a round one), log (the y axis).
 * A series is {name, x: [], y: [], low: [], high: [], style: "" | "second" | "second dashed", dots: bool}; gaps are null.
 */
export class Chart {
  constructor(figure, options) {
    this.options = options;
    this.series = [];
    this.index = null;
    this.plot = element("div", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${options.label}; arrow keys read the values` });
    this.svg = svg("svg", { "aria-hidden": "true", height: options.height });
    this.plot.append(this.svg);
    this.caption = element("figcaption", {});
    const details = element("details", {});
    this.wide = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${options.label}, as a table` });
    details.append(Object.assign(element("summary", {}), { textContent: "As a table" }), this.wide);
    details.addEventListener("toggle", () => this.tabulate());
    this.details = details;
    figure.append(this.caption, this.plot, details);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.read(null));
    this.plot.addEventListener("blur", () => this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** x: {label, text} of the axis below. */
  show(series, x) {
    this.series = series.map(withoutGaps).filter((one) => one.x.length);
    this.x = x;
    this.places = [...new Set(this.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    if (this.index !== null) this.index = Math.min(this.index, this.places.length - 1);
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width || !this.x) return;
    const { height, log, tick: text } = this.options;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const values = this.series.flatMap((one) => [...one.y, ...one.low, ...one.high]).filter((v) => !log || v > 0);
    if (!values.length) {
      this.svg.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, this.options.nothing));
      this.legend();
      return;
    }
    const across = ticks(this.places[0], Math.max(this.places.at(-1), this.places[0] + 1), Math.max(2, width / 130), this.x.whole);
    const up = log ? powers(min(values), max(values)) : ticks(min(values), max(values), height / 55, false);
    const inner = { right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    const place = scale(this.places[0], Math.max(this.places.at(-1), this.places[0] + 1e-9), MARGIN.left, inner.right);
    const level = log
      ? (v) => scale(Math.log(up[0]), Math.log(up.at(-1)), inner.bottom, MARGIN.top)(Math.log(Math.max(v, up[0])))
      : scale(Math.min(up[0], min(values)), Math.max(up.at(-1), max(values)), inner.bottom, MARGIN.top);
    this.scales = { place, level, inner };
    for (const tick of up) {
      this.svg.append(svg("line", { class: "grid", x1: MARGIN.left, x2: inner.right, y1: level(tick), y2: level(tick) }));
      this.svg.append(svg("text", { x: MARGIN.left - 8, y: level(tick) + 4, "text-anchor": "end" }, text(tick)));
    }
    for (const tick of across.filter((t) => place(t) <= inner.right + 1 && place(t) >= MARGIN.left - 1)) {
      this.svg.append(svg("text", { x: place(tick), y: inner.bottom + 20, "text-anchor": "middle" }, this.x.text(tick)));
    }
    this.svg.append(svg("text", { x: inner.right, y: height - 6, "text-anchor": "end" }, this.x.unit));
    for (const one of this.series) this.line(one, place, level, log);
    this.cursor = svg("g", {});
    this.svg.append(this.cursor);
    this.read(this.index);
    this.tabulate();
  }

  line(one, place, level, log) {
    const points = one.x.map((x, i) => [place(x), level(one.y[i])]).filter((_, i) => !log || one.y[i] > 0);
    if (one.low.length) {
      const edge = [...one.high.map((v, i) => [i, v]), ...one.low.map((v, i) => [i, v]).reverse()];
      this.svg.append(svg("path", { class: `band ${one.style}`, d: `${path(edge.map(([i, v]) => [place(one.x[i]), level(v)]))}Z` }));
    }
    this.svg.append(svg("path", { class: `line ${one.style}`, d: path(points) }));
    if (points.length === 1 || (one.dots && points.length <= 60)) {
      for (const [x, y] of points) this.svg.append(svg("circle", { class: `dot ${one.style}`, cx: x, cy: y, r: 2.5 }));
    }
  }

  point(event) {
    if (!this.places.length || !this.scales) return;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    let best = 0;
    for (let i = 0; i < this.places.length; i++) {
      if (Math.abs(this.scales.place(this.places[i]) - x) < Math.abs(this.scales.place(this.places[best]) - x)) best = i;
    }
    this.read(best);
  }

  key(event) {
    const last = this.places.length - 1;
    const now = this.index ?? last;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - 20, PageUp: now + 20, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.read(Math.max(0, Math.min(last, to)));
  }

  /** Show the values at a place; null: at none. */
  read(index) {
    this.index = index;
    this.legend();
    const shown = index ?? this.places.length - 1;
    const near = this.series.map((one) => [one, nearest(one.x, this.places[shown])]);
    const words = near.map(([one, i]) => `${one.name} ${this.options.y(one.y[i])}`).join(", ");
    const slider = { valuemin: 0, valuemax: Math.max(0, this.places.length - 1), valuenow: Math.max(0, shown) };
    for (const [name, value] of Object.entries(slider)) this.plot.setAttribute(`aria-${name}`, value);
    this.plot.setAttribute("aria-valuetext", words ? `${this.x.label} ${this.x.text(this.places[shown])}: ${words}` : this.options.nothing);
    this.cursor?.replaceChildren();
    if (index === null || !this.scales || !this.series.length) return;
    const { place, level, inner } = this.scales;
    const x = place(this.places[index]);
    this.cursor.append(svg("line", { class: "at", x1: x, x2: x, y1: MARGIN.top, y2: inner.bottom }));
    for (const [one, i] of near) {
      this.cursor.append(svg("circle", { class: `dot ${one.style}`, cx: place(one.x[i]), cy: level(one.y[i]), r: 4 }));
    }
  }

  /** What the lines mean, with their values at the pointer, or the newest ones. */
  legend() {
    const at = this.places?.[this.index ?? this.places.length - 1];
    const keys = this.series.map((one) => {
      const key = element("span", { class: "key" });
      const mark = svg("svg", { "aria-hidden": "true", viewBox: "0 0 22 8" });
      mark.append(svg("line", { class: one.style, x1: 0, x2: 22, y1: 4, y2: 4 }));
      const value = Object.assign(element("b", {}), { textContent: this.options.y(one.y[nearest(one.x, at)]) });
      key.append(mark, `${one.name} `, value);
      return key;
    });
    const read = element("span", { class: "read" });
    if (this.index !== null && at !== undefined) read.textContent = `${this.x.label} ${this.x.text(at)}`;
    this.caption.replaceChildren(...keys, read);
  }

  tabulate() {
    if (!this.details.open || !this.x) return;
    const every = Math.max(1, Math.ceil(this.places.length / TABLE_ROWS));
    const rows = this.places.filter((_, i) => i % every === 0 || i === this.places.length - 1);
    const table = element("table", {});
    const head = table.createTHead().insertRow();
    for (const name of [this.x.label, ...this.series.map((one) => one.name)]) {
      head.append(Object.assign(element("th", { scope: "col", class: "number" }), { textContent: name }));
    }
    const body = table.createTBody();
    for (const at of rows) {
      const row = body.insertRow();
      row.append(Object.assign(element("th", { scope: "row", class: "number" }), { textContent: this.x.text(at) }));
      for (const one of this.series) {
        Object.assign(row.insertCell(), { className: "number", textContent: this.options.y(one.y[nearest(one.x, at)]) });
      }
    }
    this.wide.replaceChildren(table);
  }
}

function withoutGaps(one) {
  const kept = one.x.map((x, i) => i).filter((i) => one.x[i] != null && one.y[i] != null);
  const of = (values) => (values ? kept.map((i) => values[i]) : []);
  return { ...one, style: one.style ?? "", x: of(one.x), y: of(one.y), low: of(one.low), high: of(one.high) };
}

/** The index of the value nearest to `at` in an ascending list. */
function nearest(ascending, at) {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - ascending[low - 1] < ascending[low] - at ? low - 1 : low;
}

/** About `wanted` round numbers from at or below `from` to at or above `to`. */
function ticks(from, to, wanted, whole) {
  if (to <= from) [from, to] = [from - 0.5, to + 0.5];
  const rough = (to - from) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  if (whole) step = Math.max(1, step);
  const found = [];
  for (let n = Math.floor(from / step + 1e-9); n * step < to + step - 1e-9 * step; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

/** Powers of ten around what is there, at most six of them. */
function powers(from, to) {
  const first = Math.floor(Math.log10(from));
  const last = Math.max(first + 1, Math.ceil(Math.log10(to)));
  const step = Math.ceil((last - first) / 5);
  const found = [];
  for (let n = first; n < last + step; n += step) found.push(10 ** n);
  return found;
}

const min = (values) => values.reduce((a, b) => Math.min(a, b));
const max = (values) => values.reduce((a, b) => Math.max(a, b));

const scale = (from, to, first, last) => (value) => first + ((value - from) / (to - from)) * (last - first);

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export function element(name, attributes) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
