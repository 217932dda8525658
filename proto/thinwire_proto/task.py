"""The interfaces of what a run trains: a model with its loss, and its training data.

The contract's `model.kind` selects a `Task`, and `data.kind` a `DataKind`. Each is one file that registers itself, in
`thinwire_proto.models`, in `thinwire_proto.data` or in an installed package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from thinwire_proto.contract import Contract, DataSpec, ModelSpec, Parameter, RunSpec
from thinwire_proto.kinds import Kinds

Batch = tuple[Tensor, ...]
"""The arguments of a model's loss: tensors whose first dimension is the sample."""


class Model(Protocol):
    """A module (`torch.nn.Module`) with a loss."""

    def loss(self, *batch: Tensor) -> Tensor:
        """The mean loss over the batch: a scalar with a gradient."""

    def stages(self) -> Iterable[nn.Module]:
        """Modules that run one after another and take about the same time.

        A node that has to leave abandons its micro-batch between two of them.
        """

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def modules(self) -> Iterator[nn.Module]: ...


@runtime_checkable
class Writes(Protocol):
    """A model that can continue a sequence of tokens."""

    def generate(self, prompt: Tensor, count: int, temperature: float, generator: torch.Generator) -> Tensor:
        """Generate `count` tokens after `prompt` [length], drawn at `temperature`; 0 picks the most likely ones."""


class Task(Protocol):
    """The model of a contract. The coordinator uses only the manifest, the initial state and the loss."""

    def manifest(self) -> tuple[Parameter, ...]:
        """The trained tensors; tied ones are listed once. Allocates no tensor memory."""

    def initial_state(self, seed: int) -> dict[str, Tensor]:
        """Draw initial parameters, by name, float32 on the CPU.

        Only the creator of a run calls this. All others start from a snapshot, because random generators differ between
        machines and versions.
        """

    def model(self, device: torch.device | str) -> Model:
        """Build the model on `device` with arbitrary parameter values, and with the manifest's names and shapes."""


class DataSource(Protocol):
    """The opened data of a run."""

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at these positions in the endless stream of passes, on the CPU.

        Each pass has every sample once, in the order that the contract defines.
        """

    def held_out(self, samples_max: int) -> Batch:
        """Up to `samples_max` evenly spread samples that no node trains on, on the CPU."""

    def encode(self, text: str) -> Tensor | None:
        """The tokens of a text, int64 [n]; None if the samples are not text."""

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [n]."""

    def describe(self) -> str:
        """A short description of the data and their size."""


class DataKind(Protocol):
    """Creates, bounds and reads data of one kind."""

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> tuple[DataSpec, bytes]:
        """For a new run, return the contract's data section with its derived keys, and the file that nodes fetch.

        go_on: called between two steps of a long operation; raises an exception to stop it. Raises ConfigError.
        """

    def file_bytes_max(self, spec: Any) -> int:
        """Upper bound on the size of the data file; 0 if there is no file to fetch."""

    def open(self, file: bytes, contract: Contract) -> DataSource:
        """Read a file from an untrusted source. Raises PayloadError if it is not the one that the contract names."""


TASKS: Kinds[Callable[[Any], Task]] = Kinds("model", home="thinwire_proto.models")
"""Constructors of tasks, by `model.kind`. Each takes the spec of its kind."""
DATA_KINDS: Kinds[DataKind] = Kinds("data", home="thinwire_proto.data")
"""Data kinds, by `data.kind`."""


def task_of(spec: ModelSpec) -> Task:
    """The task of a model spec. Raises ContractError if this thinwire does not have its kind."""
    return TASKS[spec.kind](spec)


def data_kind_of(spec: DataSpec) -> DataKind:
    """The data kind of a data spec. Raises ContractError if this thinwire does not have it."""
    return DATA_KINDS[spec.kind]


class Stateless:
    """A model without parameters of its own. Each call computes with the tensors that it is given, without copies."""

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
    """Calls any method of a model through `forward`, because `functional_call` can only call that."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *arguments: object) -> Tensor:
        result: Tensor = getattr(self.model, method)(*arguments)
        return result


def _give_up_memory(model: Model) -> None:
    """Replace a model's parameters by tensors without memory. Tied parameters stay tied."""
    without: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            setattr(module, name, without.setdefault(parameter, empty))
