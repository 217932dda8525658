"""What a run trains: a model with its loss, and the data that it learns from.

A `Task` stands behind `model.kind` of a contract, a `DataKind` behind `data.kind`. Each is one file that registers
itself, in `thinwire_proto.models`, in `thinwire_proto.data` or in a package of somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from thinwire_proto.contract import Contract, DataSpec, ModelSpec, Parameter, RunSpec
from thinwire_proto.kinds import Kinds

Batch = tuple[Tensor, ...]
"""What a model's loss takes: tensors whose first dimension are the samples."""


class Model(Protocol):
    """A module (`torch.nn.Module`) with a loss."""

    def loss(self, *batch: Tensor) -> Tensor:
        """The mean over the batch, a scalar that has a gradient."""

    def stages(self) -> Iterable[nn.Module]:
        """Modules that run one after the other and take about equally long. A node that has to leave gives up its
        micro-batch between two of them."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def modules(self) -> Iterator[nn.Module]: ...


@runtime_checkable
class Writes(Protocol):
    """A model that continues a sequence of tokens."""

    def generate(self, prompt: Tensor, count: int, temperature: float, generator: torch.Generator) -> Tensor:
        """`count` tokens after `prompt` [length], drawn at `temperature`; the most likely ones, if it is 0."""


class Task(Protocol):
    """The model of a contract. The coordinator needs the manifest, the initial state and the loss alone."""

    def manifest(self) -> tuple[Parameter, ...]:
        """The trained tensors, tied ones once. Allocates nothing."""

    def initial_state(self, seed: int) -> dict[str, Tensor]:
        """Freshly drawn parameters by name, float32 on the CPU. Only the maker of a run calls it: all others start
        from a snapshot, since generators differ between machines and versions."""

    def model(self, device: torch.device | str) -> Model:
        """With parameters of any value on `device`. Its names and shapes are the manifest's."""


class DataSource(Protocol):
    """The data of a run, open."""

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at these positions of the endless stream of passes, on the CPU. Each pass has every sample once,
        in an order that the contract sets."""

    def held_out(self, samples_max: int) -> Batch:
        """Samples that nobody trains on, evenly spread, on the CPU."""

    def encode(self, text: str) -> Tensor | None:
        """The tokens of a text, int64 [n]; None if the samples are no text."""

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [n]."""

    def describe(self) -> str:
        """What it is and how much of it there is, in words."""


class DataKind(Protocol):
    """How data of one kind are made, bounded and read."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> tuple[DataSpec, bytes]:
        """For a new run: the contract's section with what follows from the data, and the file that nodes fetch.
        go_on: called between two steps of something long; it raises to end it. Raises ConfigError."""

    def file_bytes_max(self, spec: Any) -> int:
        """No such file is longer than this. 0: there is none, and nothing is fetched."""

    def open(self, file: bytes, contract: Contract) -> DataSource:
        """Read a file that may come from anybody. Raises PayloadError if it is not the one that the contract names."""


TASKS: Kinds[Callable[[Any], Task]] = Kinds("model", home="thinwire_proto.models")
"""By `model.kind`: makes the task of a spec of that kind."""
DATA_KINDS: Kinds[DataKind] = Kinds("data", home="thinwire_proto.data")
"""By `data.kind`."""


def task_of(spec: ModelSpec) -> Task:
    """Raises ContractError if this thinwire does not have the spec's kind."""
    return TASKS[spec.kind](spec)


def data_kind_of(spec: DataSpec) -> DataKind:
    """Raises ContractError if this thinwire does not have the spec's kind."""
    return DATA_KINDS[spec.kind]


class Stateless:
    """A model without parameters of its own: each call computes with the tensors that it is given, on their memory."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._caller = _Caller(model)
        _give_up_memory(model)

    def loss(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self._call(parameters, "loss", *batch)

    def generate(
        self,
        parameters: Mapping[str, Tensor],
        prompt: Tensor,
        count: int,
        temperature: float,
        generator: torch.Generator,
    ) -> Tensor:
        """See `Writes`."""
        return self._call(parameters, "generate", prompt, count, temperature, generator)

    def _call(self, parameters: Mapping[str, Tensor], method: str, *arguments: object) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in parameters.items()}
        result: Tensor = torch.func.functional_call(self._caller, named, (method, *arguments))
        return result


class _Caller(nn.Module):
    """`functional_call` calls a module's forward and nothing else."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *arguments: object) -> Tensor:
        result: Tensor = getattr(self.model, method)(*arguments)
        return result


def _give_up_memory(model: Model) -> None:
    """Put tensors without memory in place of a model's parameters. Tied ones stay tied."""
    without: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            setattr(module, name, without.setdefault(parameter, empty))
