"""A fuzz target, and one try of an input on it."""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType

from fuzz.mutations import Damage, damage_bytes
from thinwire_proto.errors import ThinwireError

HANG_S = 20.0
"""An input that takes longer is a find. Thousands of times as long as any target needs."""
MEMORY_MAX = 64 << 20
"""For targets without a bound of their own: 32 times the largest gRPC message, in numbers and objects of Python."""


class FuzzFailure(Exception):
    """A find: an input that a program neither reads nor refuses as it should."""


class Hang(BaseException):
    """Not an Exception, so that no parser takes it for one of its own."""


@dataclass(frozen=True)
class Target:
    """A parser.

    read: returns what the bytes mean, or raises one of `refusals`. check: asserts that the result can be used.
    valid: inputs to begin with; the first of them is read. damage: makes another input from one. memory_max: bytes of
    Python and numpy."""

    name: str
    read: Callable[[bytes], object]
    valid: list[bytes]
    damage: Damage = damage_bytes
    check: Callable[[object], None] = lambda found: None
    refusals: tuple[type[Exception], ...] = (ThinwireError,)
    memory_max: int = MEMORY_MAX

    def damaged(self, rng: Random, corpus: list[bytes]) -> bytes:
        return self.damage(rng, rng.choice(corpus), corpus)


@dataclass(frozen=True)
class Tried:
    """The outcome of an input. refusal: the type of the error; empty if it was read. text: of the error. memory: in
    bytes, if measured."""

    refusal: str = ""
    memory: int = 0
    text: str = ""

    @property
    def read(self) -> bool:
        return not self.refusal


def try_one(target: Target, data: bytes) -> Tried:
    """Read or refuse an input. Raises FuzzFailure."""
    return _try(target, data, traced=False)


def try_one_traced(target: Target, data: bytes) -> Tried:
    """`try_one`, which also fails if reading takes more memory of Python and numpy than it may. It is slower."""
    used = _try(target, data, traced=True)
    if used.memory > target.memory_max:
        text = f"{used.memory} bytes of memory, more than {target.memory_max}"
        raise FuzzFailure(f"{target.name}: {text}: from {data.hex()}")
    return used


def _try(target: Target, data: bytes, traced: bool) -> Tried:
    memory = 0
    try:
        with _alarm():
            if traced:
                tracemalloc.start()
            try:
                found = target.read(data)
            finally:
                if traced:
                    memory = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
            if memory <= target.memory_max:
                target.check(found)
    except target.refusals as refusal:
        return Tried(type(refusal).__name__, memory, str(refusal))
    except AssertionError as error:
        raise FuzzFailure(f"{target.name}: the result cannot be used: {error}: from {data.hex()}") from error
    except Exception as error:
        raise FuzzFailure(f"{target.name}: {type(error).__name__}: {error}: from {data.hex()}") from error
    except Hang:
        raise FuzzFailure(f"{target.name}: no answer in {HANG_S:g} s: from {data.hex()}") from None
    return Tried(memory=memory)


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise Hang after HANG_S. Only the main thread of a process has alarms, and so fuzzes."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, HANG_S)  # the timer of pytest-timeout, if it has one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s - (time.monotonic() - began)), every_s)
