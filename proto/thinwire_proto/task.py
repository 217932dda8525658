"""The interfaces of what a run trains: a model with its loss, and its training data.

The contract's `model.kind` selects a `Task`, and `data.kind` a `DataKind`. Each is one file that registers itself, in
`thinwire_proto.models`, in `thinwire_proto.data` or in an installed package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from thinwire_proto.blobs import Blob, Blobs, NoBlobs
from thinwire_proto.contract import Contract, DataSpec, ModelSpec, Parameter, RunSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.kinds import Kinds

NO_BLOBS = NoBlobs()
MANIFEST_MEMORY = 16
"""Bytes of memory for each byte of a manifest in JSON. The objects of a shard take about 8 times its 120 bytes."""
Batch = tuple[Tensor, ...]
"""The arguments of a model's loss: tensors whose first dimension is the sample."""


class Model(Protocol):
    """A module (`torch.nn.Module`) with a loss."""

    @property
    def loss(self) -> Callable[..., Tensor]:
        """A method that takes the tensors of a `Batch` and returns the mean loss: a scalar with a gradient."""

    def stages(self) -> Iterable[nn.Module]:
        """Modules that run one after another and take about the same time.

        A node that has to leave abandons its micro-batch between two of them.
        """

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Tied parameters once. The names may differ from the paths of the modules."""

    def modules(self) -> Iterator[nn.Module]: ...


@runtime_checkable
class LearnsConversations(Protocol):
    """A model whose loss takes the marks of conversations as a second tensor (`thinwire_proto.data.conversations`)."""

    @property
    def packs(self) -> bool:
        """Whether the model keeps several conversations in a row apart."""

    @property
    def weight(self) -> Callable[..., int]:
        """A function of the tensors of a `Batch`: the weight of its mean loss beside that of another batch."""


@runtime_checkable
class LearnsPreferences(LearnsConversations, Protocol):
    """A model with a reference, whose loss takes rows of preferences too."""

    def margins(self, tokens: Tensor, marks: Tensor) -> Tensor:
        """By how much the model prefers the chosen conversation of each pair more than the reference: float32 [pairs].
        The loss is the mean of −log σ(margin)."""


@runtime_checkable
class Writes(Protocol):
    """A model that can continue a sequence of tokens."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """The logits, float32 [vocabulary], of the token after `tokens`, int64 [length]. Of a text that is longer than
        the model's context, the model sees the end."""


