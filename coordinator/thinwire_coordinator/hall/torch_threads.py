"""The number of torch threads of a run.

On a busy machine, small parallel regions cost many times their work (docs/log/watching.md), so small models are
computed on one thread.
"""

from __future__ import annotations

LARGE = 8_000_000
"""Number of parameters from which all cores are used. An update of 8.4M parameters takes 27 ms on two idle cores, and
50 ms on one."""


def default_threads(parameters: int, cores: int) -> int:
    return cores if parameters >= LARGE else 1
