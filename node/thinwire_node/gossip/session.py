"""One session with the coordinator of a gossip run: beats, prefetch, and the deposit at the end.

The iterations run in `GossipTraining`, which goes on when the session is lost.
"""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_common.within import set_or_after
from thinwire_node.exchange.port import LinkLost
from thinwire_node.gossip.port import BeatAnswer, GossipExchange, Phase
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.runtime import Clocks, together
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_proto.limits import BEAT_LEAST_S
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")

DEPOSITS_MAX = 3
"""Times that a session sends the parameters, if they are refused: a line may have stalled."""


class GossipSession:
    """One session. `training` outlives it."""

    def __init__(
        self,
        exchange: GossipExchange,
        training: GossipTraining,
        record: Record,
        clocks: Clocks,
        data: DataSource,
        fetcher: BlobFetcher,
    ) -> None:
        self._exchange = exchange
        self._training = training
        self._record = record
        record.tokens_a_sample = data.tokens_a_sample(training.work.contract.model.context)
        self._now = clocks.now
        self._prefetch = Prefetch(data, fetcher, record, clocks.now, training.wake)
        fetch = self._prefetch.fetch_held_out
        self._evaluation = Evaluation(exchange, training.work, data, fetch, training.wake, own=True)
        self._beat_s_max = training.work.contract.round.length_s
        self._answer: BeatAnswer | None = None
        self._deposits_left = DEPOSITS_MAX
        self._rests = asyncio.Event()
        self.is_open = True
        """Until `run` has ended."""

    async def run(self) -> None:
        """Take part until the run is complete, enough iterations are done, or the node leaves. Raises LinkLost,
        Refused or PayloadError; the iterations then go on."""
        training = self._training
        training.use(self._prefetch, self._evaluation)
        iterations = training.start()
        async with together(
            self._beats(),
            self._prefetch.run(),
            training.neighbours.lines.run(self._exchange.relay),
            self._evaluation.prepare(),
            self._evaluation.report(),
            training.errands.failure(),
            self._rests.wait(),
        ) as own:
            beats, prefetch, lines, prepare, measured, _, rests = own
            waiting = {iterations, *own}
            try:
                while True:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    training.errands.check()
                    if rests.done():
                        return
                    if iterations.cancelled():
                        raise LinkLost("the iterations were stopped")
                    for ended in (iterations, beats, prefetch, lines, prepare, measured):  # always the same error
                        if ended.done():
                            ended.result()
                    if lines.done():
                        raise LinkLost("the coordinator ended the relay")
                    if beats.done() or not training.work.is_done:
                        return
                    waiting.discard(iterations)
            finally:
                self.is_open = False

    async def _beats(self) -> None:
        """Report once a beat, until the run is complete."""
        training = self._training
        while True:
            training.report_now.clear()
            report = training.report()
            answer = await self._exchange.beat(report)
            training.reported(report)
            if self._rests.is_set():
                return  # the lease is given back
            await training.take(answer)
            before, self._answer = self._answer, answer
            if answer.phase is Phase.PAUSED:
                self._record.paused(answer.text, answer.resumes_in_s, self._now())
            else:
                self._record.goes_on()
            if answer.phase is Phase.COMPLETE:
                log.info("the run is complete")
                return
            if answer.text and (before is None or before.text != answer.text):
                tell(log, logging.INFO, "node.waiting", answer.text, reason=answer.text)
            is_wanted = answer.phase is Phase.DEPOSIT and training.work.is_done and self._deposits_left > 0
            if is_wanted and await self._deposit():
                continue
            await set_or_after(training.report_now, max(BEAT_LEAST_S, min(answer.next_s, self._beat_s_max)))

    async def _deposit(self) -> bool:
        """Send the parameters. Returns whether they were taken."""
        refused = await self._training.hand_in(self._exchange.deposit)
        text = f"the parameters were refused: {refused}" if refused else "handed in the parameters"
        level = logging.WARNING if refused else logging.INFO
        tell(log, level, "node.deposited", text, iteration=self._training.work.finished, refused=refused)
        self._deposits_left = 0 if not refused else self._deposits_left - 1
        return not refused

    def leave(self) -> None:
        """Stop after this iteration. `run` then returns."""
        self._training.leave()

    def finish(self) -> None:
        """Stop after this iteration. `run` then returns."""
        self._training.leave()

    def rest(self) -> None:
        """End the session. The iterations rest as well: see `Record.resting`."""
        self._training.give_back()
        self._rests.set()

    @property
    def trained_through(self) -> int | None:
        """The last position of the lease in the parameters on disk."""
        return self._training.work.saved.trained_through

    @property
    def doing(self) -> str:
        """What the node does, for people."""
        words, answer = self._training.doing, self._answer
        if answer is not None and answer.text and words.startswith("waiting"):
            return f"waiting: {answer.text}"
        return words
