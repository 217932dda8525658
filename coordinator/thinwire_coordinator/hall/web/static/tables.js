// The tables. All data from nodes is inserted as text, never as markup.

import { element } from "./charts.js";
import * as words from "./words.js";

const STAR_COLUMNS = [
  { sort: "name", title: "node", ascends: true },
  { sort: "active", title: "state" },
  { sort: "rounds", title: "rounds", number: true },
  { sort: "tokens", title: "tokens", number: true },
  { sort: "weight", title: "weight", number: true },
  { sort: "early", title: "before deadline", number: true, ascends: true },
  { sort: "equal", title: "replica" },
  { sort: "up", title: "up", number: true },
  { sort: "down", title: "down", number: true },
];

const GOSSIP_COLUMNS = [
  { sort: "name", title: "node", ascends: true },
  { sort: "active", title: "state" },
  { sort: "iteration", title: "iteration", number: true },
  { sort: "loss", title: "loss", number: true },
  { sort: "tokens", title: "tokens", number: true },
  { sort: "direct", title: "direct", number: true },
  { sort: "relay", title: "by relay", number: true },
  { sort: null, title: "an iteration", number: true },
  { sort: null, title: "peers, newest message" },
];

/** The table of nodes. Shows one page at a time; the coordinator sorts. `ask` is called to request another page. */
export class NodeTable {
  constructor(ask) {
    this.ask = ask;
    this.sort = "tokens";
    this.offset = 0;
    this.count = 15;
    this.body = document.querySelector("#node-table tbody");
    this.pager = document.querySelector(".pager");
    this.before = document.getElementById("before");
    this.after = document.getElementById("after");
    this.before.addEventListener("click", () => this.turn(-this.count));
    this.after.addEventListener("click", () => this.turn(this.count));
    this.use("star");
  }

  /** Have the columns of a star run or of a gossip run. */
  use(exchange) {
    if (this.exchange === exchange) return;
    this.exchange = exchange;
    this.columns = exchange === "gossip" ? GOSSIP_COLUMNS : STAR_COLUMNS;
    this.headings = this.columns.map((column) => {
      const heading = element("th", { scope: "col", class: column.number ? "number" : "" });
      const button = Object.assign(element("button", { type: "button" }), { textContent: column.title });
      button.addEventListener("click", () => this.sortBy(column.sort));
      if (column.sort) heading.append(button);
      else heading.textContent = column.title;
      return heading;
    });
    document.querySelector("#node-table thead tr").replaceChildren(...this.headings);
    this.mark();
  }

  get query() {
    return `nodes=${this.count}&offset=${this.offset}&sort=${this.sort}`;
  }

  sortBy(name) {
    this.sort = this.sort === name ? `-${name}` : name;
    this.offset = 0;
    this.mark();
    this.ask();
  }

  turn(by) {
    this.offset = Math.max(0, this.offset + by);
    this.ask();
  }

  /** Mark the column that orders the table. sorts: the orders that there are for this reader. */
  mark(sorts = this.columns.map((column) => column.sort)) {
    this.columns.forEach((column, i) => {
      if (!column.sort) return;
      this.headings[i].firstChild.disabled = !sorts.includes(column.sort);
      const turned = this.sort === `-${column.sort}`;
      const ascends = Boolean(column.ascends) !== turned; // until it is turned, the most interesting rows come first
      if (turned || this.sort === column.sort) this.headings[i].setAttribute("aria-sort", ascends ? "ascending" : "descending");
      else this.headings[i].removeAttribute("aria-sort");
    });
  }

  show(list) {
    if (list.offset >= list.total && list.offset > 0) {
      this.turn(-this.count);
      return;
    }
    if (!list.sorts.includes(this.sort.replace("-", ""))) this.sort = list.sort;
    this.mark(list.sorts);
    this.body.replaceChildren(...list.rows.map(this.exchange === "gossip" ? gossipRow : starRow));
    const last = list.offset + list.rows.length;
    document.getElementById("which").textContent = `${list.offset + 1} to ${last} of ${words.count(list.total)}`;
    this.pager.hidden = list.total <= this.count;
    this.before.disabled = list.offset === 0;
    this.after.disabled = last >= list.total;
    const seen = list.total === 1 ? "one node has" : `${words.count(list.total)} nodes have`;
    document.getElementById("nodes-note").textContent = list.total ? `${seen} joined since this coordinator started` : "no node has joined since this coordinator started";
  }
}

