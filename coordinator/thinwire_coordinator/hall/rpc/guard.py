"""Applies the bounds of admission to every call of the port, before its handler runs and before its message is read.

gRPC would read a whole message of any call first, of the largest size that any call has. But on the wire, a call with
one message looks like a stream with one message. So the guard serves every call as a stream, and does the rest itself:
it asks whether the call may begin at all (`access.admission`), bounds how long each message may take to come and
how large it may be, bounds how long the peer may take to accept each answer, and counts the messages.

Without a session, only a few calls may begin, and a caller that sends nothing gives its place to the next one. A peer
that does not accept an answer in time gets its connection ended (`thinwire_common.tcp`), because the end of the call
would wait behind the answer. A refused call is answered after a pause, so that whoever ignores refusals is slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isasyncgenfunction
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import ServicerContext as Context

from thinwire_common.logs import tell
from thinwire_common.tcp import shut_down_connection
from thinwire_common.traffic import Traffic, kinds_of
from thinwire_common.within import Within
from thinwire_coordinator.hall.access.admission import REFUSALS_WAITING_MAX, AdmissionRules, Caller
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.access.transport import Transport
from thinwire_coordinator.hall.rpc.calls import (
    NO_SESSION,
    SESSION_REPLACED,
    CallRefused,
    deny,
    host_of,
    network_of_peer,
    peer_of,
    session_of,
)
from thinwire_coordinator.hall.rpc.request_bounds import is_for_strangers, may_last, request_bytes_max
from thinwire_proto import limits
from thinwire_proto.errors import ThinwireError
from thinwire_proto.wire.metadata import REASON, REPLACED

log = logging.getLogger("thinwire.coordinator")

Handler = Any  # grpc.RpcMethodHandler, whose stubs do not say what it holds


FAILED = "the coordinator could not answer this call; its log says why; try again later"
UNREADABLE = "this message cannot be read: it is not what this call takes"


@dataclass(frozen=True)
class Patience:
    """Time limits of a call, in seconds; see `limits`.

    call_s: of a whole call without a session. Those in a session may stay as long as it does.
    """

    first_message_s: float = limits.FIRST_MESSAGE_S
    part_s: float = limits.PART_S
    accept_s: float = limits.ACCEPT_S
    call_s: float = limits.CALL_S
    refusal_pause_s: float = limits.REFUSAL_PAUSE_S


class Silence:
    """The silence of one call of a stranger, until its first message."""

    def __init__(self, caller: Caller, calls: SilentCalls) -> None:
        self.caller = caller
        self.gave_way = False
        self._calls = calls
        self._waiting = Within(None)

    def within(self, seconds: float) -> Within:
        """The time limit for the next message of the call. It ends early if the call has to give way."""
        self._waiting = Within(0.0 if self.gave_way else seconds)
        return self._waiting

    def spoke(self) -> None:
        self._calls.spoke(self)

    def give_way(self) -> None:
        self.gave_way = True
        self._waiting.end()


class SilentCalls:
    """All silent calls of strangers, the oldest first. They give way to the next stranger.

    Otherwise whoever opens calls and sends nothing would fill the room of those who want to join. An honest caller
    sends its message with the call, so it is silent for less than a round trip.
    """

    def __init__(self) -> None:
        self._calls: dict[Silence, None] = {}

    def open(self, caller: Caller) -> Silence:
        silence = Silence(caller, self)
        if caller.node_id is None:
            self._calls[silence] = None
        return silence

    def spoke(self, silence: Silence) -> None:
        self._calls.pop(silence, None)

    def close(self, silence: Silence) -> bool:
        """The call has ended. Return whether it still had its place."""
        self._calls.pop(silence, None)
        return not silence.gave_way

    def give_way(self, network: str | None) -> Caller | None:
        """Take the place of the oldest call, of a network if one is given. Return whose it was; None without one."""
        found = next((one for one in self._calls if network in (None, one.caller.network)), None)
        if found is None:
            return None
        del self._calls[found]
        found.give_way()
        return found.caller


class Guard(grpc.aio.ServerInterceptor):
    """rules: decides. node_of: the node whose session has a secret; None if there is none. now: seconds on the clock of
    the rules. told: learns of each refusal. transport: knows the proxy in front; None: there is none. traffic: counts
    the messages. Must be the outermost interceptor."""

    def __init__(
        self,
        rules: AdmissionRules,
        node_of: Callable[[str], str | None],
        now: Callable[[], float],
        told: Callable[[Denied], None] = lambda denied: None,
        patience: Patience | None = None,
        was_replaced: Callable[[str], bool] = lambda secret: False,
        transport: Transport | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._was_replaced = was_replaced
        self._transport = transport
        self._traffic = traffic or Traffic()
        self.rules = rules
        self._node_of = node_of
        self._now = now
        self._told = told
        self._patience = patience or Patience()
        self._guarded: dict[str, Handler] = {}  # by method; bounded by the number of methods served
        self._silent = SilentCalls()
        self._waiting = 0  # refused calls that are not answered yet
        self._failure_told: float | None = None  # when the log was last told of a call that failed

    def caller(self, context: Context[Any, Any]) -> Caller:
        """The network and the node that a call comes from."""
        secret = session_of(context)
        node_id = self._node_of(secret) if secret else None
        return Caller(network_of_peer(peer_of(context, self._transport)), node_id)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # there is no such method
            self._guarded[method] = self._guard(handler, method)
        return self._guarded[method]

    def _begin(self, caller: Caller) -> Denied | None:
        """Admit a call or say why not. A stranger takes the place of another one that has sent nothing yet."""
        denied = self.rules.begin(caller, self._now())
        if denied is None or caller.node_id is not None or not self.rules.calls.too_many(caller):
            return denied
        network = caller.network if self.rules.calls.network_is_full(caller.network) else None
        gone = self._silent.give_way(network)
        if gone is None:
            return denied
        self.rules.end(gone)
        return self.rules.begin(caller, self._now())

    def _guard(self, handler: Handler, method: str) -> Handler:
        terms = _Terms(request_bytes_max(method), self._patience, self._traffic, *kinds_of(method))
        for_strangers, lasts = is_for_strangers(method), may_last(method)

        async def admitted(requests: AsyncIterator[bytes], context: Context[Any, Any]) -> None:
            await self._check_plain(context)
            caller = self.caller(context)
            denied = self._begin(caller)
            if denied is not None:
                await self.refuse(context, denied)
            if caller.node_id is None and not for_strangers:
                self.rules.end(caller)
                await self._abort_without_session(context)
            call = _GuardedCall(handler, requests, context, terms, self._silent.open(caller))
            lasts_s = self._patience.call_s if caller.node_id is None and not lasts else None
            try:
                async with Within(lasts_s):
                    await call.serve()
            except CallRefused as refused:
                denied = refused.denied
            except asyncio.TimeoutError as error:
                if lasts_s is None:  # not of `Within`: a disk, for example
                    await self._fail(context, error)
                slow = Denied(DoorReason.SLOW, f"a call without a session may last {lasts_s:g} s")
                await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, slow)
            except (grpc.aio.AbortError, grpc.aio.InternalError, NotImplementedError):
                raise  # gRPC's own: the call was aborted, the peer is gone, or the call is not served here
            except Exception as error:  # noqa: BLE001 - the boundary of a call: gRPC would send the text to the peer
                await self._fail(context, error)
            finally:
                if self._silent.close(call.silence):
                    self.rules.end(caller)
            if denied is not None:
                await self.refuse(context, denied)

        return grpc.stream_stream_rpc_method_handler(admitted)

    async def _check_plain(self, context: Context[Any, Any]) -> None:
        """Refuse plain text from anywhere but this machine and the proxy that terminates TLS."""
        transport = self._transport
        if transport is not None and transport.behind_proxy and not transport.may_connect(host_of(context.peer())):
            text = "this port is for the proxy in front of the coordinator: connect to the proxy"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)

    async def _abort_without_session(self, context: Context[Any, Any]) -> NoReturn:
        if self._was_replaced(session_of(context)):
            await context.abort(grpc.StatusCode.NOT_FOUND, SESSION_REPLACED, ((REASON, REPLACED),))
        await context.abort(grpc.StatusCode.NOT_FOUND, NO_SESSION)
        raise AssertionError("abort returned")

    async def _fail(self, context: Context[Any, Any], error: Exception) -> NoReturn:
        """End a call that this process could not answer. All are counted, and one in FAILURE_TOLD_AGAIN_S is logged."""
        self._told(Denied(DoorReason.FAILED, FAILED))
        now = self._now()
        if self._failure_told is None or now - self._failure_told >= limits.FAILURE_TOLD_AGAIN_S:
            self._failure_told = now
            unforeseen = None if isinstance(error, ThinwireError) else error
            text = f"a call failed: {error}"
            tell(log, logging.ERROR, "coordinator.call_failed", text, exc_info=unforeseen, reason=str(error))
        await context.abort(grpc.StatusCode.INTERNAL, FAILED)
        raise AssertionError("abort returned")

    async def refuse(self, context: Context[Any, Any], denied: Denied) -> NoReturn:
        """End a call, after a pause if there is room to wait."""
        self._told(denied)
        if self._waiting < REFUSALS_WAITING_MAX:
            self._waiting += 1
            try:
                await asyncio.sleep(self._patience.refusal_pause_s)
            finally:
                self._waiting -= 1
        await deny(context, denied)


@dataclass(frozen=True)
class _Terms:
    """What holds for each call of a method. asked, answered: the kinds of its messages, for `traffic`."""

    bytes_max: int
    patience: Patience
    traffic: Traffic
    asked: str
    answered: str


@dataclass(eq=False)
class _GuardedCall:
    """One admitted call: reads its messages, each in time and within its bound, and sends its answers."""

    handler: Handler
    requests: AsyncIterator[bytes]
    context: Context[Any, Any]
    terms: _Terms
    silence: Silence
    messages: AsyncIterator[bytes] | None = None  # gRPC's iterator must be awaited once it exists

    async def serve(self) -> None:
        handler = self.handler
        request = self._stream() if handler.request_streaming else await self._only_one()
        kinds = (handler.request_streaming, handler.response_streaming)
        behavior = getattr(handler, "_".join("stream" if streams else "unary" for streams in kinds))
        if not handler.response_streaming:
            await self.write(await behavior(request, self.context))
        elif isasyncgenfunction(behavior):
            async with aclosing(behavior(request, self.context)) as answers:
                async for answer in answers:
                    await self.write(answer)
        else:
            await behavior(request, self)  # it writes its answers itself, as the health service does

    async def write(self, answer: Any) -> None:
        """Send a message. If the peer does not accept it in time, end its connection and cancel the call."""
        data = self.handler.response_serializer(answer)
        self.terms.traffic.sent.add(self.terms.answered, len(data))
        try:
            async with Within(self.terms.patience.accept_s):
                await self.context.write(data)
        except asyncio.TimeoutError:
            log.debug("a peer has accepted nothing for %g s; its connection is ended", self.terms.patience.accept_s)
            shut_down_connection(self.context.peer())
            raise asyncio.CancelledError from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)  # a behavior that writes itself takes this for its context

    async def _only_one(self) -> Any:
        try:
            return await self._read(self.terms.patience.first_message_s)
        except StopAsyncIteration:
            denied = Denied(DoorReason.MALFORMED, "the call ended without a message")
            await _abort(self.context, grpc.StatusCode.INVALID_ARGUMENT, denied)

    async def _stream(self) -> AsyncIterator[Any]:
        patience_s = self.terms.patience.first_message_s
        while True:
            try:
                message = await self._read(patience_s)
            except StopAsyncIteration:
                return
            yield message
            patience_s = self.terms.patience.part_s

    async def _read(self, patience_s: float) -> Any:
        """The next message, parsed. Raises StopAsyncIteration after the last one. Ends the call if it is not right."""
        try:
            self.messages = self.messages or aiter(self.requests)
            async with self.silence.within(patience_s):
                data = await anext(self.messages)
            self.silence.spoke()
        except asyncio.TimeoutError:
            text = f"no message came for {patience_s:g} s"
            await _abort(self.context, grpc.StatusCode.DEADLINE_EXCEEDED, Denied(DoorReason.SLOW, text))
        if len(data) > self.terms.bytes_max:
            text = f"a message of this call has at most {self.terms.bytes_max} bytes; this one has {len(data)}"
            await _abort(self.context, grpc.StatusCode.INVALID_ARGUMENT, Denied(DoorReason.TOO_LARGE, text))
        self.terms.traffic.received.add(self.terms.asked, len(data))
        try:
            return self.handler.request_deserializer(data)
        except DecodeError:
            denied = Denied(DoorReason.MALFORMED, UNREADABLE)
            await _abort(self.context, grpc.StatusCode.INVALID_ARGUMENT, denied)


async def _abort(context: Context[Any, Any], code: grpc.StatusCode, denied: Denied) -> NoReturn:
    await context.abort(code, denied.text, ((REASON, denied.reason.value),))
