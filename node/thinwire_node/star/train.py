"""The training loop of a session. `pacing` decides whether to train, extract, drop or wait."""

from __future__ import annotations

import logging
from dataclasses import replace

from thinwire_common.logs import tell
from thinwire_common.units import human_bytes, human_seconds
from thinwire_common.within import set_or_after
from thinwire_node.exchange.port import AnnouncedRound, Claim, Exchange, RunComplete, Waiting
from thinwire_node.runtime import Clocks
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.star import pacing
from thinwire_node.star.deliver import Delivery, Outgoing
from thinwire_node.star.situation import Situation
from thinwire_node.star.work import Work
from thinwire_node.training.failures import Interrupted
from thinwire_proto.blobs import BlobMissing
from thinwire_proto.limits import LOOK_AGAIN_S

log = logging.getLogger("thinwire.node")

COMPONENT_BYTES = 1.25
"""The size of a component in a payload, before the first is known."""


class TrainingLoop:
    """Carries out the decisions of `pacing`."""

    def __init__(
        self,
        exchange: Exchange,
        work: Work,
        record: Record,
        options: NodeOptions,
        clocks: Clocks,
        situation: Situation,
        delivery: Delivery,
        prefetch: Prefetch,
        evaluation: Evaluation,
    ) -> None:
        self._exchange = exchange
        self._work = work
        self._record = record
        self._options = options
        self._clocks = clocks
        self._situation = situation
        self._delivery = delivery
        self._prefetch = prefetch
        self._evaluation = evaluation
        self._data_wait_s = 0.0  # since training last went on
        self._waiting_text = ""  # of the newest `node.waiting` event
        self._has_told_of_limit = False

    async def run(self) -> None:
        """Train until the run is complete, enough rounds are done, or the node leaves."""
        work, situation = self._work, self._situation
        if (pending := work.pending) is not None:  # a lost session or an earlier process did not learn the outcome
            outcome = await self._exchange.outcome(pending.hash)
            await self._delivery.settle(outcome, pending.samples)
        while not self._done():
            if situation.resting:
                return
            if situation.leaving or (situation.finishing and (work.pending is not None or not work.trainer.samples)):
                await work.settled()
                return
            situation.changed.clear()
            self._exchange.clock.check()
            self._prefetch.pass_over(work.lease)
            decision = situation.doing = pacing.decide(self.view(), self._work.contract.round)
            await self._do(decision, situation.round)

    async def _do(self, decision: pacing.Decision, round_: AnnouncedRound | None) -> None:
        if isinstance(decision, pacing.Train):
            await self._train(decision.samples)
        elif isinstance(decision, pacing.Measure):
            await self._measure(decision.samples)
        elif isinstance(decision, pacing.Extract):
            assert round_ is not None
            await self._extract(round_, decision.why)
        elif isinstance(decision, pacing.SayNothing):
            assert round_ is not None
            await self._say_nothing(round_)
        elif isinstance(decision, pacing.Drop):
            await self._drop(decision.why)
        else:
            await self._wait(decision)

    def _done(self) -> bool:
        if self._options.rounds is not None and self._record.counted >= self._options.rounds:
            return True
        newest, work = self._situation.newest, self._work
        if not isinstance(newest, RunComplete) or work.pending is not None:
            return False
        if work.replica is None or work.replica.step < newest.step:
            return False
        log.info("the run is complete")
        return True

    def view(self) -> pacing.PacingView:
        work, situation, now = self._work, self._situation, self._clocks.now()
        assert work.replica is not None
        allowed = self._record.at_once.samples * self._record.ranks
        micro_batch = work.contract.rule.micro_batch_max(min(allowed, self._options.micro_batch or allowed))
        if self._record.lent.share < 1 and not self._record.speed.sample_s:
            micro_batch = 1  # nobody knows yet how long it takes, and the rest is many times as long
        record, length_s = self._record, work.contract.round.length_s
        tail_s = record.tail.seconds(length_s)
        if record.upload_max is not None and record.tail.bytes_s is None:
            tail_s = max(tail_s, pacing.SENDING_SHARE * length_s)  # nothing was sent yet
        announced, reading = situation.round, self._exchange.clock.reading()
        current = None
        if announced is not None and reading is not None:
            current = pacing.RoundView(announced.step, reading.here(announced.deadline), reading.error)
        return pacing.PacingView(
            now=now,
            round=current,
            contributed=situation.has_contributed,
            out=work.pending is not None or self._delivery.waiting,
            hurry=situation.hurry,
            replica_step=work.replica.step,
            base_step=work.trainer.base_step,
            samples=work.trainer.samples,
            leased=work.lease.left,
            ready=self._prefetch.trainable(work.lease, micro_batch),
            sample_s=self._record.speed.sample_s,
            tail_s=tail_s,
            micro_batch=micro_batch,
            to_measure=self._evaluation.samples_ready,
            rests_until=self._record.lent.rests_until(now),
            measure_s=self._record.measuring.sample_s,
        )

    async def _train(self, samples: int) -> None:
        work = self._work
        began, computed_s = self._clocks.now(), work.trainer.compute_s
        try:
            trained = await work.train(samples)
        except Interrupted:
            return
        except BlobMissing as error:
            self._prefetch.lost(error.blob, samples)
            return
        self._tell_data_wait()
        now = self._clocks.now()
        self._record.trained(trained, now - began, work.trainer.compute_s - computed_s, now)

    async def _measure(self, samples: int) -> None:
        began = self._clocks.now()
        try:
            await self._evaluation.measure(samples)
        except Interrupted:
            return
        now = self._clocks.now()
        self._record.measured(samples, now - began, now)

    async def _wait(self, decision: pacing.Wait) -> None:
        """Wait until the situation changes, but at most LOOK_AGAIN_S: the round may end by this node's clock."""
        newest = self._situation.newest
        if isinstance(newest, Waiting) and newest.text != self._waiting_text:
            self._waiting_text = newest.text
            tell(log, logging.INFO, "node.waiting", newest.text, reason=newest.text)
        log.debug("waiting: %s", decision.why)
        began = self._clocks.now()
        if decision.phase == "data":
            self._prefetch.look_again()
        wait_s = LOOK_AGAIN_S if decision.until is None else min(LOOK_AGAIN_S, max(0.0, decision.until - began))
        await set_or_after(self._situation.changed, wait_s)
        waited_s = self._clocks.now() - began
        self._record.phases[decision.phase].add(waited_s)
        self._data_wait_s += waited_s if decision.phase == "data" else 0.0

    def _tell_data_wait(self) -> None:
        """Log how long training has waited for data. Shorter waits than LOOK_AGAIN_S are only in the metrics."""
        if self._data_wait_s >= LOOK_AGAIN_S:
            text = f"training waited {self._data_wait_s:.1f} s for data"
            tell(log, logging.WARNING, "node.waited_for_data", text, waited_s=self._data_wait_s)
        self._data_wait_s = 0.0

    async def _drop(self, why: str) -> None:
        self._situation.hurry = True
        self._record.too_old += 1
        log.info("%s", f"gradient dropped: {why}")
        await self._work.drop_gradient()

    async def _extract(self, round_: AnnouncedRound, why: str) -> None:
        began = self._clocks.now()
        contribution = await self._work.contribution(round_, self._components(round_))
        if contribution is None:
            # an update arrived in between, or the round has no nonce for this replica: decide again after news
            await set_or_after(self._situation.changed, LOOK_AGAIN_S)
            return
        self._record.encoded(
            contribution.claim.loss, contribution.components, len(contribution.payload), self._clocks.now() - began
        )
        self._situation.contributed = (round_.term, round_.number)
        log.debug("round %d: extracted because %s", round_.number, why)
        self._tell_dropped(contribution.claim.dropped)
        self._tell_of_limit(len(contribution.payload))
        claim = replace(contribution.claim, skipped=self._record.skipped_since_report())
        await self._delivery.send(Outgoing(round_, claim, contribution))

    def _tell_of_limit(self, payload_bytes: int) -> None:
        """Say once that the owner's limit on the upload is too low for this run."""
        round_s, bytes_s = self._work.contract.round.length_s, self._record.upload_max
        if bytes_s is not None and payload_bytes > round_s * bytes_s and not self._has_told_of_limit:
            self._has_told_of_limit = True
            log.warning(
                "%s",
                f"a contribution to this run has {human_bytes(payload_bytes)}, which max-upload lets through in "
                f"{human_seconds(payload_bytes / bytes_s)}, and a round takes {human_seconds(round_s)}: most will come "
                "too late; allow more with `thinwire-node set max-upload=…`",
            )

    def _components(self, round_: AnnouncedRound) -> int:
        """The components of a tile to send: those that the swarm wants, or fewer if the owner limits the upload."""
        record, replica = self._record, self._work.replica
        if record.upload_max is None or replica is None:
            return round_.k
        tiles = replica.layout.matrix_tiles + replica.layout.vector_tiles
        known = record.payload_bytes / record.components if record.payload_bytes and record.components else None
        bytes_ = known or COMPONENT_BYTES
        return pacing.fitting_k(self._work.contract.round, round_.k, tiles, bytes_, record.upload_max)

    async def _say_nothing(self, round_: AnnouncedRound) -> None:
        """Send a claim without samples, so that the swarm does not wait for this node and renews its lease."""
        work = self._work
        self._situation.contributed = (round_.term, round_.number)
        dropped = work.trainer.dropped
        self._tell_dropped(dropped)
        await work.drop_gradient()
        through = work.lease.trained_through
        skipped = self._record.skipped_since_report()
        claim = Claim(round_.term, round_.number, round_.step, round_.step, through, dropped, skipped=skipped)
        await self._delivery.send(Outgoing(round_, claim, None))

    def _tell_dropped(self, dropped: int) -> None:
        self._record.dropped += dropped
        if dropped:
            text = f"{dropped} micro-batches dropped: the loss or the gradient was not finite"
            log.warning("%s", text)
