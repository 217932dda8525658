"""The kind of exchange `gossip`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thinwire_coordinator.gossip.calls import GossipService
from thinwire_coordinator.gossip.deposits import deposit_bytes
from thinwire_coordinator.gossip.directory import Phase
from thinwire_coordinator.gossip.gossip import Gossip, GossipUpkeep, first_step
from thinwire_coordinator.gossip.ledger_rows import KIND as KIND_OF_ROW
from thinwire_coordinator.gossip.ledger_rows import MEAN, state_at_head
from thinwire_coordinator.gossip.measurements import NODES_MAX as SKETCHED_MAX
from thinwire_coordinator.gossip.measurements import sketches_named_by
from thinwire_coordinator.gossip.relay import LINES_MAX, RELAY_BYTES_MAX
from thinwire_coordinator.gossip.settings import gossip_settings
from thinwire_coordinator.gossip.store import directory_on_disk
from thinwire_coordinator.gossip.verify import verify_beats
from thinwire_coordinator.gossip.view import METRICS
from thinwire_coordinator.hall.access.door import Door
from thinwire_coordinator.hall.capacity import COPIES, ROW_BYTES, Forecast, OwnMemory, Sealed
from thinwire_coordinator.hall.kind import Kind, Opening
from thinwire_coordinator.hall.ledger.checks import SignatureCheck
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_coordinator.hall.measuring import Measuring
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import REPORT_BYTES, GossipSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.consensus import MEASURE_EVERY, SKETCH_BYTES
from thinwire_proto.wire.parts import PART_BYTES_MAX
from thinwire_proto.wire.rows import Row

LOST_LINE_BYTES = 1 << 10
"""A line of the relay that is lost: the word that waits for its sender, and its entry in a set."""
SNAPSHOTS = 3
"""The first state, the mean, and the mean as it is written."""


class GossipKind(Kind):
    """A row is no iteration: there is a model before the first row, and one after the last, the mean of all nodes."""

    unit = "iteration"
    has_standby = False
    metrics = tuple(METRICS)
    counted = "reports"
    origin = (
        "The model is the mean of the parameters with which the nodes ended. The run's ledger seals it and the nodes'",
        "signatures, and whoever has the run's state directory can check it:",
    )
    about_losses = "Before the end, of the nodes' own parameters; at the end, of their mean, which is this model."

    def open(self, opening: Opening) -> Gossip:
        hall, settings = opening.hall, opening.settings
        if settings.seal_after_standby:
            raise ConfigError("--seal-after-standby: a gossip run has no standby")
        run = Gossip(hall, settings.wait_for, evaluate_every=settings.evaluate_every)
        measuring = Measuring(hall, opening.held_out, samples=settings.http is not None, unit=self.unit)
        run.keep_up = GossipUpkeep(hall, measuring, run.beats.figures, run.held_out.results)
        return run

    def service(self, run: Any, door: Door, **others: Any) -> GossipService:
        return GossipService(run, door, **others)  # type: ignore[abstract]  # other kinds have the rest

    def at_head(self, state: RunState, go_on: GoOn = always) -> Replica:
        return state_at_head(state, go_on)

    def model_at(self, state: RunState, step: int | None) -> Replica:
        if step == 0:
            return state.load_snapshot(0)
        mean = state_at_head(state)
        if mean.step == 0:
            raise ConfigError(
                "the model of a gossip run is the mean of all nodes at the end; this run is not complete yet; --step 0 "
                "gives the first state"
            )
        end = self.trained(state.contract, mean)
        if step not in (None, end):
            raise ConfigError(
                f"there is no model of iteration {step}: a gossip run has its first state, --step 0, and the mean at "
                f"its end, --step {end}"
            )
        return mean

    def trained(self, contract: Contract, replica: Replica) -> int:
        return contract.schedule.steps if replica.step else 0

    def first_amended(self, state: RunState) -> int:
        contract, ledger = state.contract, state.ledger
        directory = directory_on_disk(ledger, gossip_settings(contract, 1), 0.0)
        if ledger.step and ledger.row(ledger.step - 1).extras.get(KIND_OF_ROW) == MEAN:
            directory.phase = Phase.COMPLETE
        return first_step(contract, directory)

    def soon(self, step: int) -> str:
        return f"an iteration that no node can have come to ({step}, or soon after)"

    def rows_with_samples(self, replica: Replica) -> int:
        return max(0, replica.step - 1)  # the last one has parameters alone

    def forecast(self, contract: Contract, sealed: Sealed) -> Forecast:
        """How many beats a run takes depends on the nodes' pace. A beat is usually longer than an iteration, so one row
        for each iteration is more than most runs have. Before the first row, and for sketches, the nodes are those that
        it begins with."""
        nodes, steps = contract.round.min_contributions, contract.schedule.steps
        row_bytes = -(-sealed.bodies_bytes // sealed.bodies) if sealed.bodies else nodes * REPORT_BYTES
        return Forecast(
            snapshot_bytes=sealed.snapshot_bytes,
            update_bytes=row_bytes,
            measured=sealed.bodies > 0,
            snapshots=SNAPSHOTS,
            snapshots_bytes=SNAPSHOTS * sealed.snapshot_bytes,
            updates_bytes=row_bytes * steps + nodes * SKETCH_BYTES * (1 + steps // MEASURE_EVERY),
            rows_bytes=ROW_BYTES * steps,
            body="the reports of a beat",
            bodies="every report",
            is_bound=False,
        )

    def memory(self, contract: Contract, frozen: int, *, audits: bool) -> OwnMemory:
        nodes = contract.round.nodes_max
        # parcels that wait, words about lost lines, and for each node a parcel that comes and one that leaves
        moving = (COPIES - 1 + COPIES) * (PART_BYTES_MAX + HEADER_BYTES_MAX)
        named = {
            "relay": RELAY_BYTES_MAX + nodes * (LINES_MAX * LOST_LINE_BYTES + moving),
            "deposits": deposit_bytes(TileLayout(contract.parameters).parameters),
            # of a measurement, the body that a row names, and three arrays of float64 while they are compared
            "sketches": min(nodes, SKETCHED_MAX) * SKETCH_BYTES * (COPIES + 3 * 2),
        }
        return OwnMemory(PART_BYTES_MAX, 0, named)

    def verify(self, state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> None:
        verify_beats(state, say, signatures)

    def in_card(self, contract: Contract, steps: int, contributions: int) -> Sequence[tuple[str, str]]:
        exchange = contract.exchange
        assert isinstance(exchange, GossipSpec)
        return [
            ("exchange", "gossip: each node mixes its parameters with a few others"),
            ("topology", exchange.topology),
            ("codec", exchange.codec),
            ("iterations", f"{steps:,}, with {contributions:,} reports of nodes"),
        ]

    def bodies_named_by(self, row: Row) -> Iterable[str]:
        return [sketches_named_by(row)]


KIND = GossipKind()
