"""Warns if all ranks send the same, which shows that their gradients are not local.

Ranks with gradients of their own do not choose the same components several times in a row. They always do if something
averages the gradients, as DistributedDataParallel does, or if all ranks draw the same samples. The loss falls all the
same, and all ranks stay equal, so nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.script import warn_script

STEPS_IN_A_ROW = 3
BYTES_LEAST = 32
"""A few parameters have so few components that ranks may well choose the same ones."""


class EqualPayloads:
    """Counts the steps in a row in which all ranks have sent the same, and warns once."""

    def __init__(self) -> None:
        self._steps = 0
        self._warned = False

    def see(self, payloads: Sequence[dict[int, bytes]]) -> None:
        """payloads: of one step, by rank; for each the bytes of its param groups."""
        first, *others = payloads
        enough = bool(others) and sum(map(len, first.values())) >= BYTES_LEAST
        self._steps = self._steps + 1 if enough and all(other == first for other in others) else 0
        if self._steps == STEPS_IN_A_ROW and not self._warned:
            self._warned = True
            warn_script(
                f"all ranks have sent the same components in {STEPS_IN_A_ROW} steps in a row, so they have the same "
                "gradients: either something averages these, as DistributedDataParallel does without no_sync, or all "
                "ranks train on the same samples. docs/optimizer.md says how gradients stay local"
            )
