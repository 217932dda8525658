// The page of one node: asks for its state every second or two, and sends orders. The key comes in the address's
// fragment, which browsers send to nobody.
"use strict";

const KEY = location.hash.slice(1);
const EVERY_MS = 1500;
const at = (id) => document.getElementById(id);
const count = (value) => Math.round(value).toLocaleString("en");

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return `${power ? value.toPrecision(3) : value} ${units[power]}`;
}

function time(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

async function ask(path, body) {
  const headers = { authorization: `Bearer ${KEY}` };
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function row(id, title, tally) {
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = title;
  const energy = tally.joules ? `${(tally.joules / 3.6e6).toPrecision(2)} kWh` : "–";
  const values = [count(tally.counted), count(tally.tokens), time(tally.compute_s), bytes(tally.sent), bytes(tally.received), energy];
  at(id).replaceChildren(head, ...values.map((value) => Object.assign(document.createElement("td"), { textContent: value })));
}

function figures(report) {
  const part = report.part;
  const found = [
    ["speed", `${count(report.tokens_s)} tokens/s`],
    ["line", `${bytes(report.bytes.sent_s)}/s up, ${bytes(report.bytes.received_s)}/s down`],
    ["loss", report.given.loss === null ? "–" : `${report.given.loss.toFixed(3)} nats/${report.loss_unit}`],
    ["device", report.device.name || "–"],
    ["coordinator", report.address],
  ];
  if (part.round_left_s !== null) found.unshift(["round", `${count(part.round)}, ${time(part.round_left_s)} left`]);
  at("figures").replaceChildren(...found.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }),
    Object.assign(document.createElement("dd"), { textContent: value }),
  ]));
}

function show(found) {
  const report = found.report;
  at("name").textContent = report.name;
  at("words").textContent = found.runs ? report.words : "not running";
  at("condition").textContent = found.condition;
  const step = report.part.step;
  at("step").textContent = report.steps ? `${count(step ?? 0)} of ${count(report.steps)}` : "the node does not know the run yet";
  at("done").value = report.steps ? (step ?? 0) / report.steps : 0;
  row("today", "today", report.today);
  row("in-all", "in all", report.in_all);
  at("share").textContent = found.share;
  figures(report);
  at("limits").replaceChildren(...found.limits.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  for (const button of document.querySelectorAll("button[data-order=stop]")) button.disabled = !found.runs;
}

async function order(path, body, place = at("said")) {
  try {
    place.textContent = (await ask(path, body)).said;
  } catch (error) {
    place.textContent = error.message;
  }
}

async function look() {
  try {
    show(await ask("api/node"));
  } catch (error) {
    at("condition").textContent = error instanceof TypeError ? "the page has ended: thinwire-node page starts it again" : error.message;
  }
  setTimeout(look, EVERY_MS);
}

for (const button of document.querySelectorAll("button[data-order]")) {
  button.addEventListener("click", () => order("api/order", { order: button.dataset.order, words: (button.dataset.words ?? "").split(" ").filter(Boolean) }));
}
at("set").addEventListener("submit", (event) => {
  event.preventDefault();
  order("api/limits", { entries: [at("entry").value] });
  at("entry").value = "";
});
at("write").addEventListener("click", async () => {
  at("write").disabled = true;
  at("sample").textContent = "reading the model …";
  await order("api/sample", {}, at("sample"));
  at("write").disabled = false;
});
look();
