"""The compressor as one fused kernel, where a trial in a process of its own says that this card can run it.

A kernel that reads or writes memory that is not its own makes the card useless to the whole process: each later
operation fails, so there would be nothing left to fall back to. In a process of its own it costs that process alone.
Without Triton, or after any failure, torch runs the compressor operation by operation.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from thinwire.compression import trial
from thinwire.compression.trial import Verdict
from thinwire_proto.contract import DemoSpec
from thinwire_proto.limits import KERNEL_TRIAL_S

if TYPE_CHECKING:
    from thinwire.compression.triton.compress import FusedCompressor

log = logging.getLogger("thinwire.node")

NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b|what\(\):")
"""The line of a traceback, or of a C++ program's end, that says what went wrong. CUDA's errors have more lines."""

_running: set[subprocess.Popen[str]] = set()


class TrialEndedError(Exception):
    """The trial was ended before it had a verdict."""


def make_fused(spec: DemoSpec, device: torch.device) -> FusedCompressor | None:
    """The fused compressor for a momentum on this device, or None if torch should do the work. Logs the
    decision once."""
    if device.type != "cuda":  # ROCm devices also have the type "cuda"
        return None
    plain = spec.model_copy(update={"k": 1})  # the kernel does not depend on k
    launch = _launch_once(plain.model_dump_json(), device)
    if launch is None:
        return None
    from thinwire.compression.triton.compress import FusedCompressor, launches  # noqa: PLC0415 - Triton is optional

    return FusedCompressor(spec, device, launches(device)[launch])


@lru_cache(maxsize=16)
def _launch_once(spec_json: str, device: torch.device) -> int | None:
    verdict = tried(DemoSpec.model_validate_json(spec_json), device)
    (log.warning if verdict.launch is None else log.info)("compressor on %s: %s", device, verdict.why)
    return verdict.launch


def tried(spec: DemoSpec, device: torch.device) -> Verdict:
    """Run the trial in a process of its own. The calling process does nothing on the card."""
    command = [sys.executable, "-m", trial.__name__, spec.model_dump_json(), str(device)]
    return verdict_of(command, KERNEL_TRIAL_S)


def verdict_of(command: Sequence[str], limit_s: float) -> Verdict:
    """The verdict that a command prints. If it fails in any way, or exceeds the limit, torch does the work. Raises
    TrialEndedError after `end_trials`."""
    try:
        status, output, errors = _run(command, limit_s)
        if status:
            return _failed(_reason(errors) or f"it ended with {status}")
        return Verdict(**json.loads(output.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return _failed(f"it took longer than {limit_s:.0f} s")
    except (OSError, ValueError, IndexError, TypeError) as error:
        return _failed(f"{type(error).__name__}: {error}")


def end_trials() -> None:
    """End the trials that run, in any thread. A node that is told to stop would wait for them."""
    for process in tuple(_running):
        _running.discard(process)
        process.kill()


def _run(command: Sequence[str], limit_s: float) -> tuple[int, str, str]:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with (
        tempfile.TemporaryDirectory(prefix="thinwire-") as empty,  # Python takes modules from there before its own
        subprocess.Popen(
            command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, errors="replace", cwd=empty
        ) as process,
    ):
        _running.add(process)
        try:
            output, errors = process.communicate(timeout=limit_s)
            if process not in _running:
                raise TrialEndedError
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
    return process.returncode, output, errors


def _reason(stderr: str) -> str:
    """The line that says what went wrong, else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    found = next(filter(NAMES_ERROR.match, reversed(lines)), lines[-1] if lines else "")
    return found.removeprefix("what():").strip()


def _failed(why: str) -> Verdict:
    return Verdict(None, f"operation by operation in torch, because the trial of the fused kernel failed ({why})")
