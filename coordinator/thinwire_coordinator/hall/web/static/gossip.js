// What the page says of a gossip run, where nodes have iterations in place of common rounds.

import * as words from "./words.js";

/** The names of things in this run. */
export const NAMES = {
  star: { dial: "round", step: "Step", steps: "steps", axis: "step", thanks: "rounds", training: "training", held: "held out", range: "" },
  gossip: { dial: "beat", step: "Iteration", steps: "iterations", axis: "median iteration", thanks: "beats", training: "training, median of the nodes", held: "held out, single nodes; at the end, their mean" },
};

/** Where the nodes are: slowest, median, fastest. */
export function spread([least, median, most]) {
  if (least === most) return `all nodes at ${words.count(least)}`;
  return `slowest ${words.count(least)}, median ${words.count(median)}, fastest ${words.count(most)}`;
}

/** Label and text of each line about the agreement of the nodes. */
export function agreement(said) {
  const error = said.error ? ` ± ${words.percent(said.error)}` : "";
  const distance = said.disagreement === null ? "not measured yet" : `${said.disagreement.toPrecision(4)}${error}, at iteration ${words.count(said.measured_at)}`;
  return [
    ["Distance from the mean", distance],
    ["In steps", said.in_steps === null ? "–" : said.in_steps.toPrecision(3)],
    ["Messages", `codec ${said.codec}`],
    ["Topology", said.topology ? `number ${words.count(said.topology)}, ${words.count(said.present)} of ${words.count(said.members)} members report` : "none yet"],
    ...(said.deposits ? [["In the final mean", `${words.count(said.deposits)} nodes`]] : []),
  ];
}