@runtime_checkable
class WritesOn(Writes, Protocol):
    """A model that keeps what it computed of a text, so that the next token costs the computation of one token."""

    def continued_logits(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Like `next_logits`, and what the next call may reuse.

        cache: what the call for `tokens` without the last one returned; None for the first call.
        """


@dataclass(frozen=True)
class HuggingFaceModel:
    """A model in the layout of a transformers class.

    config: the contents of `config.json`. tensors: by the names of that class, float32 on the CPU. adapter: the
    contents of peft's `adapter_config.json`, if the tensors are an adapter and not a whole model.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    adapter: dict[str, Any] | None = None


class Task(Protocol):
    """The model of a contract. The coordinator uses only the manifest, the initial state and the loss.

    Kinds inherit from this class, and override what applies to them.
    """

    def manifest(self) -> tuple[Parameter, ...]:
        """The trained tensors; tied ones are listed once. Allocates no tensor memory."""

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        """Draw initial parameters, by name, float32 on the CPU.

        Only the creator of a run calls this. All others start from a snapshot, because random generators differ between
        machines and versions.
        """

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Model:
        """Build the model on `device` with arbitrary values of the trained parameters, and with the manifest's names
        and shapes. `blobs` must have those of `blobs()`, except on "meta". Raises BlobMissing."""

    def blobs(self) -> tuple[Blob, ...]:
        """The blobs that `model` reads: the weights of a frozen base."""
        return ()

    def blob_names(self) -> Mapping[Blob, str]:
        """The names of `blobs()` as files of the base's folder; empty for one that has none."""
        return dict.fromkeys(self.blobs(), "")

    def blob_urls(self) -> tuple[str, ...]:
        """Addresses of folders that have `blobs()` by their names."""
        return ()

    @property
    def base_bits(self) -> tuple[int, ...]:
        """The bits a parameter in which a node may hold the frozen base: first those that lose nothing of its files,
        last the fewest. Empty if there is no choice."""
        return ()

    def in_bits(self, bits: int) -> Task:
        """The same task whose models have the frozen base in so many bits a parameter, one of `base_bits`. Raises
        ConfigError."""
        raise ConfigError(f"a model of this kind has no frozen base that could be held in {bits} bits")

    def load(self, folder: Path) -> dict[str, Tensor]:
        """Read initial parameters from a folder in the layout of transformers. Raises ConfigError, naming the tensor,
        if they do not fit."""
        raise ConfigError(f"a model of this kind cannot begin from the weights in {folder}")

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        """The model as transformers opens it without custom code. Raises ConfigError if it has no such form."""
        raise ConfigError("a model of this kind has no form that transformers opens; export to X.safetensors")

    def merged(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        """Like `hugging_face`, but an adapter is merged into its base."""
        return self.hugging_face(parameters, blobs)


class Tokenizer(Protocol):
    """Converts between text and tokens."""

    end: int | None
    """The token that ends a document; None if there is none."""

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 [n]."""

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [n]."""

    def files(self) -> dict[str, bytes]:
        """The files, by name, that `transformers.AutoTokenizer` opens without custom code."""


@dataclass(frozen=True)
class HeldOutSet:
    """Samples that no node trains on.

    text_bytes: bytes of text that these samples predict, to convert nats into bits a byte; 0 if they are not text.
    counted: tokens that their loss is the mean of; 0 if it is all of them. unit: what it is the mean of: "token", or
    "pair" of preferences.
    """

    name: str
    samples: int
    text_bytes: int = 0
    counted: int = 0
    unit: str = "token"

    def spread(self, count: int) -> list[int]:
        """The numbers of `count` evenly spread samples, or of all if there are fewer. The same on every machine."""
        count = min(count, self.samples)
        return [number * (self.samples - 1) // max(1, count - 1) for number in range(count)]

    def bits_per_nat(self, context: int) -> float | None:
        """The factor from nats per token to bits per byte of text; None if this is not text.

        context: tokens that one sample predicts.
        """
        tokens = self.counted or self.samples * context
        return tokens / (self.text_bytes * math.log(2)) if self.text_bytes else None


class DataSource(Protocol):
    """The opened data of a run. Kinds inherit from this class, and override what applies to them."""

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at these positions in the endless stream of passes, on the CPU.

        Each pass has every sample once, in the order that the contract defines. Raises BlobMissing.
        """

    def amend(self, contract: Contract) -> None:
        """Take an amended contract. What it says of samples holds from the amendment's position on. Raises
        ContractError if these data cannot have it, and then changes nothing."""
        return None

    def needs(self, positions: Iterable[range]) -> tuple[Blob, ...]:
        """The blobs that `batch` reads for these positions, in the order of their first use."""
        return ()

    def blobs(self) -> Iterable[Blob]:
        """All blobs of the data."""
        return ()

    def block(self, position: int) -> range | None:
        """The range around a position that one node should train on alone, because its samples read the same blobs.

        Blocks do not overlap, and every position is in one. None: it does not matter which node reads what.
        """
        return None

    def check(self, blob: Blob) -> None:
        """Check the contents of a blob that is on this machine and has the right hash.

        Raises PayloadError if its samples cannot be used, and BlobMissing.
        """
        return None

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        """The held-out sets; the first is the one that is shown where there is room for one."""

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        """Samples of a held-out set by number, on the CPU. Raises BlobMissing."""

    def held_out_needs(self, name: str, samples: Sequence[int]) -> tuple[Blob, ...]:
        """The blobs that `held_out` reads for these samples."""
        return ()

    def held_out_weight(self, name: str, samples: Sequence[int]) -> int:
        """The weight of the mean loss of these samples beside that of others: see `Stateless.weight`. Raises
        BlobMissing."""
        return len(samples)

    def tokens_a_sample(self, context: int) -> int:
        """The mean number of tokens of a sample that count, rounded. context: those that it predicts."""
        return context

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the samples are not text."""
        return None

    @property
    def loss_unit(self) -> str:
        """See `HeldOutSet.unit`; of the training loss too."""
        return "token"

    @property
    def has_conversations(self) -> bool:
        """Whether samples are conversations, written with the tokenizer's chat template."""
        return False

    def describe(self) -> str:
        """A short description of the data and their size."""


@dataclass(frozen=True)
class Made:
    """The result of a data kind for a new run.

    spec: the contract's data section, with its derived keys and without local ones. file: the file that every node
    fetches, with `DataKind.file_bytes_max`. blobs: the files that nodes fetch as they need them, and where they are on
    this machine.
    """

    spec: DataSpec
    file: bytes = b""
    blobs: Mapping[Blob, Path] = field(default_factory=dict)


class DataKind(Protocol):
    """Creates, bounds and reads data of one kind. has_blobs: whether nodes fetch more than the data file."""

    has_blobs: bool = True

    def make(self, run: RunSpec, go_on: Callable[[], None]) -> Made:
        """Make the data of a new run.

        go_on: called between two steps of a long operation; raises an exception to stop it. Raises ConfigError.
        """

    def check(self, run: RunSpec) -> None:
        """Raise ConfigError if the data do not suit a completed model. Takes no time; `make` checks it too."""
        return

    def file_bytes_max(self, spec: Any) -> int:
        """Upper bound on the size of the data file; 0 if there is no file to fetch."""

    def memory_bytes(self, spec: Any) -> int:
        """Upper bound on the memory that `open` takes. By default for a manifest, whose entries become objects."""
        return MANIFEST_MEMORY * self.file_bytes_max(spec)

    def open(self, file: bytes, contract: Contract, blobs: Blobs) -> DataSource:
        """Read a file from an untrusted source. Raises PayloadError if it is not the one that the contract names."""


TASKS: Kinds[Callable[[Any], Task]] = Kinds("model.kind", "thinwire_proto.models")
"""Constructors of tasks, by `model.kind`. Each takes the spec of its kind."""
MODEL_MAKERS: dict[str, Callable[[Any, Callable[[], None]], tuple[ModelSpec, Mapping[Blob, Path]]]] = {}
"""See `complete_model`; for the kinds of model whose run file names a local folder. Filled by the kind's own file."""
DATA_KINDS: Kinds[DataKind] = Kinds("data.kind", "thinwire_proto.data")
"""Data kinds, by `data.kind`."""


def complete_model(spec: ModelSpec, go_on: Callable[[], None]) -> tuple[ModelSpec, Mapping[Blob, Path]]:
    """For a new run: the contract's model section, with its derived keys and without local ones, and its blobs.

    Raises ConfigError. go_on: see `DataKind.make`.
    """
    task_of(spec)  # imports the kind, whose file fills MODEL_MAKERS
    complete = MODEL_MAKERS.get(spec.kind)
    completed, blobs = complete(spec, go_on) if complete else (spec, {})
    return completed.model_copy(update=dict.fromkeys(spec.LOCAL, "")), blobs


def task_of(spec: ModelSpec) -> Task:
    """The task of a model spec. Raises ContractError if this thinwire does not have its kind."""
    return TASKS[spec.kind](spec)


def data_kind_of(spec: DataSpec) -> DataKind:
    """The data kind of a data spec. Raises ContractError if this thinwire does not have it."""
    return DATA_KINDS[spec.kind]
