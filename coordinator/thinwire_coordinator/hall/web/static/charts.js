// Line charts in SVG. The pointer and the arrow keys read values; the same data is available as a table.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 10, right: 12, bottom: 44, left: 54 };
const TABLE_ROWS = 24;

/**
 * figure: the parent element. options: height, label (the chart's name), y (formats a value), tick (formats an axis tick), log (logarithmic y axis), nothing (text of an empty chart).
 * A series is {name, x: [], y: [], low: [], high: [], style: "" | "second" | "second dashed", dots: bool, said: [what is read of each value, in place of y]}; gaps are null.
 */
export class Chart {
  constructor(figure, options) {
    this.options = options;
    this.series = [];
    this.marks = [];
    this.positions = [];
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
    this.read(null);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Draw these series. x: the x axis, as {label, unit, text, whole}. marks: places on it, as {x, text}. */
  show(series, x, marks = []) {
    this.marks = marks.filter((mark) => mark.x != null);
    this.series = series.map(withoutGaps).filter((one) => one.x.length);
    this.x = x;
    this.positions = [...new Set(this.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    if (this.index !== null) this.index = Math.min(this.index, this.positions.length - 1);
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
      this.read(null);
      return;
    }
    const across = ticks(this.positions[0], Math.max(this.positions.at(-1), this.positions[0] + 1), Math.max(2, width / 130), this.x.whole);
    const up = log ? powers(min(values), max(values)) : ticks(min(values), max(values), height / 55, false);
    const inner = { right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    const xOf = scale(this.positions[0], Math.max(this.positions.at(-1), this.positions[0] + 1e-9), MARGIN.left, inner.right);
    const yOf = log
      ? (v) => scale(Math.log(up[0]), Math.log(up.at(-1)), inner.bottom, MARGIN.top)(Math.log(Math.max(v, up[0])))
      : scale(Math.min(up[0], min(values)), Math.max(up.at(-1), max(values)), inner.bottom, MARGIN.top);
    this.scales = { xOf, yOf, inner };
    for (const tick of up) {
      this.svg.append(svg("line", { class: "grid", x1: MARGIN.left, x2: inner.right, y1: yOf(tick), y2: yOf(tick) }));
      this.svg.append(svg("text", { x: MARGIN.left - 8, y: yOf(tick) + 4, "text-anchor": "end" }, text(tick)));
    }
    for (const tick of across.filter((t) => xOf(t) <= inner.right + 1 && xOf(t) >= MARGIN.left - 1)) {
      this.svg.append(svg("text", { x: xOf(tick), y: inner.bottom + 20, "text-anchor": "middle" }, this.x.text(tick)));
    }
    this.svg.append(svg("text", { x: inner.right, y: height - 6, "text-anchor": "end" }, this.x.unit));
    for (const mark of this.marks.filter(({ x }) => x >= this.positions[0] && x <= this.positions.at(-1))) {
      const line = svg("line", { class: "mark", x1: xOf(mark.x), x2: xOf(mark.x), y1: MARGIN.top, y2: inner.bottom });
      line.append(svg("title", {}, mark.text));
      this.svg.append(line);
    }
    for (const one of this.series) this.line(one, xOf, yOf, log);
    this.cursor = svg("g", {});
    this.svg.append(this.cursor);
    this.read(this.index);
    this.tabulate();
  }

  line(one, xOf, yOf, log) {
    const points = one.x.map((x, i) => [xOf(x), yOf(one.y[i])]).filter((_, i) => !log || one.y[i] > 0);
    if (one.low.length) {
      const edge = [...one.high.map((v, i) => [i, v]), ...one.low.map((v, i) => [i, v]).reverse()];
      this.svg.append(svg("path", { class: `band ${one.style}`, d: `${path(edge.map(([i, v]) => [xOf(one.x[i]), yOf(v)]))}Z` }));
    }
    this.svg.append(svg("path", { class: `line ${one.style}`, d: path(points) }));
    if (points.length === 1 || (one.dots && points.length <= 60)) {
      for (const [x, y] of points) this.svg.append(svg("circle", { class: `dot ${one.style}`, cx: x, cy: y, r: 2.5 }));
    }
  }

  point(event) {
    if (!this.positions.length || !this.scales) return;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    let best = 0;
    for (let i = 0; i < this.positions.length; i++) {
      if (Math.abs(this.scales.xOf(this.positions[i]) - x) < Math.abs(this.scales.xOf(this.positions[best]) - x)) best = i;
    }
    this.read(best);
  }

  key(event) {
    const last = this.positions.length - 1;
    const now = this.index ?? last;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - 20, PageUp: now + 20, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.read(Math.max(0, Math.min(last, to)));
  }

  /** Show the values at an index of the x axis. null hides the cursor. */
  read(index) {
    this.index = index;
    this.legend();
    const shown = index ?? this.positions.length - 1;
    const near = this.series.map((one) => [one, nearest(one.x, this.positions[shown])]);
    const words = near.map(([one, i]) => `${one.name} ${this.said(one, i)}`).join(", ");
    const slider = { valuemin: 0, valuemax: Math.max(0, this.positions.length - 1), valuenow: Math.max(0, shown) };
    for (const [name, value] of Object.entries(slider)) this.plot.setAttribute(`aria-${name}`, value);
    this.plot.setAttribute("aria-valuetext", words ? `${this.x.label} ${this.x.text(this.positions[shown])}: ${words}` : this.options.nothing);
    this.cursor?.replaceChildren();
    if (index === null || !this.scales || !this.series.length) return;
    const { xOf, yOf, inner } = this.scales;
    const x = xOf(this.positions[index]);
    this.cursor.append(svg("line", { class: "at", x1: x, x2: x, y1: MARGIN.top, y2: inner.bottom }));
    for (const [one, i] of near) {
      this.cursor.append(svg("circle", { class: `dot ${one.style}`, cx: xOf(one.x[i]), cy: yOf(one.y[i]), r: 4 }));
    }
  }

  /** Draw the legend, with each line's value at the cursor, or its newest value. */
  legend() {
    const at = this.positions[this.index ?? this.positions.length - 1];
    const keys = this.series.map((one) => {
      const key = element("span", { class: "key" });
      const mark = svg("svg", { "aria-hidden": "true", viewBox: "0 0 22 8" });
      mark.append(svg("line", { class: one.style, x1: 0, x2: 22, y1: 4, y2: 4 }));
      const value = Object.assign(element("b", {}), { textContent: this.said(one, nearest(one.x, at)) });
      key.append(mark, `${one.name} `, value);
      return key;
    });
    const read = element("span", { class: "read" });
    if (this.index !== null && at !== undefined) {
      const before = this.marks.filter(({ x }) => x <= at).at(-1);
      read.textContent = `${this.x.label} ${this.x.text(at)}${before ? ` · ${before.text}` : ""}`;
    }
    this.caption.replaceChildren(...keys, read);
  }

  said(one, i) {
    return one.said.length ? one.said[i] : this.options.y(one.y[i]);
  }

  tabulate() {
    if (!this.details.open || !this.x) return;
    const every = Math.max(1, Math.ceil(this.positions.length / TABLE_ROWS));
    const rows = this.positions.filter((_, i) => i % every === 0 || i === this.positions.length - 1);
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
        Object.assign(row.insertCell(), { className: "number", textContent: this.said(one, nearest(one.x, at)) });
      }
    }
    this.wide.replaceChildren(table);
  }
}

function withoutGaps(one) {
  const kept = one.x.map((x, i) => i).filter((i) => one.x[i] != null && one.y[i] != null);
  const of = (values) => (values ? kept.map((i) => values[i]) : []);
  return { ...one, style: one.style ?? "", x: of(one.x), y: of(one.y), low: of(one.low), high: of(one.high), said: of(one.said) };
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

/** About `wanted` round numbers that cover the range from `from` to `to`. */
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

/** Powers of ten that cover the range, at most six of them. */
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
