"""Computes which passes over a model fit into memory, and the bits of its frozen base that leave room for them.

The same arithmetic for a node that is asked to take part in a run, and for an organizer who wants to know whose cards
can. Needs no torch; `model_memory` counts the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.trained import Trained
from thinwire_proto.needs import SAMPLES_MAX_CARD, samples_at_once, trained_bytes

SHARE_OF_CARD = 0.9
"""The part of a card's memory that a node uses: the rest is for the desktop, and for gaps between tensors."""
CARDS = (12 << 30, 16 << 30, 24 << 30)
"""The memory of cards that many people have, in bytes."""


@dataclass(frozen=True)
class Activations:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included; 0 if it is not
    known. checkpointed: at most, if each stage of the model keeps its inputs alone and is computed again. stage: of the
    largest stage. loss: what the backward pass of the loss takes beside what is kept."""

    whole: int = 0
    checkpointed: int = 0
    stage: int = 0
    loss: int = 0

    def peak(self, samples: int, *, checkpoints: bool, decoding: int = 0) -> int:
        """The most bytes that both passes of so many samples hold at a time. decoding: for a matrix of a quantized base
        while a layer computes."""
        in_loss, in_stage = self._at_once(checkpoints)
        return max(samples * in_loss, samples * in_stage + decoding)

    def samples_within(self, left: int, *, checkpoints: bool, decoding: int = 0) -> int | None:
        """The most samples whose `peak` is within so many bytes; None if any number is, as far as is known."""
        in_loss, in_stage = self._at_once(checkpoints)
        if left < decoding or not in_loss:
            return 0 if left < decoding else None
        return min(left // in_loss, (left - decoding) // in_stage if in_stage else left)

    @property
    def always_checkpointed(self) -> Activations:
        """Those of passes that checkpoint in any case."""
        return Activations(self.checkpointed, self.checkpointed, loss=max(0, self.loss - self.stage))

    def _at_once(self, checkpoints: bool) -> tuple[int, int]:
        """The bytes held of a sample in the backward pass of the loss, and in that of a stage, which comes after it."""
        if checkpoints:
            return self.checkpointed - self.stage + self.loss, self.checkpointed
        return self.whole + self.loss, self.whole


@dataclass(frozen=True)
class Pass:
    """A pass that fits into memory: its samples, and whether it has to checkpoint. samples: None if they need no
    bound. moments_on_host: whether momentum and moments have to be in the machine's memory, because the card's has no
    room for them."""

    samples: int | None = None
    checkpoints: bool = False
    moments_on_host: bool = False


@dataclass(frozen=True)
class ModelMemory:
    """The memory of a model beside what is trained, in bytes. bits: of a parameter of its frozen base; None if there is
    no choice. frozen: frozen tensors and buffers. activations: of one sample. decoding: a quantized matrix while a
    layer computes with it. loading: on the host, while the base is read for another device."""

    bits: int | None = None
    frozen: int = 0
    activations: Activations = field(default_factory=Activations)
    decoding: int = 0
    loading: int = 0

    def largest_pass(self, left: int, samples: int) -> Pass | None:
        """The largest pass within so many bytes, of at most so many samples; without checkpoints if one sample fits so.
        None: not even one sample with checkpoints fits."""
        for checkpoints in (False, True):
            fits = self.activations.samples_within(left, checkpoints=checkpoints, decoding=self.decoding)
            if fits is None or fits >= samples:
                return Pass(None, checkpoints)
            if fits:
                return Pass(fits, checkpoints)
        return None

    @property
    def least(self) -> int:
        """The bytes that a pass of one sample takes, at least."""
        peaks = (self.activations.peak(1, checkpoints=wanted, decoding=self.decoding) for wanted in (False, True))
        return min(peaks)


def card_words(run: RunSpec, trained: Trained, memories: Iterable[ModelMemory]) -> dict[str, str]:
    """How each of CARDS can train a run, in words by the size; empty if the passes of its model cannot be counted.

    memories: the most exact first."""
    found, words = list(memories), {}
    if not found or not all(memory.activations.whole for memory in found):
        return {}
    samples, context = samples_at_once(run, SAMPLES_MAX_CARD), getattr(run.model, "context", 0)
    for card in CARDS:
        room = int(SHARE_OF_CARD * card) - trained_bytes(run, trained)
        fits = best_fit(found, room, samples)
        words[f"{card >> 30} GB"] = "too small" if fits is None else pass_words(*fits, samples, context)
    return words


def best_fit(memories: Iterable[ModelMemory], room: int, samples: int) -> tuple[ModelMemory, Pass] | None:
    """The first of these that fits into so many bytes beside what is trained, and its largest pass."""
    for memory in memories:
        if (largest := memory.largest_pass(room - memory.frozen, samples)) is not None:
            return memory, largest
    return None


def pass_words(memory: ModelMemory, largest: Pass, samples: int, context: int) -> str:
    """A pass in words. samples: of one without a bound. context: of a sample, in tokens; 0 if it has none."""
    of_base = f"a base of {memory.bits} bits, " if memory.bits is not None else ""
    of_text = f" of {context:,} tokens" if context else ""
    how = ", with checkpoints" if largest.checkpoints else ""
    count = largest.samples or samples
    return f"{of_base}{count} {'sample' if count == 1 else 'samples'}{of_text} at once{how}"
