"""Sends updates to followers.

Each update is serialized once, and all followers receive the same bytes. A follower that falls behind the cache reads
from disk, and holds one update at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from thinwire_proto.wire.parts import split
from thinwire_proto.wire.service_pb2 import UpdatePart

CACHE_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class EncodedUpdate:
    """A sealed row and its body as serialized `UpdatePart` messages, ready to send.

    head_step: the number of sealed steps, which the first message carries at its end. It is the only field that differs
    between followers.
    """

    messages: tuple[bytes, ...]
    head_step: int
    size: int  # of the body, in bytes

    def parts(self, head_step: int) -> Iterator[bytes]:
        """The messages with this `head_step`. Nothing is copied for a follower at the head."""
        first, *rest = self.messages
        yield first if head_step == self.head_step else first.removesuffix(_head(self.head_step)) + _head(head_step)
        yield from rest


def _head(head_step: int) -> bytes:
    return UpdatePart(head_step=head_step).SerializeToString()


def encoded_update(step: int, row: bytes, body: bytes) -> EncodedUpdate:
    """Serialize the update of a step from its canonical row. This copies the body, so run it off the event loop."""
    first, *rest = split(body)
    # `head_step` has the highest field number, so appending it gives the bytes that protobuf itself would write
    messages = [UpdatePart(row=row, data=first).SerializeToString() + _head(step + 1)]
    messages += [UpdatePart(data=data).SerializeToString() for data in rest]
    return EncodedUpdate(tuple(messages), step + 1, len(body))


class Feed:
    """Sealed updates by step, with the newest ones cached in memory.

    read: reads an update from disk. step: the number of sealed updates. cache_bytes_max: bound of the cache, which
    always holds at least one update.
    """

    def __init__(
        self, read: Callable[[int], Awaitable[EncodedUpdate]], step: int, cache_bytes_max: int = CACHE_BYTES_MAX
    ) -> None:
        self._read = read
        self._cache_bytes_max = cache_bytes_max
        self.step = step
        self._sealed = asyncio.Condition()
        self._recent: OrderedDict[int, EncodedUpdate] = OrderedDict()
        self._recent_bytes = 0

    async def publish(self, update: EncodedUpdate) -> None:
        """Publish the update from θ_step to θ_{step+1}, which is on disk."""
        self._recent[self.step] = update
        self._recent_bytes += update.size
        while self._recent_bytes > self._cache_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popitem(last=False)[1].size
        async with self._sealed:
            self.step += 1
            self._sealed.notify_all()

    async def get(self, step: int) -> EncodedUpdate:
        """Return the update of a step; waits until it is sealed."""
        async with self._sealed:
            await self._sealed.wait_for(lambda: self.step > step)
        return self._recent.get(step) or await self._read(step)
