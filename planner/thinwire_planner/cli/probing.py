"""`--answer` and `--probe`: runs the one, and puts the figures of the other into a setting's document."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

from thinwire_common.options import host_and_port
from thinwire_planner.choosing.plan import seconds_in_words, three_digits
from thinwire_planner.cli.plan_file import parse, setting_of
from thinwire_planner.probe.answer import answering
from thinwire_planner.probe.line import MeasuredLine, measure_line
from thinwire_proto.errors import ConfigError

MEGA = 1e6


def answer(address: str) -> None:
    """Answer probes until the process is interrupted. Raises ConfigError if it cannot listen."""
    host, port = host_and_port(address)
    try:
        asyncio.run(_answer(host, port))
    except OSError as error:
        raise ConfigError(f"--answer {address}: {error.strerror}; give an address and a free port") from None


async def _answer(host: str, port: int) -> None:
    async with answering(host, port) as (found, at):
        print(f"answers the probes of `thinwire plan --probe` at {found}:{at}", flush=True)
        await asyncio.Event().wait()


def fill_in(document: dict[str, Any], source: str, address: str, samples: int) -> None:
    """Measure what the document does not say: rates and round trip, and with a preset the steps of this machine.

    What is wrong in the document is told before anything is measured. Raises ConfigError.
    """
    measures_machine = _check(document, source)
    line = measure_line(*host_and_port(address))
    _tell(line)
    _put_line(document, line.up.rate_bits_s, line.down.rate_bits_s, line.rtt_s)
    if not measures_machine:
        return

    from thinwire_planner.probe.machine import measure_machine  # noqa: PLC0415 - torch takes seconds

    machine = measure_machine(document["model"]["preset"], samples)
    _put(document, "compute", {"seconds": list(machine.steps_s)})
    _put(document, "rates", {"merge": machine.merge / MEGA, "apply": machine.apply / MEGA})
    mean = sum(machine.steps_s) / len(machine.steps_s)
    _say(
        f"this machine: {seconds_in_words(mean)} a step of {samples} samples ({len(machine.steps_s)} steps); merge "
        f"{machine.merge / MEGA:,.0f} and apply {machine.apply / MEGA:,.0f} million parameters a second"
    )


def _check(document: dict[str, Any], source: str) -> bool:
    """Whether the steps of this machine are to be measured. Raises ConfigError for a document that would be refused
    afterwards."""
    trial = copy.deepcopy(document)
    _put_line(trial, MEGA, MEGA, 0.0)
    model, compute = trial.get("model"), trial.get("compute", {})
    measures = isinstance(model, dict) and "preset" in model and isinstance(compute, dict) and "seconds" not in compute
    if measures:
        _put(trial, "compute", {"seconds": [1.0]})
    setting_of(parse(trial, source))
    return measures


def _put_line(document: dict[str, Any], up_bits_s: float, down_bits_s: float, rtt_s: float) -> None:
    """Groups have rates of their own."""
    rates = {} if document.get("group") else {"up_mbit": up_bits_s / MEGA, "down_mbit": down_bits_s / MEGA}
    _put(document, "nodes", {**rates, "rtt_ms": 1000 * rtt_s})


def _put(document: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    """Add what a section does not say. A section of a wrong type is left to `parse`."""
    inside = document.setdefault(section, {})
    if isinstance(inside, dict):
        for key, value in values.items():
            inside.setdefault(key, value)


def _tell(line: MeasuredLine) -> None:
    up, down = (three_digits(one.rate_bits_s / MEGA) for one in (line.up, line.down))
    _say(
        f"the line: {up} Mbit/s up, {down} down, round trip "
        f"{seconds_in_words(line.rtt_s)}; the fit is within {max(line.up.error, line.down.error):.0%}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)
