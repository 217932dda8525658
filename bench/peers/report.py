"""Writes the outcomes as a page with tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.markdown import table
from bench.peers.evaluator import HELD_OUT_SAMPLES
from bench.peers.figures import Outcome, at_x
from bench.peers.scripts.trainee import ADAMW_RATE, MUON_RATE, WARMUP_BATCHES
from bench.peers.systems import NEEDED, SYSTEMS, System
from bench.wide_area.workload import MICRO_BATCH, PRESET, SAMPLES

OURS, YARDSTICK = "thinwire", "DDP"
MILLION = 1e6
UNTIL_END = 0.9
"""A pause of this share of what is watched began with the kill and had no end."""
LOAD_ALONE_MAX = 5.0
"""Load average of the four nodes and the host beside them, at most."""
ALONE = "The load average was {spread}, that of the measured programs included."
BUSY = """**The machine did other work as well**: its load average was {spread}, and nodes did not always get their
fifth. Differences in speed of less than a quarter say nothing; the last table has the load beside each system. Waiting
for the line takes as long on a busy machine, so the load slows down most what waits least."""
NEARLY = 0.02
"""Differences below this share are within the noise of one window."""


def write_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the page. outcomes: of a repeated measurement, the last one counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(outcomes), encoding="utf-8")


def page(outcomes: Sequence[Outcome]) -> str:
    """The page, in Markdown. Raises ValueError if windows of different lengths are mixed."""
    if len({outcome.quick for outcome in outcomes}) > 1:
        raise ValueError("the results mix windows of --quick with long ones; use another --into")
    last = {outcome.system: outcome for outcome in outcomes}
    known = [(system, last[system.name]) for system in SYSTEMS if system.name in last]
    measured = [(system, outcome) for system, outcome in known if not outcome.error]
    failed = [(system, outcome) for system, outcome in known if outcome.error]
    parts = [_head([outcome for _, outcome in known])]
    if measured:
        seconds, tokens = _common(measured)
        parts += [
            "## Training\n",
            _training(measured, seconds, tokens),
            "## When a node is killed\n",
            _killed(measured),
            "## Where others are better\n",
            _better(measured, seconds, tokens),
        ]
    if failed:
        parts += ["## Not measured\n", _failed(failed)]
    parts += ["## Systems\n", _run(known)]
    return "\n".join(parts)


def _head(outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0]
    days, loads = sorted({outcome.started[:10] for outcome in outcomes}), [outcome.load for outcome in outcomes]
    span, spread = " to ".join(dict.fromkeys((days[0], days[-1]))), f"{min(loads):.1f} to {max(loads):.1f}"
    parts = [
        f"""`make bench-peers` measures thinwire beside others in their own code, and writes this page. All train preset
        `{PRESET}` on the same text, one system after the other, on the same machine: {first.machine}. {first.nodes}
        nodes have a fifth of it each, and a line of {first.link}, as in [wan.md](wan.md). A host without a limit has
        the coordinator, or what a system has in its place. Measured {span}, one window a system.""",
        BUSY.format(spread=spread) if max(loads) > LOAD_ALONE_MAX else ALONE.format(spread=spread),
        f"""Each system is in an environment of its own from the package index, with `{NEEDED[0]}`. Scripts are in
        `bench/peers/scripts`. A step is {SAMPLES} samples of a node in micro-batches of {MICRO_BATCH}; thinwire's
        rounds are those of `init`. The optimizer is AdamW at {ADAMW_RATE:g} where a system does not bring its own, the
        best of four rates; in one row, Muon at {MUON_RATE:g}, the best of three. Every rate is constant after
        {WARMUP_BATCHES} steps. Nothing else was swept, ours included.""",
    ]
    return "\n".join(["# Beside other systems\n", *map(_paragraph, parts)])


def _paragraph(text: str) -> str:
    """A paragraph with the line breaks of a page."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


def _common(measured: Sequence[tuple[System, Outcome]]) -> tuple[float, int]:
    """The seconds that all curves reach, and the tokens that DDP's reaches: with those of the slowest system, nobody
    would have learned anything. Without DDP, the tokens that all reach."""
    ends = {system.name: outcome.curve[-1] for system, outcome in measured}
    tokens = ends[YARDSTICK][1] if YARDSTICK in ends else min(end[1] for end in ends.values())
    return min(end[0] for end in ends.values()), tokens


def _training(measured: Sequence[tuple[System, Outcome]], seconds: float, tokens: int) -> str:
    titles = ["system", "tokens/s", f"loss after {seconds:.0f} s", f"loss at {tokens:,} tokens"]
    titles += ["sent per token", "received per token", "sent per 10⁶ parameters and token", "received"]
    rows = []
    for system, outcome in measured:
        up, down = outcome.bytes_a_token()
        millions = outcome.parameters / MILLION
        rows.append(
            [
                system.name,
                f"{outcome.tokens_s:,.0f}",
                _number(at_x(outcome.curve, seconds, 0)),
                _number(at_x(outcome.curve, tokens, 1)),
                f"{up:,.1f} B",
                f"{down:,.1f} B",
                f"{up / millions:,.1f} B",
                f"{down / millions:,.1f} B",
            ]
        )
    note = _paragraph(
        f"""Loss: held-out, in nats a byte, on {HELD_OUT_SAMPLES} samples, of the parameters of the first node. With
        gossip, and between two exchanges of local steps, those are its own. One evaluator measures all systems. The
        tokens are those of {YARDSTICK} in its window; a dash: a system trained on fewer. Bytes: what the kernel counted
        on a node's interface, by the tokens of that node. A window ends amid an exchange, so bytes may be a quarter off
        where a system has few of them, such as Flower and torchft DiLoCo, and a twentieth elsewhere."""
    )
    return f"{note}\n{table(titles, rows)}"


