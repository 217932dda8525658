"""Finds what fits into a node of several equal cards, and how its processes hold the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_proto.contract import RunSpec
from thinwire_proto.needs import SAMPLES_MAX_CARD, samples_at_once, trained_bytes
from thinwire_proto.pass_memory import SHARE_OF_CARD, best_fit, pass_words


@dataclass(frozen=True)
class SiteFit:
    """fits: None: it is not known, because the passes of the model cannot be counted. words: how the cards hold the
    model, and the samples of a pass of each; or why they cannot."""

    fits: bool | None
    words: str


def fit_of(run: RunSpec, facts: ModelFacts, card_bytes: float, cards: int) -> SiteFit:
    """card_bytes: the memory of each card. The same sums as on a node, without the host's memory."""
    if not facts.memories or not all(memory.activations.whole for memory in facts.memories):
        return SiteFit(None, "not known: the passes of this model cannot be counted")
    samples, room = samples_at_once(run, SAMPLES_MAX_CARD), int(SHARE_OF_CARD * card_bytes)
    trained = trained_bytes(run, facts.size)
    if (found := best_fit(facts.memories, room - trained, samples)) is not None:
        return SiteFit(True, f"whole on each card: {pass_words(*found, samples, facts.context)}")
    if facts.frozen:
        return SiteFit(False, "too large: each card must hold the whole frozen base and adapter")
    checkpointed = [replace(one, activations=one.activations.always_checkpointed) for one in facts.memories]
    found = best_fit(checkpointed, room - trained // cards - facts.gathered_bytes, samples)
    if found is None:
        return SiteFit(False, "too large, even divided among the cards")
    memory, largest = found
    if why := run.rule.NEEDS_WHOLE:
        return SiteFit(
            False, f'too large: rule.kind = "{run.rule.kind}" {why}, so each card must hold the whole model; try "demo"'
        )
    words = pass_words(memory, replace(largest, checkpoints=True), samples, facts.context)
    return SiteFit(True, f"divided among the cards: {words} on each")
