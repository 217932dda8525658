"""Follows the swarm: applies updates as they are sealed and keeps the newest announcement."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing

from thinwire_node.exchange.port import Amended, AnnouncedRound, Exchange, Paused
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.star.situation import Situation
from thinwire_node.star.work import Work

log = logging.getLogger("thinwire.node")

CATCH_UP_REPORT_STEPS = 100


async def follow_updates(exchange: Exchange, work: Work, record: Record, situation: Situation) -> None:
    """Apply updates until the exchange ends. Raises ReplicaError if the parameters differ from the swarm's."""
    assert work.replica is not None
    async with aclosing(exchange.updates(work.replica, lambda: work.saved_s)) as updates:
        async for sealed in updates:
            await work.apply(sealed)
            record.phases["apply"].add(work.apply_s)
            situation.changed.set()
            step = sealed.row.step + 1
            if step >= situation.head_step:
                continue
            if step % CATCH_UP_REPORT_STEPS == 0:
                text = f"catching up: step {step} of {sealed.head_step}"
                log.info("%s", text)
                await work.save_if_due()
            if situation.newest is None:
                situation.head_step = sealed.head_step  # the swarm advances during the catch-up


async def follow_rounds(
    exchange: Exchange,
    work: Work,
    record: Record,
    situation: Situation,
    prefetch: Prefetch,
    evaluation: Evaluation,
    now: Callable[[], float],
) -> None:
    """Listen to announcements until the exchange ends. Catches up first, because the swarm waits for every node that
    listens."""
    while work.replica is None or work.replica.step < situation.head_step:
        await work.reached(situation.head_step)
    async with aclosing(exchange.rounds()) as announcements:
        async for announcement in announcements:
            if isinstance(announcement, Amended):
                await work.amend(announcement.contract)
                continue
            if isinstance(announcement, Paused):
                record.paused(announcement.text, announcement.resumes_in_s, now())
            else:
                record.goes_on()
            if announcement == situation.newest:
                continue  # it changes nothing
            if isinstance(announcement, AnnouncedRound):
                work.lease.renew(announcement.lease)
                prefetch.renew(work.lease, announcement.upcoming)
            evaluation.announced(announcement)
            situation.announced(announcement)
