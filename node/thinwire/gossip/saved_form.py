"""The form of a saved state of `Gossip`: what is in it, and why one cannot be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from thinwire.gossip.flat import FlatLayout

STATE_VERSION = 3
Form = Mapping[str, Any]
NONE = type(None)
STATE: Form = {
    "settings": dict,
    "rank": int,
    "save": str,
    "steps": int,
    "factor": Real,
    "since": int,
    "consensus": (dict, NONE),
    "parameters": int,
    "own": (Tensor, NONE),
    "exchange": dict,
}
CONSENSUS: Form = {
    "level": int,
    "calm": int,
    "reason": str,
    "is_unmet": bool,
    "period": int,
    "published": (Tensor, NONE),
    "measured": dict,
}
EXCHANGE: Form = {
    "number": int,
    "without": Sequence,
    "iteration": int,
    "delta": (Tensor, NONE),
    "later": Sequence,
    "open": Sequence,
    "early": Sequence,
    "codec": dict,
}
COPIES: Form = {"own": dict, "theirs": dict, "sequences": dict}
"""Of a codec that keeps copies."""
LATER: Form = {"iteration": int, "peer": int, "weight": Real, "difference": Tensor}
OPEN: Form = {"iteration": int, "peer": int, "weight": Real, "own": Tensor, "message": Tensor}
PUSHED: Form = {
    "number": int,
    "without": Sequence,
    "iteration": int,
    "void": int,
    "mass": Tensor,
    "known": Tensor,
    "weight": int,
    "outgoing": dict,
    "incoming": dict,
    "open": Sequence,
    "arrived": Sequence,
}
"""Of an exchange over one-way edges."""
OUTGOING: Form = {"rest": Tensor, "growth": Tensor, "sequence": int, "weight": int}
INCOMING: Form = {"growth": (Tensor, NONE), "sequence": int, "weight": int}
PUSHED_OPEN: Form = {"iteration": int, "peer": int}
ARRIVED: Form = {"iteration": int, "peer": int, "message": Tensor}


def why_unreadable(state: object) -> str | None:
    """Why this is not a state of Gossip, or not a whole one."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
        return f"this is not a state of Gossip that this version reads: {found!r}"
    return _in_words(_first_damage(state))


def why_damaged(state: Mapping[str, Any], layout: FlatLayout, *, has_copies: bool) -> str | None:
    """Why the tensors in a readable state cannot be this layout's. has_copies: whether its codec has."""
    exchange = state["exchange"]
    if _is_pushed(exchange):
        return _in_words(_wrong_mass(exchange, layout))
    damaged = _wrong_buffer(state, layout)
    if damaged is None and has_copies:
        damaged = _wrong_copy(exchange["codec"], layout)
    return _in_words(damaged)


def _in_words(damaged: str | None) -> str | None:
    return f"the state is damaged: {damaged}; load those of another save on all ranks" if damaged else None


def _first_damage(state: Mapping[str, Any]) -> str | None:
    """What of a state is missing or of another type."""
    if found := _damage(state, STATE, ""):
        return found
    exchange = state["exchange"]
    if found := _damage(exchange, PUSHED if _is_pushed(exchange) else EXCHANGE, "exchange."):
        return found
    if state["consensus"] is not None and (found := _damage(state["consensus"], CONSENSUS, "consensus.")):
        return found
    if _is_pushed(exchange):
        parts = [("outgoing", OUTGOING, part) for part in exchange["outgoing"].values()]
        parts += [("incoming", INCOMING, part) for part in exchange["incoming"].values()]
        parts += [("open", PUSHED_OPEN, part) for part in exchange["open"]]
        parts += [("arrived", ARRIVED, part) for part in exchange["arrived"]]
    else:
        parts = [("later", LATER, part) for part in exchange["later"]]
        parts += [("open", OPEN, part) for part in exchange["open"]]
    return next(filter(None, (_damage(part, form, f"exchange.{name}.") for name, form, part in parts)), None)


def _is_pushed(exchange: Mapping[str, Any]) -> bool:
    return "mass" in exchange


def _wrong_mass(exchange: Mapping[str, Any], layout: FlatLayout) -> str | None:
    elements = sum(bucket.elements for bucket in layout.buckets)
    masses = [("mass", exchange["mass"])]
    masses += [(f"outgoing.{name}", arc[name]) for arc in exchange["outgoing"].values() for name in ("rest", "growth")]
    masses += [("incoming.growth", arc["growth"]) for arc in exchange["incoming"].values() if arc["growth"] is not None]
    for name, tensor in [*masses, ("known", exchange["known"])]:
        dtype = torch.float32 if name == "known" else torch.int64
        if tensor.dtype != dtype or tensor.shape != (elements,):
            return f"exchange.{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} [{elements}]"
    return None


def _wrong_buffer(state: Mapping[str, Any], layout: FlatLayout) -> str | None:
    exchange = state["exchange"]
    buffers = [("own", state["own"]), ("exchange.delta", exchange["delta"])]
    buffers += [("exchange.later.difference", part["difference"]) for part in exchange["later"]]
    buffers += [("exchange.open.own", part["own"]) for part in exchange["open"]]
    for name, buffer in ((name, buffer) for name, buffer in buffers if buffer is not None):
        if buffer.dtype != torch.uint8 or buffer.shape != (layout.bytes,):
            return f"{name} is {buffer.dtype} {list(buffer.shape)}, not torch.uint8 [{layout.bytes}]"
    return None


def _wrong_copy(codec: Mapping[str, Any], layout: FlatLayout) -> str | None:
    if found := _damage(codec, COPIES, "exchange.codec."):
        return found
    elements = sum(bucket.elements for bucket in layout.buckets)
    for end in ("own", "theirs"):
        sequences = codec["sequences"].get(end)
        if not isinstance(sequences, Mapping) or sequences.keys() != codec[end].keys():
            return f"exchange.codec.sequences.{end} is not of the same peers as exchange.codec.{end}"
        for peer, copy in codec[end].items():
            if not isinstance(copy, Tensor) or copy.dtype != torch.float32 or copy.shape != (elements,):
                return f"exchange.codec.{end}.{peer} is not torch.float32 [{elements}]"
            if not isinstance(sequences[peer], int):
                return f"exchange.codec.sequences.{end}.{peer} is a {type(sequences[peer]).__name__}"
    return None


def _damage(part: object, form: Form, place: str) -> str | None:
    if not isinstance(part, Mapping):
        return f"{place.removesuffix('.')} is no table"
    for name, kind in form.items():
        if name not in part:
            return f"{place}{name} is missing"
        if not isinstance(part[name], kind):
            return f"{place}{name} is a {type(part[name]).__name__}"
    return None
