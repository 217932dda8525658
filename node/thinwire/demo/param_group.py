"""One param group of the optimizer: its learned state, its payload for the other ranks, and its step.

There are two kinds behind one interface. `VoteGroup` uses the arithmetic of a swarm's node: votes, merged and decoded
in integers, applied exactly. `FloatGroup` is DeMo as published. Both treat a parameter with more than two dimensions as
a matrix (first, the rest).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from thinwire.compression.momentum import Momentum
from thinwire.compression.precondition import SecondMoment
from thinwire.compression.published import ChunkCoefficients, PublishedMomentum
from thinwire.compression.residual import dropped_part
from thinwire.compression.sent import Sent
from thinwire.demo.shards import matrix_shape
from thinwire.placement import local
from thinwire_proto.contract import TILE_EDGE, DemoSpec, Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.apply import apply_votes, flush_subnormals
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.topk import TopkSelection, topk_selection
from thinwire_proto.exact.votes import Merged, merge
from thinwire_proto.wire.codec import decode_votes, encode_votes

FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class GroupSettings:
    """Settings of a param group, except learning rate and weight decay, which each step supplies."""

    compression_decay: float
    compression_topk: int
    compression_chunk: int
    update_topk: int
    values: Literal["vote", "float"]
    magnitude: Literal["sign", "clipped"]
    precondition: Literal["none", "adam"]
    precondition_beta: float

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid settings."""
        named = {"values": ("vote", "float"), "magnitude": ("sign", "clipped"), "precondition": ("none", "adam")}
        for name, known in named.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}; it is {getattr(self, name)!r}")
        for name in ("compression_decay", "precondition_beta"):
            value: Any = getattr(self, name)
            if not (isinstance(value, Real) and 0 <= float(value) < 1):
                raise ConfigError(f"{name} must be 0 or more, and less than 1; it is {value!r}")
        for name in ("compression_topk", "compression_chunk"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name} must be a whole number, 1 or more; it is {getattr(self, name)}")
        if not (isinstance(self.update_topk, int) and 0 <= self.update_topk <= MATRIX_COMPONENTS):
            raise ConfigError(f"update_topk must be a whole number, 0 to {MATRIX_COMPONENTS}; it is {self.update_topk}")
        if self.values == "vote" and self.compression_chunk != TILE_EDGE:
            raise ConfigError(
                f"compression_chunk must be {TILE_EDGE} with values='vote': the integer transform that keeps ranks "
                f"equal has only this size; it is {self.compression_chunk}. Omit it, or use values='float'"
            )
        for name, published in (("magnitude", "sign"), ("update_topk", 0)):
            if self.values == "float" and getattr(self, name) != published:
                raise ConfigError(f"{name} must be {published!r} with values='float', as in the published algorithm")


def settings_of(group: Mapping[str, Any]) -> GroupSettings:
    """The settings in a torch param group. Raises ConfigError."""
    return GroupSettings(**{name: _plain(group[name]) for name in GroupSettings.__dataclass_fields__})


def _plain(value: Any) -> Any:
    """A number of numpy, or a bool, as a number of Python: JSON and the contract know no other."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def check_rates(learning_rate: float, weight_decay: float) -> None:
    """Raise ConfigError for invalid rates."""
    if not (0 <= learning_rate <= FLOAT32_MAX and 0 <= weight_decay < math.inf):
        raise ConfigError(
            f"lr and weight_decay must be 0 or more, and lr a float32; they are {learning_rate} and {weight_decay}"
        )
    if learning_rate * weight_decay >= 1:
        raise ConfigError(
            "lr · weight_decay must be less than 1, otherwise parameters change their sign; "
            f"{learning_rate} · {weight_decay} is {learning_rate * weight_decay}"
        )


class ParamGroup(Protocol):
    """One step consists of `extract`, and `apply` with the payloads of all ranks; or of `apply` alone. If the exchange
    between them fails, `put_back` follows `extract`."""

    settings: GroupSettings
    parameters: Sequence[Tensor]

    def extract(self, gradients: Sequence[Tensor], learning_rate: float) -> bytes:
        """Accumulate the gradients, and extract the payload that this rank sends.

        gradients: of this rank alone, in the order of the parameters, float32 in their shapes."""

    def put_back(self) -> None:
        """Return what was extracted to the momentum."""

    def apply(self, gathered: Sequence[bytes], learning_rate: float, weight_decay: float) -> None:
        """Step the parameters by the payloads of the ranks, and decay them."""

    def state(self) -> list[dict[str, Tensor]]:
        """The learned tensors, by parameter and name, not copied."""

    def load(self, saved: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue from what `state` gave, by parameter; from the beginning where it is empty."""
        for one, learned in zip(saved, self.state(), strict=True):
            for name, tensor in one.items():
                learned[name].copy_(tensor)


