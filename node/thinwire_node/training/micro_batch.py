"""The size of a micro-batch: as many samples as a device has memory for.

It begins with what fits by the sums of `resources`, which know nothing of other programs. A pass that runs out of
memory is repeated in smaller pieces. By then the backward pass may have added the gradients of some tensors to the sums
of a round. They stay there, and the pieces add those of the other tensors alone: nothing is lost or counted twice, and
nothing has to be undone, which would take a pass over as many samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from thinwire_node.training.failures import Interrupted, NotFinite, OutOfMemory
from thinwire_node.training.gradient_receiver import Tensors
from thinwire_proto.out_of_memory import TRIES_MAX, TooLittleMemory, give_back, too_little
from thinwire_proto.task import Batch

log = logging.getLogger("thinwire.node")

SAMPLES_MAX = 8
"""The largest micro-batch on a CPU, unless the volunteer says otherwise. More samples at once are not faster there."""
SHRINK = (2, 4)
"""Divisors of the first failures. The next one is followed by single samples with checkpoints."""
GROWS_AFTER = 500
"""Passes without a failure, after which twice as many samples are tried: another program may have ended. If it has not,
a pass of so many is wasted."""


class MicroBatch:
    """The number of samples in one pass, and whether it checkpoints: keeps only the inputs of each stage of the model,
    and computes the rest again in the backward pass.

    samples_max: what the volunteer allows, if he says. checkpoints: from the beginning."""

    def __init__(self, samples_max: int | None = None, *, checkpoints: bool = False) -> None:
        self.fit(samples_max or SAMPLES_MAX, checkpoints=checkpoints)

    def fit(self, samples_max: int, *, checkpoints: bool = False) -> None:
        """Begin anew with what another contract allows."""
        self._samples_max, self._checkpoints = samples_max, checkpoints
        self.samples, self.checkpoints = samples_max, checkpoints
        self._failures = self._passes = self._in_vain = 0

    def in_pieces(self, batch: Batch, sums: Tensors | None, train: Callable[[Batch, Tensors | None], None]) -> None:
        """Call `train` with pieces of a batch that fit into memory, and the sums to which a piece adds.

        Raises what `train` does. But if it raises OutOfMemory, it gets smaller pieces. Raises TooLittleMemory if not
        even one sample fits."""
        todo = [(range(len(batch[0])), sums)]
        while todo:
            whole, into = todo.pop(0)
            part, rest = whole[: self.samples], whole[self.samples :]
            if rest:
                todo.insert(0, (rest, into))
            try:
                train(tuple(tensor[part.start : part.stop] for tensor in batch), into)
            except OutOfMemory as error:
                reason, added = str(error), error.added
            except (Interrupted, NotFinite) as error:
                error.spoils |= into is not sums
                raise
            else:
                self._fitted()
                continue
            self._shrink(len(part), reason)
            if into is not None and added:
                into = {name: total for name, total in into.items() if name not in added}
            todo.insert(0, (part, into))

    def _fitted(self) -> None:
        self._in_vain = 0
        self._passes += 1
        if self._failures and self._passes >= GROWS_AFTER:
            self.samples, self.checkpoints = min(self._samples_max, 2 * self.samples), self._checkpoints
            self._passes = self._failures = 0

    def _shrink(self, samples: int, reason: str) -> None:
        """A pass over so many samples has failed."""
        give_back()
        self._passes = 0
        self._in_vain += samples == 1 and self.checkpoints
        if self._in_vain >= TRIES_MAX:
            raise TooLittleMemory(too_little(reason))
        if samples > 1 and self._failures < len(SHRINK):
            self.samples = min(self.samples, max(1, samples // SHRINK[self._failures]))
        else:
            self.samples, self.checkpoints = 1, True
        self._failures += 1
        kept = ", with checkpoints" if self.checkpoints else ""
        log.warning("%d samples at once do not fit into memory (%s): now %d%s", samples, reason, self.samples, kept)
