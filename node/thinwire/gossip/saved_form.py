"""The form of a saved state of `Gossip`, by which a rank sees that it can load one before any rank goes on."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

STATE_VERSION = 4
FORM = "form"
"""The key of a state's own form."""


def with_form(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, with its form in it."""
    saved = {name: value for name, value in state.items() if name != FORM}
    return saved | {FORM: hashlib.sha256(repr(_form_of(saved)).encode()).hexdigest()}


def why_unreadable(state: object) -> str | None:
    """Why this is not a state of Gossip, or not as it was saved."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
        return f"this is not a state of Gossip that this version reads: {found!r}"
    if with_form(state)[FORM] != state.get(FORM):
        return "the state is damaged: it is not as it was saved; load those of another save on all ranks"
    return None


def _form_of(value: object) -> Any:
    """Keys and types, and dtypes and shapes of tensors, without the numbers."""
    if isinstance(value, Tensor):
        return str(value.dtype), list(value.shape)
    if isinstance(value, Mapping):
        return [(repr(key), _form_of(value[key])) for key in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [_form_of(one) for one in value]
    return type(value).__name__


def checksum(tensors: Sequence[Tensor]) -> int:
    """Differs if a bit of the tensors differs."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return found
