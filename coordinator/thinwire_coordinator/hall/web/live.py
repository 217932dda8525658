"""Server-sent events: sends changes to every open browser.

A message is made after an event, at most once a second, and only if a browser is connected. It is encoded once, and
every stream gets the same bytes. A stream holds only the newest message, so a slow browser misses some messages but
does not delay other browsers. If a browser disappears, the kernel closes its connection once a heartbeat is not
acknowledged (`thinwire_common.http` sets TCP_USER_TIMEOUT).

The number of streams is bounded, and no network can take all of them: each has at most half, and where all are taken,
a browser of another network takes the place of the oldest stream of the network that has the most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from thinwire_common.within import Within
from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.hall.members import Newest
from thinwire_proto import limits

STREAMS_MAX = 256
STREAMS_OF_A_NETWORK_MAX = STREAMS_MAX // 2
EVERY_S = 1.0
HEARTBEAT = b"event: heartbeat\ndata: 1\n\n"
"""An event rather than a comment, so that the page notices when heartbeats stop."""
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


Stream = Newest[bytes]
"""Of one browser: it holds the newest message that has not been sent yet."""


async def _next(stream: Stream) -> bytes | None:
    """Wait for the next message. Returns a heartbeat after STREAM_HEARTBEAT_S, and None at the end."""
    try:
        async with Within(limits.STREAM_HEARTBEAT_S):
            return await stream.get()
    except asyncio.TimeoutError:
        return HEARTBEAT


class Live:
    """Sends messages to all streams. message: builds the JSON. failed: called if building it raises an exception."""

    def __init__(self, message: Callable[[], bytes], failed: Callable[[str, BaseException], None]) -> None:
        self._message = message
        self._failed = failed
        self._streams: dict[Stream, str] = {}  # with its network; the oldest first
        self._changed = asyncio.Event()
        self.sending = asyncio.get_running_loop().create_task(self._send())
        self._closed = False

    def wake(self, event: object = None) -> None:
        """Schedule a message, because the state has changed."""
        if self._streams:
            self._changed.set()

    def close(self) -> None:
        """End every stream. Browsers reconnect by themselves once the coordinator runs again."""
        self._closed = True
        self.sending.cancel()
        for stream in self._streams:
            stream.end()

    async def _send(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._streams:
                self._send_once()
            await asyncio.sleep(EVERY_S)

    def _send_once(self) -> None:
        try:
            message = b"event: status\ndata: " + self._message() + b"\n\n"
        except Exception as error:  # noqa: BLE001 - the next message may succeed
            self._failed("the page's stream", error)
            return
        for stream in self._streams:
            stream.put(message)

    def _make_room(self, network: str) -> str:
        """End the oldest stream of the network with the most, if all are taken. Return why a network gets no other one;
        empty if it may have one."""
        of_networks = Counter(self._streams.values())
        if of_networks[network] >= STREAMS_OF_A_NETWORK_MAX:
            return f"{of_networks[network]} browsers of your network are connected, which is the limit"
        if len(self._streams) < STREAMS_MAX:
            return ""
        crowded, most = of_networks.most_common(1)[0]
        if of_networks[network] + 1 >= most:  # else the two networks would go on to take the place from each other
            return f"{len(self._streams)} of at most {STREAMS_MAX} browsers are connected"
        oldest = next(stream for stream, of in self._streams.items() if of == crowded)
        del self._streams[oldest]
        oldest.end()
        return ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI response: one stream, open until the browser disconnects."""
        network = group_of(scope["client"][0] if scope.get("client") else "")
        if self._closed or (full := self._make_room(network)):
            text = f"{'the coordinator ends' if self._closed else full}; /api/status still works"
            await JSONResponse({"state": text}, 503, {"retry-after": "30"})(scope, receive, send)
            return
        stream = Stream()
        self._streams[stream] = network
        gone = asyncio.ensure_future(_disconnected(receive, stream))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
            self.wake()
            while (message := await _next(stream)) is not None:
                await send({"type": "http.response.body", "body": message, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.pop(stream, None)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone


async def _disconnected(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end()
