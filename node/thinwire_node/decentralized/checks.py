"""Checks what a script gives to `Gossip` before the ranks meet: its arguments, and the form of a saved state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire_node.decentralized.flat import FlatLayout
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.iteration import SLACK_MAX

PATIENCE_MAX = timedelta(days=30)
"""gloo and threads count a wait in 64 bits of nanoseconds."""
STATE_VERSION = 2
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
    "exchange": dict,
}
CONSENSUS: Form = {
    "level": int,
    "calm": int,
    "reason": str,
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


def check_names(**given: object) -> None:
    """Raises ConfigError for one that is no string."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} must be a name, such as those in docs/decentralized.md; it is {value!r}")


def check_unwrapped(model: nn.Module, optimizer: Optimizer) -> None:
    """Raises ConfigError for what a framework has wrapped."""
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ConfigError(
            "the model is in DistributedDataParallel, which averages the gradients of all ranks; give Gossip the "
            "module inside (`model.module`), and run each forward and backward pass under `model.no_sync()`"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ConfigError(
            f"{type(optimizer).__name__} has no hooks, so it wraps another optimizer; give Gossip that one, for "
            "example before Accelerate's `prepare`"
        )


def check_settings(
    *,
    gamma: float,
    every: int,
    slack: int,
    patience_s: float,
    per_host: int | None,
    seed: int,
    consensus_target: float | None,
) -> None:
    """Raises ConfigError for an argument of `Gossip` that cannot be."""
    if not (isinstance(gamma, Real) and 0 < gamma <= 1):
        raise ConfigError(f"gamma must be above 0, and at most 1; it is {gamma!r}")
    if not (isinstance(every, int) and every >= 1):
        raise ConfigError(f"every must be a whole number, 1 or more; it is {every!r}")
    if not (isinstance(slack, int) and 0 <= slack <= SLACK_MAX):
        raise ConfigError(f"slack must be a whole number, 0 to {SLACK_MAX}; it is {slack!r}")
    if not (isinstance(patience_s, Real) and 0 < patience_s <= PATIENCE_MAX.total_seconds()):
        raise ConfigError(
            f"patience_s must be above 0, and at most {PATIENCE_MAX.total_seconds():.0f}; it is {patience_s!r}"
        )
    if not (per_host is None or (isinstance(per_host, int) and per_host >= 1)):
        raise ConfigError(f"per_host must be a whole number, 1 or more; it is {per_host!r}")
    if not isinstance(seed, int):
        raise ConfigError(f"seed must be a whole number; it is {seed!r}")
    target = consensus_target
    if not (target is None or (isinstance(target, Real) and 0 < target < math.inf)):
        raise ConfigError(f"consensus_target must be above 0 steps; it is {target!r}")


def check_one_way(topology: str, *, gamma: float, consensus_target: float | None) -> None:
    """Raises ConfigError for an argument that a topology with one-way edges does not take."""
    if gamma != 1:
        raise ConfigError(f"topology {topology!r} has one-way edges, where gamma must be 1; it is {gamma:g}")
    if consensus_target is not None:
        raise ConfigError(f"topology {topology!r} has one-way edges, for which there is no consensus_target yet")


def why_unreadable(state: object) -> str | None:
    """Why this is not a state of Gossip, or not a whole one."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
        return f"this is not a state of Gossip that this version reads: {found!r}"
    return _in_words(_first_damage(state))


def why_damaged(exchange: Mapping[str, Any], layout: FlatLayout, *, has_copies: bool) -> str | None:
    """Why the tensors in a readable state's exchange cannot be this layout's. has_copies: whether its codec has."""
    if _is_pushed(exchange):
        return _in_words(_wrong_mass(exchange, layout))
    damaged = _wrong_buffer(exchange, layout)
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


def _wrong_buffer(exchange: Mapping[str, Any], layout: FlatLayout) -> str | None:
    buffers = [("delta", exchange["delta"])] if exchange["delta"] is not None else []
    buffers += [("later.difference", part["difference"]) for part in exchange["later"]]
    buffers += [("open.own", part["own"]) for part in exchange["open"]]
    for name, buffer in buffers:
        if buffer.dtype != torch.uint8 or buffer.shape != (layout.bytes,):
            return f"exchange.{name} is {buffer.dtype} {list(buffer.shape)}, not torch.uint8 [{layout.bytes}]"
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