def _killed(measured: Sequence[tuple[System, Outcome]]) -> str:
    titles = ["system", "longest pause before, s", "all stood still, s", "the others", "back after, s", "back equal"]
    titles += ["loss of each node at the end"]
    rows = [
        [
            system.name,
            f"{outcome.gap_before_s:.1f}",
            _still(outcome),
            f"ended: {_shortened(outcome.ended)}" if outcome.ended else "went on",
            "not while watched" if outcome.back_s is None else f"{outcome.back_s:.1f}",
            _equal(system, outcome),
            ", ".join(f"{loss:.2f}" for loss in outcome.last_losses),
        ]
        for system, outcome in measured
    ]
    watched_s = sorted(outcome.after_s for _, outcome in measured)
    after_s = " to ".join(dict.fromkeys(f"{seconds:.0f}" for seconds in (watched_s[0], watched_s[-1])))
    note = _paragraph(
        f"""One of the nodes is killed with `kill -9`, and started again ten seconds later with the same command. *All
        stood still* is the longest time in the {after_s} s after the kill in which no other node finished a batch.
        *Back* counts from the new start to the first batch."""
    )
    return f"{note}\n{table(titles, rows)}"


def _still(outcome: Outcome) -> str:
    if outcome.still_s > UNTIL_END * outcome.after_s:
        return f"{outcome.still_s:.1f}, until the end"
    if outcome.gap_before_s > outcome.after_s:
        return f"at least {outcome.still_s:.1f}: watched for less than a round"
    return f"{outcome.still_s:.1f}"


def _equal(system: System, outcome: Outcome) -> str:
    if not system.equal:
        return "not promised"
    if outcome.back_s is None:
        return "–"
    return {True: "yes, to the bit", False: "**no**", None: "no common step to compare"}[outcome.equal]


def _better(measured: Sequence[tuple[System, Outcome]], seconds: float, tokens: int) -> str:
    ours = next((outcome for system, outcome in measured if system.name == OURS), None)
    if ours is None:
        return f"{OURS} itself is not among the results.\n"
    measures: list[tuple[str, Callable[[System, Outcome], float | None]]] = [
        ("tokens a second", lambda _, outcome: -outcome.tokens_s),
        (f"loss after {seconds:.0f} s", lambda _, outcome: at_x(outcome.curve, seconds, 0)),
        (f"loss at {tokens:,} tokens", lambda _, outcome: at_x(outcome.curve, tokens, 1)),
        ("bytes sent a token", lambda _, outcome: outcome.bytes_a_token()[0]),
        ("bytes received a token", lambda _, outcome: outcome.bytes_a_token()[1]),
        ("time that all stood still", lambda _, outcome: outcome.still_s),
        ("time until the killed node was back", lambda _, outcome: outcome.back_s),
    ]
    own = next(system for system in SYSTEMS if system.name == OURS)
    rows = []
    for what, value in measures:
        mark = value(own, ours)
        others = [(system.name, value(system, outcome)) for system, outcome in measured if system.name != OURS]
        found = [name for name, other in others if _is_better(other, mark)]
        rows.append([what, ", ".join(found) or "none"])
    text = f"By more than {NEARLY:.0%} better than `{OURS}` in the tables above:\n"
    return f"{text}\n{table(['measure', 'systems'], rows)}"


def _is_better(other: float | None, mark: float | None) -> bool:
    if other is None:
        return False
    return mark is None or mark - other > NEARLY * abs(mark)


def _failed(failed: Sequence[tuple[System, Outcome]]) -> str:
    rows = [[system.name, system.package or "–", _shortened(outcome.error)] for system, outcome in failed]
    return table(["system", "package", "the last line of its error"], rows)


def _run(known: Sequence[tuple[System, Outcome]]) -> str:
    titles = [
        "system",
        "what",
        "versions",
        "lines that a user writes",
        "commands",
        "measured",
        "window",
        "load average",
    ]
    rows = [
        [
            system.name,
            system.what,
            ", ".join(f"{name} {version}" for name, version in outcome.versions.items()) or "–",
            system.lines,
            system.commands,
            outcome.started,
            f"{outcome.seconds:.0f} s" if outcome.seconds else "–",
            f"{outcome.load:.1f}",
        ]
        for system, outcome in known
    ]
    note = _paragraph(
        """Lines are those of the script without blank lines, comments and docstrings. The model, the text and the
        batches are in a file that all scripts share, and do not count. Commands are what a user types: on the host that
        does not train, and on a node."""
    )
    return f"{note}\n{table(titles, rows)}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _shortened(text: str, length: int = 160) -> str:
    """Text for a cell of a table."""
    plain = text.replace("|", "\\|")
    return f"`{plain[:length]}{'…' if len(plain) > length else ''}`"
