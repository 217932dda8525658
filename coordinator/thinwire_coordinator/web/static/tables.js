// The tables. All data from nodes is inserted as text, never as markup.

import { element } from "./charts.js";
import * as words from "./words.js";

const COLUMNS = [
  { sort: "name", title: "node" },
  { sort: "active", title: "state" },
  { sort: "rounds", title: "rounds", number: true },
  { sort: "tokens", title: "tokens", number: true },
  { sort: "weight", title: "weight", number: true },
  { sort: "early", title: "before deadline", number: true },
  { sort: "equal", title: "replica" },
  { sort: "up", title: "up", number: true },
  { sort: "down", title: "down", number: true },
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
    this.headings = COLUMNS.map((column) => {
      const heading = element("th", { scope: "col", class: column.number ? "number" : "" });
      const button = Object.assign(element("button", { type: "button" }), { textContent: column.title });
      button.addEventListener("click", () => this.sortBy(column.sort));
      heading.append(button);
      return heading;
    });
    document.querySelector("#node-table thead tr").append(...this.headings);
    this.before.addEventListener("click", () => this.turn(-this.count));
    this.after.addEventListener("click", () => this.turn(this.count));
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
  mark(sorts = COLUMNS.map((column) => column.sort)) {
    COLUMNS.forEach((column, i) => {
      this.headings[i].firstChild.disabled = !sorts.includes(column.sort);
      const turned = this.sort === `-${column.sort}`;
      if (turned || this.sort === column.sort) this.headings[i].setAttribute("aria-sort", turned ? "ascending" : "descending");
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
    this.body.replaceChildren(...list.rows.map(nodeRow));
    const last = list.offset + list.rows.length;
    document.getElementById("which").textContent = `${list.offset + 1} to ${last} of ${words.count(list.total)}`;
    this.pager.hidden = list.total <= this.count;
    this.before.disabled = list.offset === 0;
    this.after.disabled = last >= list.total;
    const seen = list.total === 1 ? "one node has" : `${words.count(list.total)} nodes have`;
    document.getElementById("nodes-note").textContent = list.total ? `${seen} joined since this coordinator started` : "no node has joined yet";
  }
}

function nodeRow(node) {
  const known = node.active !== null; // the page tells strangers little of a node
  const row = element("tr", { class: node.active || !known ? "" : "away" });
  const name = Object.assign(element("th", { scope: "row", title: `${node.name} (${node.id})` }), { textContent: node.name });
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
