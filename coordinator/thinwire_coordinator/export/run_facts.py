"""Facts about a run up to a step, read from its ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from thinwire_coordinator.hall.ledger.results import Result, read_results
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.contract import Contract
from thinwire_proto.exact.amendments import contract_at, history, is_in_history
from thinwire_proto.exact.replica import Replica

CONTRIBUTORS_MAX = 500
"""Contributors that are named; the others are only counted."""
ROWS_AT_ONCE = 10_000
NAMES_MAX = 1 << 20
RESULTS_MAX = 100
"""Newest results of `evaluate` that the card lists."""


@dataclass(frozen=True)
class Contributor:
    """A node whose contributions were counted.

    name: as its owner chose it, so unchecked; empty if it has none. node: its id.
    """

    name: str
    node: str
    contributions: int
    samples: int


@dataclass(frozen=True)
class Curve:
    """The losses on a held-out set.

    losses: (step or iteration, mean loss in nats), oldest first. bits_per_nat: converts a loss into bits per byte of
    text; None if the samples are not text. unit: see `thinwire_proto.task.HeldOutSet`.
    """

    name: str
    losses: tuple[tuple[int, float], ...]
    bits_per_nat: float | None = None
    unit: str = "token"


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run for its model card.

    step: how far the model is trained, in the unit of its kind of exchange.
    contributors: those with the most contributions first, at most CONTRIBUTORS_MAX. nodes: all who contributed.
    contributions: those that are in an update, or the nodes' reports.
    curves: of the held-out sets that were measured. results: of `evaluate` on this very model, but for the losses on
    held-out sets. data: the data in words.
    """

    contract: Contract
    step: int
    head: str
    fingerprint: str
    parameters: int
    data: str
    contributors: tuple[Contributor, ...]
    nodes: int
    contributions: int
    samples: int
    tokens_a_sample: int
    curves: tuple[Curve, ...]
    results: tuple[Result, ...] = ()

    @property
    def unit(self) -> str:
        """What `step` counts, in a word."""
        return kind_of(self.contract).unit

    @property
    def tokens(self) -> int:
        """Tokens trained on that count, each as often as it was trained on."""
        return self.samples * self.tokens_a_sample


def facts_of(state: RunState, replica: Replica) -> RunFacts:
    """The facts of a run up to the replica's step. Raises LedgerError."""
    contributions: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    kind = kind_of(state.contract)
    rows = kind.rows_with_samples(replica)
    for first, last in history(state.contract, rows):
        for start in range(first, last, ROWS_AT_ONCE):
            for _, _, counted in state.ledger.counted_at(start, min(start + ROWS_AT_ONCE, last)):
                for node, share in counted:
                    contributions[node] += 1
                    samples[node] += share
    fingerprint = f"{replica.model_fingerprint():016x}"
    results = [one for one in read_results(state.folder) if one.fingerprint == fingerprint and not one.is_on_curve]
    names, step = state.ledger.names(NAMES_MAX), kind.trained(state.contract, replica)
    ordered = sorted(contributions, key=lambda node: (-contributions[node], node))
    return RunFacts(
        contract=contract_at(state.contract, max(0, step - 1)),
        step=step,
        head=replica.head.hex(),
        fingerprint=fingerprint,
        parameters=replica.layout.parameters,
        data=state.data.describe(),
        contributors=tuple(
            Contributor(names.get(node, ""), node, contributions[node], samples[node])
            for node in ordered[:CONTRIBUTORS_MAX]
        ),
        nodes=len(contributions),
        contributions=contributions.total(),
        samples=samples.total(),
        tokens_a_sample=state.tokens_a_sample,
        curves=_curves(state, step),
        results=tuple(results[-RESULTS_MAX:]),
    )


def _curves(state: RunState, step: int) -> tuple[Curve, ...]:
    found = []
    for held_out in state.data.held_out_sets():
        measured = [(at, loss) for at, loss in state.ledger.losses(held_out.name) if at <= step]
        losses = tuple((at, loss) for at, loss in measured if is_in_history(state.contract, at, step))
        bits_per_nat = held_out.bits_per_nat(state.contract.model.context)
        found.append(Curve(held_out.name, losses, bits_per_nat, held_out.unit))
    return tuple(curve for curve in found if curve.losses)
