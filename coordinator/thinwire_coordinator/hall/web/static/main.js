// Subscribes to the coordinator's status and renders it. While the coordinator is unreachable, says so and retries.

import { Chart } from "./charts.js";
import { showEvaluated } from "./evaluated.js";
import { agreement, NAMES, spread } from "./gossip.js";
import { NodeTable, showThanks, showVoids } from "./tables.js";
import * as words from "./words.js";

const SILENCE_MS = 40_000; // a heartbeat comes every 15 seconds
const AGAIN_MS = 1_500;
const CROWDED_MS = 5_000; // between two attempts while the coordinator accepts no more streams
const DETAILS_MS = 5_000;
const GROWN = 400; // added points after which the coordinator's condensed series is fetched again

const byId = (id) => document.getElementById(id);
const put = (id, text) => {
  const at = byId(id);
  if (at.textContent !== String(text)) at.textContent = text; // a screen reader repeats every change
};

const charts = {
  loss: new Chart(byId("loss-chart"), { label: "Loss", height: 300, y: words.loss, tick: words.brief, nothing: "no loss measured yet" }),
  bytes: new Chart(byId("bytes-chart"), { label: "Bytes moved, logarithmic", height: 220, y: words.bytes, tick: words.briefBytes, log: true, nothing: "no bytes moved yet" }),
  tokens: new Chart(byId("tokens-chart"), { label: "Tokens trained", height: 220, y: words.amount, tick: words.briefAmount, nothing: "no tokens trained yet" }),
};
const AXES = {
  step: { label: "step", unit: "steps", text: words.count, whole: true },
  tokens: { label: "tokens", unit: "tokens", text: words.amount, tick: words.briefAmount },
  at_s: { label: "after", unit: "time since this coordinator started", text: words.duration },
};
const nodes = new NodeTable(() => askDetails());
let against = "step";
let chosen = 0; // the held-out set that is shown, by its place in run.held_out
let run = null; // the properties of the run that never change
let history = null;
let names = NAMES.star; // of what this run has
let newest = null; // the newest summary
let heard = 0; // time of the last message
let deadline = null; // deadline of the open round, on this browser's clock
let grown = 0;
const asked = { details: 0, history: 0, moment: null, sample: null };

// messages from the coordinator

function listen() {
  const source = new EventSource("api/live");
  let opened = false;
  heard = performance.now();
  source.onopen = () => {
    opened = true;
  };
  source.addEventListener("status", (event) => {
    heard = performance.now();
    show(JSON.parse(event.data));
  });
  source.addEventListener("heartbeat", () => {
    heard = performance.now();
  });
  source.onerror = () => {
    source.close();
    if (opened) gone("The coordinator is unreachable");
    setTimeout(again, opened ? AGAIN_MS : CROWDED_MS);
  };
  const watch = setInterval(() => {
    if (source.readyState === EventSource.CLOSED) clearInterval(watch);
    else if (performance.now() - heard > SILENCE_MS) source.onerror();
  }, 5_000);
}

/** Request the status before subscribing, because a coordinator that replays its ledger reports this state. */
async function again() {
  try {
    const reply = await fetch("api/status?nodes=0");
    const said = await reply.json();
    if (reply.ok) {
      show(said);
      listen();
      return;
    }
    gone(`The coordinator is ${said.state}`);
  } catch {
    gone("The coordinator is unreachable");
  }
  setTimeout(again, AGAIN_MS);
}

async function askDetails() {
  asked.details = performance.now();
  const said = await ask(`api/status?${nodes.query}`);
  if (!said) return;
  run = said.run;
  asked.sample = said.sample_step;
  asked.moment = momentOf(said);
  showRun();
  show(said);
  nodes.show(said.node_list);
  showThanks(said.volunteers);
  showVoids(said.voids, said.rounds_void);
  showSample(said.sample);
  showEvaluated(said.evaluated, { ...AXES.step, label: names.step.toLowerCase() });
}

async function askHistory() {
  asked.history = performance.now();
  const wanted = chosen;
  const said = await ask(`api/history?set=${encodeURIComponent(nameOf(wanted))}`);
  if (!said || wanted !== chosen) return;
  grown = 0;
  history = said;
  drawCharts();
}

async function ask(address) {
  try {
    const reply = await fetch(address);
    return reply.ok ? await reply.json() : null;
  } catch {
    return null; // the stream detects and reports the failure
  }
}

// rendering

function gone(text) {
  document.body.classList.add("stale");
  byId("link").dataset.link = "away";
  put("link", "offline");
  put("state", text);
  put("waits", "This page reconnects by itself.");
  deadline = null;
}