function rowOf(node) {
  const known = node.active !== null; // the page tells strangers little of a node
  const row = element("tr", { class: node.active || !known ? "" : "away" });
  const name = Object.assign(element("th", { scope: "row", title: `${node.name} (${node.id})` }), { textContent: node.name });
  return { known, row, name };
}

function gossipRow(node) {
  const { known, row, name } = rowOf(node);
  row.append(
    name,
    cell(!known ? "–" : node.active ? "active" : "away"),
    cell(words.count(node.iteration), "number"),
    cell(words.loss(node.loss), "number"),
    cell(words.count(node.tokens), "number"),
    cell(words.bytes(node.direct), "number"),
    cell(words.bytes(node.relay), "number"),
    cell(words.bytes(node.each), "number"),
    known ? edges(node) : cell("–"),
  );
  return row;
}

/** The peers of a node: each with its line and the iteration of its newest message. */
function edges(node) {
  const shown = node.edges.map((edge) => {
    const at = edge.iteration === null ? "" : ` ${words.count(edge.iteration)}`;
    return Object.assign(element("span", { class: `edge ${edge.line}`, title: `${edge.name}: ${edge.line}` }), { textContent: `${edge.name} ${edge.line}${at}` });
  });
  const found = cell("", "edges");
  found.append(...shown);
  if (node.edges_more) found.append(`and ${words.count(node.edges_more)} more`);
  return found;
}

function starRow(node) {
  const { known, row, name } = rowOf(node);
  const replica = { true: "equal", false: "differs" }[node.equal] ?? "–";
  const state = !known ? "–" : node.active ? (node.why_not ? `active, ${node.why_not}` : "active") : "away";
  row.append(
    name,
    cell(state),
    cell(words.count(node.rounds), "number"),
    cell(words.count(node.tokens), "number"),
    cell(node.weight || "–", "number"),
    cell(words.seconds(node.early_s), node.early_s < 0 ? "number bad" : "number"),
    cell(replica, node.equal === false ? "bad" : ""),
    cell(known ? words.bytes(node.up) : "–", "number"),
    cell(known ? words.bytes(node.down) : "–", "number"),
  );
  return row;
}

export function showThanks(volunteers) {
  const rows = volunteers.rows.map((one) => {
    const row = element("tr", {});
    row.append(
      Object.assign(element("th", { scope: "row" }), { textContent: one.name }),
      cell(words.count(one.rounds), "number"),
      cell(words.count(one.tokens), "number"),
      cell(words.percent(one.share), "number"),
    );
    return row;
  });
  document.querySelector("#thanks tbody").replaceChildren(...rows);
  const more = volunteers.total - rows.length;
  document.getElementById("thanks-more").textContent = more > 0 ? `and ${words.count(more)} more` : rows.length ? "" : "No contribution has been counted yet.";
}

export function showVoids(voids, total) {
  const items = voids.map((one) => {
    const item = element("li", {});
    const which = one.first === one.last ? `round ${words.count(one.first)}` : `rounds ${words.count(one.first)} to ${words.count(one.last)}`;
    const when = one.ago_s === null ? "before this coordinator started" : `${words.duration(one.ago_s)} ago`;
    item.append(
      Object.assign(element("b", {}), { textContent: which }),
      Object.assign(element("span", {}), { textContent: one.why }),
      Object.assign(element("span", { class: "quiet" }), { textContent: when }),
    );
    return item;
  });
  document.getElementById("voids").replaceChildren(...items);
  document.getElementById("voids-note").textContent = total ? `${words.count(total)} in total, newest first` : "none: every round has sealed an update";
}

function cell(text, className = "") {
  return Object.assign(element("td", {}), { textContent: text, className });
}
