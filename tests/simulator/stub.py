"""Replaces gRPC: a stub for the node's `Link` that calls the real `Service` over a `Connection` of the simulated
network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn

import grpc

from simulator.network import Connection, error_of, lost
from thinwire_coordinator.hall.access.door import MUST_WAIT
from thinwire_coordinator.hall.rpc.calls import CallRefused
from thinwire_proto.wire.service_pb2 import ContributionHeader, Receipt, UpdatePart

Metadata = tuple[tuple[str, str], ...]

ENVELOPE_BYTES = 120
"""Size of the HTTP/2, TCP and IP headers of a small message."""


BACKLOG_S = 0.5
"""A stream queues at most as much data as the line can carry in this time."""


class Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def answer_for(error: Aborted | CallRefused) -> grpc.aio.AioRpcError:
    """The error that the node gets. For a refusal it is as the coordinator's guard answers."""
    if isinstance(error, Aborted):
        return error_of(error.code, error.text)
    must_wait = error.denied.reason in MUST_WAIT
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if must_wait else grpc.StatusCode.PERMISSION_DENIED
    return error_of(code, error.denied.text)


class Context:
    """The context that gRPC passes to a handler of the service."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5000"

    async def abort(self, code: grpc.StatusCode, text: str, trailing_metadata: Metadata = ()) -> NoReturn:
        raise Aborted(code, text)


class Calls:
    """The stub of one connection.

    service: returns the coordinator's service, or None while no coordinator runs. on_upload: gets the header of every
    contribution, may change it, and returns whether the upload succeeds."""

    def __init__(
        self, connection: Connection, service: Callable[[], Any | None], on_upload: Callable[[ContributionHeader], bool]
    ) -> None:
        self._connection = connection
        self._service = service
        self._on_upload = on_upload

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("Attend", "Updates", "Snapshot", "Corpus"):
            return lambda request, metadata: Stream(self._connection, self._service, name, request, metadata)
        return lambda request, timeout=None, metadata=(): self._call(name, request, request.ByteSize(), metadata)

    async def Contribute(self, parts: AsyncIterator[Any], metadata: Metadata) -> Receipt:
        sent = [part async for part in parts]
        if not self._on_upload(sent[0].header):
            self._connection.die("the connection broke in the middle of an upload")
            raise lost("the connection broke in the middle of an upload")
        size = sum(len(part.data) for part in sent)

        async def again() -> AsyncIterator[Any]:
            for part in sent:
                yield part

        receipt: Receipt = await self._call("Contribute", again(), size, metadata)
        return receipt

    async def _call(self, name: str, argument: Any, size: int, metadata: Metadata) -> Any:
        service = self._service()
        if service is None:
            raise lost("connection refused")
        call = _Call(self._connection)

        async def handle() -> None:
            try:
                reply = await getattr(service, name)(argument, Context(metadata))
            except (Aborted, CallRefused) as error:
                failed = answer_for(error)
                self._connection.send("down", ENVELOPE_BYTES, lambda: call.fail(failed))
            else:
                self._connection.send("down", reply.ByteSize() + ENVELOPE_BYTES, lambda: call.give(reply))

        self._connection.send("up", size + ENVELOPE_BYTES, lambda: call.serve(handle()))
        try:
            return await call.answer
        finally:
            call.end()


class _Call:
    """A call in progress. It ends on both sides when its connection dies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection.on_death(self._died)

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        if self.answer.done():
            work.close()
            return
        self._task = asyncio.get_running_loop().create_task(work)

    def give(self, reply: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def _died(self, why: str) -> None:
        self.fail(lost(why))
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        self._connection.forget(self._died)
        if self.answer.done() and not self.answer.cancelled():
            self.answer.exception()  # the waiting task may have been cancelled
        if self._task is not None and not self._task.done():
            self._task.cancel()


class Stream:
    """A call whose reply is a stream of messages."""

    def __init__(
        self,
        connection: Connection,
        service: Callable[[], Any | None],
        name: str,
        request: Any,
        metadata: Metadata,
    ) -> None:
        self._connection = connection
        self._came: deque[Any] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._wakes: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        connection.on_death(self._died)
        found = service()
        if found is None:
            self._fail(lost("connection refused"))
            return
        size = request.ByteSize() + ENVELOPE_BYTES
        connection.send("up", size, lambda: self._start(getattr(found, name)(request, Context(metadata))))

    def _start(self, messages: Any) -> None:
        if not self._cancelled:  # on its way: nobody would ever end it
            self._task = asyncio.get_running_loop().create_task(self._serve(messages))

    async def _serve(self, messages: Any) -> None:
        try:
            async for answer in messages:
                message = UpdatePart.FromString(answer) if isinstance(answer, bytes) else answer
                size = message.ByteSize() + ENVELOPE_BYTES
                self._connection.send("down", size, lambda message=message: self._give(message))  # type: ignore[misc]
                if (backlog_s := self._connection.backlog_s("down")) > BACKLOG_S:
                    await asyncio.sleep(backlog_s - BACKLOG_S)  # as flow control does
        except (Aborted, CallRefused) as error:
            failed = answer_for(error)
            self._connection.send("down", ENVELOPE_BYTES, lambda: self._fail(failed))
        else:
            self._connection.send("down", ENVELOPE_BYTES, self._end)
        finally:
            await messages.aclose()

    def _give(self, message: Any) -> None:
        self._came.append(message)
        self._wakes.set()

    def _end(self) -> None:
        self._ended = True
        self._wakes.set()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wakes.set()

    def _died(self, why: str) -> None:
        self._fail(lost(why))
        if self._task is not None:
            self._task.cancel()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        while not self._came:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._wakes.clear()
            await self._wakes.wait()
        return self._came.popleft()

    def cancel(self) -> None:
        self._cancelled = True
        self._connection.forget(self._died)
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def cancelled(self) -> bool:
        return self._cancelled and not self._ended
