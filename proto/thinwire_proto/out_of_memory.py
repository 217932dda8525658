"""Lets work go on after it has run out of memory.

Memory is short for a moment: another program takes some, or two threads need most of theirs at once. Work that can be
called again is tried a few times. Work that changes tensors in place takes all its memory before the first change, or
keeps what it has done, so that a second call does only the rest.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from thinwire_proto.errors import LocalError

TRIES_MAX = 3
IN_WORDS = re.compile(
    "out of memory|not enough memory|can.t allocate memory|could not create a memory|ALLOC_FAILED", re.IGNORECASE
)
"""Words in errors of MPS, the CPU, oneDNN and cuBLAS, which have no type of their own."""
Result = TypeVar("Result")


class TooLittleMemory(LocalError):
    """The memory of a device does not suffice for work that cannot be made smaller."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated, on a CPU or a card."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and IN_WORDS.search(str(error)) is not None


def retry_out_of_memory(work: Callable[[], Result]) -> Result:
    """Call `work`, and again if it has run out of memory, at most TRIES_MAX times. Raises TooLittleMemory."""
    reason = ""
    for _ in range(TRIES_MAX):
        try:
            return work()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = reason_of(error)
        give_back()  # here, because the error holds the frames that failed, and their tensors
    raise TooLittleMemory(too_little(reason))


def reason_of(error: BaseException) -> str:
    """The failure in one line."""
    return (str(error).splitlines() or ["MemoryError"])[0]


def too_little(reason: str) -> str:
    """The text of a TooLittleMemory."""
    return f"this machine has too little memory ({reason}); end other programs, or take part with a larger machine"


def give_back() -> None:
    """Give the freed memory of this process back to the system, and that of a card to its other programs.

    glibc keeps freed memory that lies below memory in use, so the process stays as large as its peak; other C libraries
    have no such function."""
    gc.collect()
    for cards in (torch.cuda, torch.xpu):
        if cards.is_available() and cards.is_initialized():
            cards.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