def group_of(parameters: Sequence[Tensor], settings: GroupSettings) -> ParamGroup:
    """Create a param group without learned state. parameters: float32, whole, on one device, none of them empty."""
    return VoteGroup(parameters, settings) if settings.values == "vote" else FloatGroup(parameters, settings)


class VoteGroup(ParamGroup):
    def __init__(self, parameters: Sequence[Tensor], settings: GroupSettings, layout: TileLayout | None = None) -> None:
        """layout: of the tiles that this rank steps; None: those of all parameters."""
        self.settings = settings
        self.parameters = parameters
        self._device = parameters[0].device
        self._layout = whole_layout(parameters) if layout is None else layout
        self._k = min(settings.compression_topk, MATRIX_COMPONENTS)
        self._demo = DemoSpec(
            k=self._k,
            update_topk=settings.update_topk,
            beta=settings.compression_decay,
            magnitude=settings.magnitude,
            precondition=settings.precondition,
            precondition_beta=settings.precondition_beta,
        )
        self._momentum = Momentum(self._layout, self._demo, self._device)
        self._step = torch.zeros((), dtype=torch.int64)
        self._sent: Sent | None = None  # by this rank, in the current step
        for parameter in parameters:
            with contiguous([local(parameter)]) as (theta,):
                flush_subnormals(theta)

    def extract(self, gradients: Sequence[Tensor], learning_rate: float) -> bytes:
        self._sent = self._momentum.accumulate_and_extract(
            self._by_tensor(gradients), to_float32(learning_rate), 1, self._k
        )
        return encode_votes(self._sent.votes(), self._layout)

    def put_back(self) -> None:
        if self._sent is not None:
            self._momentum.put_back(self._sent)
            self._sent = None

    def apply(self, gathered: Sequence[bytes], learning_rate: float, weight_decay: float) -> None:
        votes = [(decode_votes(sent, self._layout, self._k), 1) for sent in gathered]
        step, sent = int(self._step), self._sent
        self._sent = None
        merged = merge(votes, self._layout.components, self._selection(step))
        if sent is not None and (part := dropped_part(sent, merged, self._layout, self._demo.update_topk)):
            self._momentum.put_back(part)
        rate = to_float32(learning_rate)
        decay = to_float32(1 - rate * weight_decay)
        self._subtract(merged, rate, decay, step)
        self._step += 1

    def _by_tensor(self, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gradients of the layout's tensors, by name."""
        return _named(gradients)

    def _selection(self, step: int) -> TopkSelection | None:
        return topk_selection(self._demo, self._layout, step)

    def _subtract(self, merged: Merged, rate: float, decay: float, step: int) -> None:
        """Step the parameters by merged votes; see `apply_votes`."""
        with contiguous(self.parameters) as tensors:
            apply_votes(_named(tensors), merged, self._layout, self._demo, learning_rate=rate, decay=decay, step=step)

    def state(self) -> list[dict[str, Tensor]]:
        return [{"step": self._step} | self._momentum.of(tensor) for tensor in self._layout.tensors]


class FloatGroup(ParamGroup):
    def __init__(self, parameters: Sequence[Tensor], settings: GroupSettings) -> None:
        self.settings = settings
        self.parameters = parameters
        device = parameters[0].device
        self._published = PublishedMomentum(
            {str(number): matrix_shape(parameter.shape) for number, parameter in enumerate(parameters)},
            beta=settings.compression_decay,
            k=settings.compression_topk,
            chunk=settings.compression_chunk,
            device=device,
        )
        self._second: SecondMoment | None = None
        if settings.precondition == "adam":
            self._second = SecondMoment(whole_layout(parameters), settings.precondition_beta, device)
        self._step = torch.zeros((), dtype=torch.int64)
        self._sent: dict[str, ChunkCoefficients] | None = None  # by this rank, in the current step

    def extract(self, gradients: Sequence[Tensor], learning_rate: float) -> bytes:
        """Encode for each parameter its indices, in as few bytes as possible, followed by its values, float32."""
        named = _named(gradients)
        if self._second is not None:
            self._second.begin()
            named = {name: self._second.precondition(name, gradient) for name, gradient in named.items()}
        self._published.accumulate(named, learning_rate)
        self._sent, parts = self._published.extract(), []
        for name, selected in self._sent.items():
            parts.append(selected.indices.cpu().numpy().astype(self._index_type(name)).tobytes())
            parts.append(selected.values.cpu().numpy().astype("<f4").tobytes())
        return b"".join(parts)

    def put_back(self) -> None:
        if self._sent is not None:
            self._published.put_back(self._sent)
            self._sent = None

    def apply(self, gathered: Sequence[bytes], learning_rate: float, weight_decay: float) -> None:
        self._sent = None
        if weight_decay:
            for parameter in self.parameters:
                parameter.mul_(1 - learning_rate * weight_decay)
        if gathered:
            steps = self._published.step_of([self._read(sent) for sent in gathered])
            for parameter, step in zip(self.parameters, steps.values(), strict=True):
                parameter.sub_(step.view(parameter.shape), alpha=learning_rate)
        self._step += 1

    def state(self) -> list[dict[str, Tensor]]:
        return [
            {"step": self._step, "momentum": delta} | (self._second.of(name) if self._second else {})
            for name, delta in self._published.delta.items()
        ]

    def _read(self, sent: bytes) -> dict[str, ChunkCoefficients]:
        found, offset = {}, 0
        for name, delta in self._published.delta.items():
            shape = self._published.selected_shape(name)
            parts = []
            for kind, wanted in ((self._index_type(name), np.int64), (np.dtype("<f4"), np.float32)):
                part = np.frombuffer(sent, kind, math.prod(shape), offset).astype(wanted).reshape(shape)
                parts.append(torch.from_numpy(part).to(delta.device))
                offset += math.prod(shape) * kind.itemsize
            found[name] = ChunkCoefficients(*parts)
        return found

    def _index_type(self, name: str) -> np.dtype[Any]:
        return np.dtype("<u2" if self._published.size(name) <= 1 << 16 else "<u4")


def described(group: ParamGroup) -> dict[str, Any]:
    """The properties of a param group that all ranks must share, as JSON values with names for error messages."""
    shapes = {f"shape of parameter {number}": list(tensor.shape) for number, tensor in enumerate(group.parameters)}
    return asdict(group.settings) | {"steps so far": int(group.state()[0]["step"])} | shapes


def _named(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors by their index as name, in at most two dimensions."""
    return {str(number): tensor.view(matrix_shape(tensor.shape)) for number, tensor in enumerate(tensors)}


def whole_layout(parameters: Sequence[Tensor]) -> TileLayout:
    return TileLayout(
        [Parameter(name=str(number), shape=matrix_shape(tensor.shape)) for number, tensor in enumerate(parameters)]
    )


@contextmanager
def contiguous(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The parameters themselves. Those that are not contiguous are replaced by copies, which are written back at the
    end."""
    found = [parameter.detach().contiguous() for parameter in parameters]
    yield found
    for parameter, tensor in zip(parameters, found, strict=True):
        if tensor.data_ptr() != parameter.data_ptr():
            parameter.copy_(tensor)
