"""Runs scenarios: text files with one command per line, in virtual time. `VERBS` at the end is the whole language.

# what it shows                                   a comment; the first one is the scenario's title
contract pace=clock length=10s samples=64         sections of the contract; must come first
line delay=50ms loss=1% rate=10Mbit               the line of the nodes that are named below
nodes a b c speed=4 micro_batch=2                 add machines; samples per second, samples per micro-batch
start coordinator / start a b
until step 5                                      let time pass
expect counted of a >= 4                          the scenario fails if this does not hold
"""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from simulator.crash import arm
from simulator.machine import Hardware
from simulator.network import Line
from simulator.volunteer import Broken, Volunteer, work_of
from simulator.world import World
from thinwire_coordinator.hall.standby.standing import Superseded

COMPARE = {"=": operator.eq, ">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt}
UNITS = {
    "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01, "ppm": 1e-6, "kbit": 125.0, "Mbit": 125_000.0, "": 1.0,
}  # fmt: skip


class BadScenario(Exception):
    """The text is not a valid scenario. The message names the line and the problem."""


def number(text: str) -> float:
    found = re.fullmatch(r"(-?[\d.]+)([A-Za-z%]*)", text)
    if found is None or found[2] not in UNITS:
        raise BadScenario(f"{text!r} is not a number with one of the units {', '.join(UNITS)}")
    return float(found[1]) * UNITS[found[2]]


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def numbers(words: str) -> dict[str, float]:
    """Values by key; whole numbers are integers, as in a run file."""
    found = {key: number(value) for key, value in options(words.split()).items()}
    return {key: int(value) if value == int(value) else value for key, value in found.items()}


class Scenario:
    def __init__(self, text: str, seed: int) -> None:
        self._lines = [(index, line.split("#")[0].strip()) for index, line in enumerate(text.splitlines(), 1)]
        self._seed = seed
        self._line = Line()
        self._wait_for = 1
        self._world: World | None = None
        self._spec: dict[str, Any] = {}

    async def run(self) -> World:
        """Run all commands, then check the invariants. Returns the world. Raises Broken or BadScenario with the
        line."""
        for index, line in self._lines:
            if not line:
                continue
            try:
                await self._do(line)
            except (Broken, BadScenario) as error:
                raise type(error)(f"line {index}, {line!r}: {error}") from error
        await self.world.check()
        return self.world

    @property
    def world(self) -> World:
        if self._world is None:
            self._world = World(self._seed, self._spec, self._wait_for)
        return self._world

    async def _do(self, line: str) -> None:
        for pattern, verb in VERBS:
            if found := re.fullmatch(pattern, line):
                done = verb(self, *found.groups())
                if done is not None:
                    await done
                return
        raise BadScenario("unknown command")

    def who(self, names: str) -> list[Volunteer]:
        everybody = self.world.volunteers
        try:
            return list(everybody.values()) if names == "all" else [everybody[name] for name in names.split()]
        except KeyError as error:
            raise BadScenario(f"there is no node {error}") from None

    # setting up the world

    def contract(self, words: str) -> None:
        if self._world is not None:
            raise BadScenario("the contract must come first")
        given = options(words.split())
        self._wait_for = int(given.pop("wait_for", "1"))
        steps = int(given.pop("steps", "100000"))
        rounds: dict[str, Any] = {"samples": 16, "weight_max": 8, "pace": given.pop("pace", "barrier")}
        rounds["length_ms"] = round(number(given.pop("length", "30s")) * 1000)
        demo: dict[str, Any] = {"update_topk": int(given.pop("update_topk", "0"))}
        if levels := int(given.pop("levels", "0")):
            demo |= {"magnitude": "tile", "update_levels": levels}
        rounds |= {key: int(value) for key, value in given.items()}
        schedule = {"steps": steps, "warmup_steps": 1, "learning_rate": 1e-3}
        self._spec = {"round": rounds, "schedule": schedule, "demo": demo}

    def line(self, words: str) -> None:
        given = {key: number(value) for key, value in options(words.split()).items()}
        self._line = Line(
            given.get("delay", 0.02), given.get("jitter", 0.0), given.get("loss", 0.0), given.get("rate", 0)
        )
        self.world.network.default = self._line

    def nodes(self, words: str) -> None:
        names = [word for word in words.split() if "=" not in word]
        given = options([word for word in words.split() if "=" in word])
        drift = number(given.pop("drift", "0"))
        fields = {"speed": "samples_s", "micro_batch": "micro_batch", "compute_max": "compute_share"}
        amounts: dict[str, Any] = {fields[key]: number(value) for key, value in given.items()}
        amounts["micro_batch"] = int(amounts.get("micro_batch", Hardware.micro_batch))
        hardware = replace(Hardware(), **amounts)
        for name in names:
            self.world.add(name, hardware, drift)
            self.world.network.lines[name] = self._line

    # the standby

    def after_standby(self) -> None:
        self.world.after_standby = True

    def when_a_row(self, what: str, where: str) -> None:
        world = self.world
        acts = {
            "kill coordinator": world.kill_coordinator,
            "cut off the standby": world.second.cut_off,
            "kill standby": world.second.kill,
        }
        world.second.on_row[where] = acts[what]

    async def until_a_row(self, where: str) -> None:
        await self.world.until(lambda: where not in self.world.second.on_row, f"a row {where}")

    def cannot_reach(self, names: str) -> None:
        self.world.second.cannot_reach_replaced |= {volunteer.name for volunteer in self.who(names)}

    async def expect_replaced(self, what: str) -> None:
        replaced = self.world.second.replaced
        if replaced is None:
            raise BadScenario("no coordinator was replaced")
        if what == "ends":
            failed = replaced.swarm.tasks.failed
            await self.world.until(failed.done, "the replaced coordinator ends")
            if not isinstance(failed.exception(), Superseded):
                raise Broken(f"it ended by {failed.exception()!r}")
            return
        before = replaced.swarm.feed.step
        await asyncio.sleep(300)
        if replaced.swarm.feed.step != before:
            raise Broken(f"it has sealed step {before}")

    # commands

    def start(self, names: str) -> None:
        for volunteer in self.who(names):
            if not volunteer.running:
                self.world.start(volunteer)

    def kill(self, names: str) -> None:
        for volunteer in self.who(names):
            self.world.kill(volunteer)

    async def leave(self, names: str) -> None:
        await asyncio.gather(*(self.world.leave(volunteer) for volunteer in self.who(names)))

    def each(self, act: Callable[[World, Volunteer], object], names: str) -> None:
        for volunteer in self.who(names):
            act(self.world, volunteer)

    async def ban(self, names: str) -> None:
        for volunteer in self.who(names):
            await self.world.ban(volunteer)

    async def expect_soon(self, step: str, span: str) -> None:
        began = self.world.now
        await self.until_step(step)
        if self.world.now - began > number(span):
            raise Broken(f"it took {self.world.now - began:.1f} s")

    def carries(self, names: str, rate: str) -> None:
        for volunteer in self.who(names):
            self.world.network.change(volunteer.name, rate_bytes_s=number(rate))

    async def until_step(self, step: str) -> None:
        await self.world.until(lambda: self.world.step >= int(step), f"step {step}")

    async def until_round(self, number_: str) -> None:
        await self.world.until(lambda: self.world.round >= int(number_), f"round {number_}")

    async def until_node(self, name: str, what: str, compare: str, value: str) -> None:
        (volunteer,) = self.who(name)
        label = f"{what} of {name}"
        await self.world.until(lambda: COMPARE[compare](figure(self.world, volunteer, what), number(value)), label)

    async def until_coordinator(self, state: str) -> None:
        await self.world.until(
            lambda: (self.world.sim_coordinator is None) == (state == "dies"), f"the coordinator {state}"
        )

    async def expect(self, what: str, name: str | None, compare: str, value: str) -> None:
        found = figure(self.world, self.who(name)[0] if name else None, what)
        if not COMPARE[compare](found, number(value)):
            raise Broken(f"it is {found}")

    async def expect_agree(self) -> None:
        await self.world.check()

    async def expect_fingerprint(self, value: str) -> None:
        step, found = await self.world.living_coordinator().swarm.fingerprint()
        if f"{found:016x}" != value:
            raise Broken(f"at step {step} it is {found:016x}")

    def expect_update(self, step: str, compare: str, names: str) -> None:
        ids = {volunteer.state.node_id: volunteer.name for volunteer in self.world.volunteers.values()}
        row = self.world.living_coordinator().state.ledger.row(int(step))
        self.who(names)
        found = sorted(ids.get(entry.node, "?") for entry in row.counted)
        if (found == sorted(names.split())) != (compare == "holds"):
            raise Broken(f"it holds {' '.join(found)}")

    def expect_said(self, name: str, text: str) -> None:
        (volunteer,) = self.who(name)
        if text not in str(volunteer.error):
            raise Broken(f"it said {str(volunteer.error)!r}")


def figure(world: World, volunteer: Volunteer | None, what: str) -> float:
    """A number that a scenario may ask for."""
    if volunteer is None:
        sim_coordinator = world.living_coordinator()
        counts = sim_coordinator.swarm.hall.counts
        figures: dict[str, Callable[[], float]] = {
            "step": lambda: sim_coordinator.swarm.feed.step,
            "voids": lambda: sim_coordinator.state.ledger.rounds_void,
            "term": lambda: sim_coordinator.swarm.view.term.number,
            "different": lambda: counts.fingerprints_different,
            "put_back_in_part": lambda: world.put_back_in_part,
            "active": lambda: sim_coordinator.swarm.view.active,
            "amendments": lambda: len(sim_coordinator.state.ledger.amendments()),
        }
        return figures[what]()
    return _of_node(world, volunteer, what)


def _of_node(world: World, volunteer: Volunteer, what: str) -> float:
    """A figure of a node: one of these, a field of its record, or the number of its receipts with a reason."""
    record = volunteer.node.record if volunteer.node else None
    work = work_of(volunteer.node) if volunteer.node else None
    figures: dict[str, Callable[[], float]] = {
        "failures": lambda: volunteer.failures,
        "lost": lambda: world.living_coordinator().swarm.hall.counts.of(volunteer.state.node_id).lost,
        "nowhere": lambda: len(world.nowhere(volunteer)),
        "momentum": lambda: len(world.trainer(volunteer).holds()),
        "at": lambda: work.replica.step if work and work.replica else 0,
    }
    if what in figures:
        return figures[what]()
    if record is None:
        return 0
    return int(getattr(record, what)) if hasattr(record, what) else record.outcomes[what]


LOST_DISK = 0.2
LEAVES_IN_ORDER = 0.3


async def churn(world: World, share: str, nodes: str, rounds: str) -> None:
    """In each round, a share of the nodes leaves or dies, and the same number of absent nodes returns."""
    count, last = int(nodes), world.round + int(rounds)
    rng = world.random
    for index in range(count - len(world.volunteers)):
        hardware = Hardware(samples_s=rng.uniform(0.3, 2), micro_batch=rng.randint(4, 16))
        world.start(world.add(f"n{index}", hardware, rng.uniform(-100e-6, 100e-6)))
    while world.round < last:
        current = world.round
        await world.until(lambda current=current: world.round > current, "the next round")  # type: ignore[misc]
        await _change(world, round(number(share) * count))


async def _change(world: World, count: int) -> None:
    rng = world.random
    here = [volunteer for volunteer in world.volunteers.values() if volunteer.running]
    away = [volunteer for volunteer in world.volunteers.values() if not volunteer.running]
    for volunteer in rng.sample(here, min(count, len(here))):
        if rng.random() < LEAVES_IN_ORDER and volunteer.stop is not None:
            volunteer.stop.set()
        else:
            world.kill(volunteer)
    for volunteer in rng.sample(away, min(count, len(away))):
        if rng.random() < LOST_DISK:
            world.lose_disk(volunteer)
        world.start(volunteer)


Verb = Callable[..., Awaitable[None] | None]
NODES = r"(all|[a-z0-9 ]+)"
VERBS: list[tuple[str, Verb]] = [
    (r"contract (.+)", Scenario.contract),
    (r"line (.+)", Scenario.line),
    (r"nodes (.+)", Scenario.nodes),
    (r"start coordinator(?: keeping (\d+))?", lambda s, keep: s.world.start_coordinator(int(keep) if keep else None)),
    (r"kill coordinator", lambda s: s.world.kill_coordinator()),
    (r"(kill coordinator|cut off the standby|kill standby) when a row (is sent|is there)", Scenario.when_a_row),
    (r"kill coordinator when (.+)", lambda s, when: arm(s.world, when)),
    (r"steps are sealed after the standby", Scenario.after_standby),
    (r"start standby", lambda s: s.world.second.start()),
    (r"kill standby", lambda s: s.world.second.kill()),
    (r"cut off the standby", lambda s: s.world.second.cut_off()),
    (r"reconnect the standby", lambda s: setattr(s.world.second, "is_cut_off", False)),
    (r"promote the standby", lambda s: s.world.second.promote()),
    (r"lose the coordinator's machine", lambda s: s.world.second.lose_machine()),
    (rf"{NODES} cannot reach the replaced coordinator", Scenario.cannot_reach),
    (r"kill the replaced coordinator", lambda s: s.world.second.kill_replaced()),
    (r"start the replaced coordinator", lambda s: s.world.second.start_replaced()),
    (r"expect the replaced coordinator (ends|seals nothing)", Scenario.expect_replaced),
    (r"until a row (is sent|is there)", Scenario.until_a_row),
    (r"pause for (\S+)", lambda s, span: s.world.pause(number(span))),
    (r"resume", lambda s: s.world.resume()),
    (r"amend (.+)", lambda s, words: s.world.amend(numbers(words))),
    (rf"start {NODES}", Scenario.start),
    (rf"kill {NODES}", Scenario.kill),
    (rf"{NODES} leaves?", Scenario.leave),
    (r"lose the rows from step (\d+)", lambda s, step: s.world.lose_rows(int(step))),
    (rf"lose the disk of {NODES}", lambda s, names: s.each(World.lose_disk, names)),
    (rf"cut off {NODES}", lambda s, names: s.each(lambda w, v: w.network.cut_off(v.name), names)),
    (rf"reconnect {NODES}", lambda s, names: s.each(lambda w, v: w.network.reconnect(v.name), names)),
    (rf"the line of {NODES} carries (\S+)", Scenario.carries),
    (rf"uploads of {NODES} fail", lambda s, names: s.each(lambda w, v: w.network.uploads_fail.add(v.name), names)),
    (rf"uploads of {NODES} work", lambda s, names: s.each(lambda w, v: w.network.uploads_fail.discard(v.name), names)),
    (rf"{NODES} claims? a round (\d+) ahead", lambda s, n, by: s.each(lambda w, v: w.claim(v, int(by)), n)),
    (rf"{NODES} holds? another run's contract", lambda s, names: s.each(World.mistake, names)),
    (rf"flip a bit of {NODES}", lambda s, names: s.each(World.flip, names)),
    (rf"the clock of {NODES} jumps by (\S+)", lambda s, n, by: s.each(lambda w, v: v.clock.jump(number(by)), n)),
    (rf"suspend {NODES} for (\S+)", lambda s, n, span: s.each(lambda w, v: w.suspend(v, number(span)), n)),
    (rf"stall {NODES} for (\S+)", lambda s, n, span: s.each(lambda w, v: w.stall(v, number(span)), n)),
    (rf"{NODES} (?:is|are) suspected", lambda s, names: s.each(World.suspect, names)),
    (rf"{NODES} (?:is|are) banned", Scenario.ban),
    (rf"{NODES} raises?", lambda s, names: s.each(World.fail, names)),
    (rf"the loss of {NODES} is not finite", lambda s, n: s.each(lambda w, v: w.poison(v), n)),
    (r"churn (\S+) of (\d+) nodes a round for (\d+) rounds", lambda s, *given: churn(s.world, *given)),
    (r"until step (\d+)", Scenario.until_step),
    (r"until round (\d+)", Scenario.until_round),
    (r"until the coordinator (dies|lives)", Scenario.until_coordinator),
    (r"until (\w+) has (\w+) (>=|<=|=|<|>) (\S+)", Scenario.until_node),
    (r"wait (\S+)", lambda s, span: asyncio.sleep(number(span))),
    (r"expect step (\d+) within (\S+)", Scenario.expect_soon),
    (r"expect replicas agree", Scenario.expect_agree),
    (r"expect fingerprint ([0-9a-f]{16})", Scenario.expect_fingerprint),
    (r"expect update (\d+) (holds|lacks) ([a-z0-9 ]+)", Scenario.expect_update),
    (r"expect (\w+) says (.+)", Scenario.expect_said),
    (r"expect (\w+)(?: of (\w+))? (>=|<=|=|<|>) (\S+)", Scenario.expect),
]
