"""`--answer` and `--probe`: runs the one, and puts the figures of the other into a setting's document."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from thinwire_common.options import host_and_port
from thinwire_planner.choosing.plan import seconds_in_words
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


def fill_in(document: dict[str, Any], address: str, samples: int) -> None:
    """Measure what the document does not say: rates and round trip, and with a preset the steps of this machine.

    Raises ConfigError.
    """
    line = measure_line(*host_and_port(address))
    _tell(line)
    nodes = document.setdefault("nodes", {})
    measured = {
        "up_mbit": line.up.rate_bits_s / MEGA,
        "down_mbit": line.down.rate_bits_s / MEGA,
        "rtt_ms": 1000 * line.rtt_s,
    }
    for key, value in measured.items():
        nodes.setdefault(key, value)
    preset = document.get("model", {}).get("preset")
    if preset is None or "seconds" in document.get("compute", {}):
        return

    from thinwire_planner.probe.machine import measure_machine  # noqa: PLC0415 - torch takes seconds

    machine = measure_machine(preset, samples)
    document.setdefault("compute", {})["seconds"] = list(machine.steps_s)
    rates = document.setdefault("rates", {})
    rates.setdefault("merge", machine.merge / MEGA)
    rates.setdefault("apply", machine.apply / MEGA)
    mean = sum(machine.steps_s) / len(machine.steps_s)
    _say(
        f"this machine: {seconds_in_words(mean)} a step of {samples} samples ({len(machine.steps_s)} steps); merge "
        f"{machine.merge / MEGA:,.0f} and apply {machine.apply / MEGA:,.0f} million parameters a second"
    )


def _tell(line: MeasuredLine) -> None:
    _say(
        f"the line: {line.up.rate_bits_s / MEGA:,.3g} Mbit/s up, {line.down.rate_bits_s / MEGA:,.3g} down, round trip "
        f"{seconds_in_words(line.rtt_s)}; the fit is within {max(line.up.error, line.down.error):.0%}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)