function show(said) {
  const wasAway = document.body.classList.contains("stale");
  document.body.classList.remove("stale");
  byId("link").dataset.link = "live";
  put("link", "live");
  const before = newest;
  newest = said;
  put("state", said.state);
  put("round", words.count(said.round));
  byId("round").classList.toggle("long", said.round > 99_999);
  put("waits", said.clock.text);
  showClock(said.clock, before?.round !== said.round);
  if (said.gossip) {
    showAgreement(said.gossip);
    if (run && said.clock.phase !== "complete") fill(said.gossip.iterations[1] / run.steps);
  }
  put("step", `${names.step} ${words.count(said.step)}`);
  if (run) {
    put("steps", `of ${words.count(run.steps)}${said.gossip ? ` · ${spread(said.gossip.iterations)}` : ""}`);
    byId("progress").value = said.step / run.steps;
    const title = said.loss.diverged.some((at) => at !== null) ? "diverged" : words.loss(said.loss.held_out);
    document.title = `${title} · ${names.step.toLowerCase()} ${words.count(said.step)} · thinwire`;
  }
  showFigures(said);
  const restarted = before && before.term !== said.term;
  const filled = before && !before.history_complete && said.history_complete;
  if (restarted || filled || wasAway) askHistory(); // steps may be missing
  else if (history && (said.at_step > (before?.at_step ?? 0) || measuredAt(said) !== measuredAt(before))) grow(said);
  const left = before && before.nodes.active !== said.nodes.active;
  if (restarted || left || said.sample_step !== asked.sample) asked.moment = null;
}

function showFigures(said) {
  const held = said.loss.sets[chosen] ?? null;
  const diverged = said.loss.diverged[chosen] ?? null;
  byId("loss").classList.toggle("bad", diverged !== null);
  put("loss", diverged === null ? words.loss(held ?? said.loss.training) : "diverged");
  if (diverged !== null) put("loss-note", `not a finite number at ${names.step.toLowerCase()} ${words.count(diverged)}`);
  else put("loss-note", held === null ? "not measured yet" : lossNote(said.loss, held));
  put("active", words.count(said.nodes.active));
  const { compared, different } = said.nodes;
  const restarted = said.bytes.since_step > 0;
  byId("equal").classList.toggle("bad", different > 0);
  const all = compared ? `replicas equal in ${words.amount(compared)} comparisons` : `replicas not compared ${restarted ? "since this restart" : "yet"}`;
  const report = said.gossip && `${words.count(said.gossip.present)} of ${words.count(said.gossip.members)} members report`;
  put("equal", report ?? (different ? `${words.count(different)} of ${words.amount(compared)} comparisons differ` : all));
  put("tokens", words.amount(said.tokens));
  put("rate", said.tokens_per_s ? `${words.amount(said.tokens_per_s)} per second` : "");
  put("moved", words.bytes(said.bytes.up + said.bytes.down));
  const since = restarted ? `since this restart, at ${names.step.toLowerCase()} ${words.count(said.bytes.since_step)}` : "";
  put("fewer", said.bytes.fewer ? `${words.amount(Math.round(said.bytes.fewer))} times fewer than dense` : since);
}

function showAgreement(gossip) {
  const list = byId("agreement-list");
  const parts = agreement(gossip).flatMap(([label, text]) => [
    Object.assign(document.createElement("dt"), { textContent: label }),
    Object.assign(document.createElement("dd"), { textContent: text }),
  ]);
  if (list.textContent !== parts.map((part) => part.textContent).join("")) list.replaceChildren(...parts);
}

/** The unit of the shown loss, where it began, and the same as perplexity and in bits per byte. */
function lossNote(loss, held) {
  const parts = [run?.unit ?? "nats"];
  if (chosen === 0 && loss.first !== null && held !== loss.first) parts[0] += `, from ${words.loss(loss.first)}`;
  if (run && run.unit !== "nats per pair") parts.push(`perplexity ${words.perplexity(held)}`);
  const factor = run?.held_out[chosen]?.bits_per_nat;
  if (factor) parts.push(`${words.loss(held * factor)} bits per byte`);
  return parts.join(" · ");
}

/** Fill the ring: with time at pace clock, with the share of nodes that have contributed at pace barrier. */
function showClock(clock, beat) {
  const open = clock.phase === "open";
  deadline = open ? performance.now() + 1000 * clock.time_left_s : null;
  if (beat) {
    const dial = document.querySelector(".clock");
    dial.classList.remove("beat");
    dial.getBoundingClientRect(); // reading the layout restarts the animation
    dial.classList.add("beat");
  }
  const total = (clock.delivered ?? 0) + (clock.awaited ?? 0);
  fill({ complete: 1, sealing: 1, waiting: 0 }[clock.phase] ?? (run?.pace === "clock" ? null : clock.delivered / Math.max(1, total)));
  tick();
}

function fill(share) {
  if (share === null) return;
  const ring = byId("ring");
  ring.style.strokeDashoffset = 100 * (1 - share);
  ring.classList.toggle("empty", share < 0.005);
}

function tick() {
  const left = deadline === null ? null : Math.max(0, deadline - performance.now()) / 1000;
  put("left", left === null ? "" : `${Math.ceil(left)} s left`);
  if (left !== null && run?.pace === "clock") fill(1 - left / run.length_s);
}

const nameOf = (set) => run?.held_out[set]?.name ?? "";

/** Offer the choice of a held-out set, if there are several. */
function offerSets() {
  const choice = byId("set");
  byId("sets").hidden = run.held_out.length < 2;
  if (choice.options.length !== run.held_out.length) choice.replaceChildren(...run.held_out.map(({ name }) => new Option(name, name)));
}

