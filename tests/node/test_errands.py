"""What the lines of a node bring beside its iterations: confirmations in any number, and faults that end the node."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from thinwire_node.session.gossip.training import GossipTraining
from thinwire_proto.errors import PayloadError


class SlowWork:
    """Takes confirmations only once it is told to."""

    unreported = (0, 0.0)
    saved = SimpleNamespace(confirmed={}, iteration=0, head=b"")

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.taken: list[tuple[int, int]] = []
        self.error: Exception | None = None

    async def acknowledged(self, peer: int, sequence: int) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.taken.append((peer, sequence))

    async def absent(self, peer: int) -> None:
        return None


def training_with(work: SlowWork) -> GossipTraining:
    parts: Any = work, None, lambda _: SimpleNamespace(), None, SimpleNamespace(rounds=None), SimpleNamespace()
    return GossipTraining(*parts)


async def test_any_number_of_confirmations_takes_one_job_at_a_time_and_the_newest_counts() -> None:
    work = SlowWork()
    training = training_with(work)
    for sequence in range(1, 10_001):
        training.confirmed(7, sequence)
        training.confirmed(8, 3)
    await asyncio.sleep(0)
    training.confirmed(7, 10_001)
    assert len(training._errands) == 2
    work.go_on.set()
    await asyncio.sleep(0.01)
    assert {sequence for peer, sequence in work.taken if peer == 8} == {3}
    assert [sequence for peer, sequence in work.taken if peer == 7][-1] == 10_001
    assert len(work.taken) <= 4
    training.confirmed(7, 10_002)
    await asyncio.sleep(0.01)
    assert work.taken[-1] == (7, 10_002)


async def test_a_wrong_confirmation_leaves_the_peer_out_and_a_later_right_one_is_taken() -> None:
    work = SlowWork()
    training = training_with(work)
    work.go_on.set()
    work.error = PayloadError("it cannot have the message")
    training.confirmed(7, 1 << 60)
    await asyncio.sleep(0.01)
    assert 7 in training._unreported.missed
    work.error = None
    training.confirmed(7, 2)
    await asyncio.sleep(0.01)
    assert work.taken == [(7, 2)]


async def test_what_an_errand_raises_ends_the_session_with_this_error_and_every_later_one() -> None:
    work = SlowWork()
    training = training_with(work)
    session = asyncio.ensure_future(training.failure())
    await asyncio.sleep(0.01)
    training.check()
    work.go_on.set()
    work.error = OSError(errno.ENOSPC, "No space left on device")
    training.confirmed(7, 1)
    with pytest.raises(OSError, match="No space left"):
        await asyncio.wait_for(session, 1.0)
    with pytest.raises(OSError, match="No space left"):
        training.check()
