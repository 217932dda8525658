"""Updates go out here. Each is put into messages once, and the same bytes go to all followers; a slow one reads from
disk, and holds one update at a time."""

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
    """A sealed row with the body that it names, as serialized messages (`UpdatePart`), ready to be sent.

    head_step: how many steps are sealed, as the end of the first one says. It alone is not the same for all."""

    messages: tuple[bytes, ...]
    head_step: int
    size: int  # of the body

    def parts(self, head_step: int) -> Iterator[bytes]:
        """The messages, where so many steps are sealed by now. Nothing is copied for a follower at the head."""
        first, *rest = self.messages
        yield first if head_step == self.head_step else first.removesuffix(_head(self.head_step)) + _head(head_step)
        yield from rest


def _head(head_step: int) -> bytes:
    return UpdatePart(head_step=head_step).SerializeToString()


def encoded_update(step: int, row: bytes, body: bytes) -> EncodedUpdate:
    """The update of a step, from its canonical row. It copies the body, so not on the event loop."""
    first, *rest = split(body)
    # in the order of the fields but for `head_step`, whose number is the highest: as protobuf itself writes it
    messages = [UpdatePart(row=row, data=first).SerializeToString() + _head(step + 1)]
    messages += [UpdatePart(data=data).SerializeToString() for data in rest]
    return EncodedUpdate(tuple(messages), step + 1, len(body))


class Feed:
    """Sealed updates by step. `read` fetches one from disk; `step` is how many are sealed. The newest ones are held in
    memory, as many as fit `cache_bytes_max`, and one at least."""

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
        """The update that leads from θ_step to θ_{step+1} is on disk."""
        self._recent[self.step] = update
        self._recent_bytes += update.size
        while self._recent_bytes > self._cache_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popitem(last=False)[1].size
        async with self._sealed:
            self.step += 1
            self._sealed.notify_all()

    async def get(self, step: int) -> EncodedUpdate:
        """The update of a step, as soon as it is sealed."""
        async with self._sealed:
            await self._sealed.wait_for(lambda: self.step > step)
        return self._recent.get(step) or await self._read(step)