function showRun() {
  offerSets();
  const gossips = run.exchange === "gossip";
  names = NAMES[gossips ? "gossip" : "star"];
  nodes.use(run.exchange);
  AXES.step.label = names.axis;
  AXES.step.unit = names.steps;
  put("dial", names.dial);
  put("against-steps", names.steps);
  put("thanks-rounds", names.thanks);
  byId("agreement").hidden = !gossips;
  byId("void-rounds").hidden = gossips;
  if (gossips) put("bytes-note", "Bytes are payload bytes of messages between nodes since this coordinator started: it counts those through its relay, and nodes report those of direct lines. A loss is that of each node's own parameters, and the held-out loss that of the mean model, in the beginning and at the end.");
  put("run", `${words.amount(run.parameters)} parameters, ${run.model} · contract ${run.contract.slice(0, 8)}`);
}

function showSample(sample) {
  if (!sample) return;
  put("sample-step", `at ${names.step.toLowerCase()} ${words.count(sample.step)}`);
  const prompt = Object.assign(document.createElement("b"), { textContent: sample.prompt });
  byId("sample").replaceChildren(prompt, sample.text);
}

/** The step at which the chosen set was measured last; sets are measured one after the other. */
function measuredAt(said) {
  return said?.loss.set_steps[chosen] ?? null;
}

/** Append the newest values to the history, so that the page need not fetch it again. */
function grow(said) {
  const { steps, held_out: held } = history;
  if (said.at_step > (steps.step.at(-1) ?? 0)) {
    const { training } = said.loss;
    const { up, down, dense } = said.bytes;
    const added = { step: said.at_step, at_s: said.at_s, tokens: said.tokens, bytes_up: up, bytes_down: down, dense_bytes: dense };
    const all = { ...added, loss: training, loss_min: training, loss_max: training };
    for (const [name, value] of Object.entries(all)) steps[name].push(value);
    grown += 1;
  }
  const newest = said.loss.sets[chosen];
  if (newest != null && measuredAt(said) > (held.step.at(-1) ?? -1)) {
    held.step.push(measuredAt(said));
    for (const name of ["loss", "loss_min", "loss_max"]) held[name].push(newest);
  }
  drawCharts();
}

function drawCharts() {
  if (!history || document.hidden) return;
  const { steps, held_out: held } = history;
  const x = steps[against];
  const axis = AXES[against];
  const marks = (run?.amendments ?? []).map(({ step, text }) => ({ x: against === "step" ? step : valueAt(steps, against, step), text: `amended at ${run.exchange === "gossip" ? "iteration" : "step"} ${words.count(step)}: ${text}` }));
  const measured = against === "step" ? held.step : held.step.map((step) => valueAt(steps, against, step));
  charts.loss.show(
    [
      { name: names.training, x, y: steps.loss, low: steps.loss_min, high: steps.loss_max, style: "second" },
      { name: run?.held_out.length > 1 ? `${names.held}: ${nameOf(chosen)}` : names.held, x: measured, y: held.loss, dots: true, style: run?.exchange === "gossip" ? "apart" : undefined },
    ],
    axis,
    marks,
  );
  const moved = steps.bytes_up.map((up, i) => (up === null ? null : up + steps.bytes_down[i]));
  charts.bytes.show(
    [
      { name: "moved", x, y: moved },
      { name: "dense", x, y: steps.dense_bytes.map((sent) => sent === null ? null : 2 * sent), style: "second dashed" },
    ],
    axis,
    marks,
  );
  charts.tokens.show([{ name: "trained", x, y: steps.tokens }], axis, marks);
}

function valueAt(steps, name, step) {
  if (step === 0 && name === "tokens") return 0;
  const i = steps.step.findIndex((at) => at >= step);
  return i < 0 ? null : steps[name][i];
}

// helpers

/** A key that changes whenever the tables may have changed. */
const momentOf = (said) => said && `${said.round} ${said.step} ${said.clock.phase === "complete"}`;

function chooseTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const mark = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", document.documentElement.dataset.theme);
    } catch {
      // without storage, the choice holds until the page is closed
    }
    mark();
  });
  system.addEventListener("change", mark);
  mark();
}

for (const radio of document.querySelectorAll("[name=against]")) {
  radio.addEventListener("change", () => {
    against = radio.value;
    drawCharts();
  });
}
byId("set").addEventListener("change", () => {
  chosen = Math.max(0, byId("set").selectedIndex);
  if (newest) showFigures(newest);
  askHistory();
});
document.addEventListener("visibilitychange", () => drawCharts());
setInterval(() => {
  tick();
  if (document.hidden || document.body.classList.contains("stale")) return;
  if (performance.now() - asked.details > DETAILS_MS && asked.moment !== momentOf(newest)) askDetails();
  if (grown > GROWN || (!history && performance.now() - asked.history > DETAILS_MS)) askHistory();
}, 500);
chooseTheme();
await Promise.all([askDetails(), askHistory()]);
performance.mark("shown");
listen();
