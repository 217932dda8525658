// The organizer's panel. Everything that others wrote is set as text, never as markup.

const EVERY_MS = 5000;
const AWAY = "The coordinator is unreachable, so this page may be old, and nothing can be changed.";
const of = (id) => document.getElementById(id);

async function ask(name, said) {
  const options = said === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(said),
  };
  let answer;
  try {
    answer = await fetch(`organizer/${name}`, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    return { ok: false, stranger: false, error: AWAY };
  }
  const found = await answer.json().catch(() => ({ error: `HTTP ${answer.status}` }));
  return { ok: answer.ok, stranger: answer.status === 401, ...found };
}

function say(text) {
  if (of("said").textContent !== text) of("said").textContent = text; // a screen reader repeats every change
}

function show(isIn) {
  of("login").hidden = isIn;
  of("panel").hidden = !isIn;
  of("logout").hidden = !isIn;
}

function button([text, label, act]) {
  const found = document.createElement("button");
  found.type = "button";
  found.textContent = text;
  found.setAttribute("aria-label", label);
  found.addEventListener("click", act);
  return found;
}

function emptyRow(key, length) {
  const line = document.createElement("tr");
  line.dataset.key = key;
  for (let number = 0; number < length; number++) line.append(document.createElement(number ? "td" : "th"));
  line.firstChild.scope = "row";
  return line;
}

function setText(place, cell, head) {
  const text = `${cell ?? "–"}`;
  if (place.textContent !== text) place.textContent = text;
  place.className = head.className; // a column with "–" or "1 of 3" in it is still one of numbers
}

function setButtons(place, buttons) {
  const labels = JSON.stringify(buttons.map(([, label]) => label));
  if (place.dataset.labels === labels) return;
  place.dataset.labels = labels;
  place.replaceChildren(...buttons.flatMap((one) => [button(one), " "]).slice(0, -1));
}

// Changes a table in place. A button that is replaced between press and release gets no click.
function fill(table, rows) {
  const body = of(table).querySelector("tbody");
  const heads = of(table).tHead.rows[0].cells;
  const old = new Map([...body.children].map((line) => [line.dataset.key, line]));
  rows.forEach(({ key, cells, buttons }, number) => {
    const line = old.get(key) ?? emptyRow(key, cells.length + 1);
    old.delete(key);
    cells.forEach((cell, place) => setText(line.children[place], cell, heads[place]));
    setButtons(line.lastChild, buttons);
    if (body.children[number] !== line) body.insertBefore(line, body.children[number] ?? null);
  });
  for (const line of old.values()) line.remove();
}

async function change(name, said, done) {
  const answer = await ask(name, said);
  say(answer.ok ? done : answer.error);
  await refresh();
  return answer;
}

const when = (time) => (time === null ? "never" : new Date(1000 * time).toLocaleString());

function inviteRow(one) {
  const revoke = () => change("revoke", { number: one.number }, `Invite ${one.number} is revoked.`);
  const used = one.uses_max === null ? `${one.uses}` : `${one.uses} of ${one.uses_max}`;
  return {
    key: `${one.number}`,
    cells: [`${one.number}`, one.name, one.state.replace("_", " "), used, when(one.expires)],
    buttons: one.state === "valid" ? [["Revoke", `Revoke invite ${one.number}`, revoke]] : [],
  };
}

function nodeRow(one) {
  const unban = () => change("unban", { node: one.node, reason: "" }, `${one.name} may join again.`);
  const ban = () => {
    const reason = window.prompt(`Why is ${one.name} banned? The node is told.`, "");
    if (reason !== null) change("ban", { node: one.node, reason }, `${one.name} is banned.`);
  };
  const pardon = () => change("pardon", { node: one.node, reason: "" }, `Everything against ${one.name} is forgotten.`);
  const buttons = [one.banned ? ["Unban", `Unban ${one.name}`, unban] : ["Ban", `Ban ${one.name}`, ban]];
  if (one.active && one.reason && !one.banned) buttons.push(["Pardon", `Pardon ${one.name}`, pardon]);
  const state = one.banned ? "banned" : one.active ? "active" : "away";
  const trust = one.trust === null ? null : Math.round(100 * one.trust) / 100;
  return {
    key: one.node,
    cells: [one.name, one.node.slice(0, 8), one.address, one.invite, state, trust, one.reason],
    buttons,
  };
}

async function refresh() {
  const found = await ask("state");
  if (found.stranger) return show(false);
  if (!found.ok) return say(found.error);
  if (of("said").textContent === AWAY) say("");
  show(true);
  fill("invites", found.invites.map(inviteRow));
  fill("nodes", found.nodes.map(nodeRow));
  of("standby").hidden = !found.standby;
  of("standby").textContent = found.standby ? `Standby: ${found.standby}` : "";
  const shown = found.nodes.length;
  of("known").textContent = shown < found.nodes_known ? `the newest ${shown} of ${found.nodes_known}` : `${shown}`;
}

of("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await ask("login", { secret: of("secret").value.trim() });
  of("secret").value = "";
  say(answer.ok ? "" : answer.error);
  if (answer.ok) await refresh();
});

of("logout").addEventListener("click", async () => {
  const answer = await ask("logout", {});
  if (!answer.ok) return say(answer.error);
  of("invite").hidden = true;
  for (const table of ["invites", "nodes"]) fill(table, []);
  show(false);
});

of("invite-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const number = (id) => (of(id).value === "" ? null : Number(of(id).value));
  const wish = { name: of("invite-name").value, uses: number("invite-uses"), hours: number("invite-hours") };
  const answer = await change("invite", wish, "The invite is shown once; copy it.");
  of("invite").hidden = !answer.ok;
  of("invite").textContent = answer.ok ? `thinwire-node start ${answer.invite}` : "";
});

refresh();
setInterval(() => { if (!of("panel").hidden && !document.hidden) refresh(); }, EVERY_MS);
