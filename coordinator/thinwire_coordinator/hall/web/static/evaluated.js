// Draws what `evaluate` has found: a small chart for each task, text or held-out set, with a line for each figure.

import { Chart, element } from "./charts.js";
import * as words from "./words.js";

const KINDS = { set: "held-out set", task: "task", text: "text" };
const STYLES = ["", "second", "second dashed"];
const charts = new Map();

/** axis: the x axis, see Chart.show. */
export function showEvaluated(found, axis) {
  document.getElementById("evaluated").hidden = !found.length;
  const names = found.map(({ kind, name }) => `${kind} ${name}`);
  const place = document.getElementById("evaluated-charts");
  if (names.join("\n") !== [...charts.keys()].join("\n")) {
    charts.clear();
    place.replaceChildren(...found.map((one, i) => make(one, names[i])));
  }
  found.forEach(({ metrics }, i) => charts.get(names[i]).show(metrics.map(line), axis));
}

function make({ kind, name }, key) {
  const part = element("div", {});
  const title = Object.assign(element("h3", {}), { textContent: name });
  title.append(" ", Object.assign(element("span", { class: "quiet" }), { textContent: KINDS[kind] }));
  const figure = element("figure", {});
  part.append(title, figure);
  charts.set(key, new Chart(figure, { label: `${name}, ${KINDS[kind]}`, height: 180, y: words.loss, tick: words.brief, nothing: "nothing found yet" }));
  return part;
}

function line({ name, step, value, stderr }, i) {
  const away = (side) => value.map((one, at) => (one === null ? null : one + side * (stderr[at] ?? 0)));
  const said = value.map((one, at) => (stderr[at] === null ? words.loss(one) : `${words.loss(one)} ± ${words.loss(stderr[at])}`));
  return { name, x: step, y: value, low: away(-1), high: away(1), said, style: STYLES[i], dots: true };
}
