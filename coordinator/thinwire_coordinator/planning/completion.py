"""Finds the facts of a model and of data, and completes a run file as a new run would be. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from thinwire_coordinator.planning.facts import DataFacts, ModelFacts
from thinwire_proto.contract import ModelSpec, RunSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.data.image_manifest import ImageManifest
from thinwire_proto.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.model_memory import gathered_bytes, memories_of
from thinwire_proto.needs import CACHE_BYTES_MIN
from thinwire_proto.task import Made, Writes, complete_model, data_kind_of, task_of

PREPARE = "make one with `thinwire-coordinator prepare`"


@dataclass(frozen=True)
class Completed:
    """A run with the facts of its model and data. errors: (section, text) of what a start would refuse."""

    run: RunSpec
    model: ModelFacts | None
    data: DataFacts
    errors: tuple[tuple[str, str], ...]


def complete(run: RunSpec) -> Completed:
    """Read the folders that a run names, and build its model on no device."""
    errors: list[tuple[str, str]] = []
    model, facts = run.model, None
    try:
        model = model_of(run.model)
        facts = facts_of(model, begins=bool(run.model.first_weights))
        if why := without_weights(run.model):
            errors.append(("model", why))
    except (ConfigError, ContractError) as error:
        errors.append(("model", str(error)))
    run = run.model_copy(update={"model": model})
    sizes, why_not = read_data(run)
    if why_not:
        errors.append(("data", why_not))
    return Completed(run, facts, sizes, tuple(errors))


def read_data(run: RunSpec) -> tuple[DataFacts, str]:
    """The facts of a run's data, and why its model cannot be trained on them; empty if it can."""
    sizes = DataFacts()
    try:
        made = data_kind_of(run.data).make(run, lambda: None)
        sizes = sizes_of(made)
        made.spec.check(run.model)
        made.spec.check_complete(run.model)
    except (ConfigError, ContractError, ValueError) as error:
        return sizes, str(error)
    return sizes, ""


def model_of(spec: ModelSpec) -> ModelSpec:
    """The model section as the contract will have it, but for the hashes of an adapter's base. Raises ConfigError or
    ContractError."""
    if isinstance(spec, LoraSpec):
        from thinwire_proto.models.lora import planned  # noqa: PLC0415 - needs transformers

        completed: ModelSpec = planned(spec).model_copy(update=dict.fromkeys(spec.LOCAL, ""))
    else:
        completed, _ = complete_model(spec, lambda: None)
    completed.check_complete()
    return completed


def without_weights(spec: ModelSpec) -> str:
    """Says that an adapter's base has no weights yet, so that its figures are those of its config; otherwise empty."""
    if not isinstance(spec, LoraSpec):
        return ""
    from thinwire_proto.models.lora import has_weights  # noqa: PLC0415 - needs transformers

    if has_weights(spec):
        return ""
    return (
        f"{spec.base} has no safetensors yet; the figures follow from its config.json alone. `serve` needs the weights"
    )


def sizes_of(made: Made) -> DataFacts:
    kind = data_kind_of(made.spec)
    node_bytes_min = kind.file_bytes_max(made.spec) + (CACHE_BYTES_MIN if kind.has_blobs else 0)
    try:
        found = sizes_of_manifest(read_manifest(Manifest, made.file), getattr(made.spec, "weights", None))
    except PayloadError:  # data of a kind that has no manifest
        train_bytes = getattr(made.spec, "train_bytes", 0)
        tokens = {made.spec.kind: train_bytes} if train_bytes else {}
        found = DataFacts(tokens, len(made.file), vocabulary=256 if train_bytes else 0)
    return replace(found, node_bytes_min=node_bytes_min)


def facts_of(spec: ModelSpec, *, begins: bool = False) -> ModelFacts:
    """The facts of a model of any kind, as a contract has it. begins: whether the run file names weights to begin from.

    Raises ConfigError or ContractError if it cannot be built here.
    """
    task = task_of(spec)
    manifest = tuple(task.manifest())
    layout = TileLayout(manifest)
    model = task.model("meta")
    memories = tuple(memories_of(spec)) if isinstance(model, Writes) else ()
    whole = sum(tensor.numel() for tensor in {id(tensor): tensor for _, tensor in model.named_parameters()}.values())
    return ModelFacts(
        trained=layout.parameters,
        matrix_tiles=layout.matrix_tiles,
        vector_tiles=layout.vector_tiles,
        context=spec.context,
        frozen=max(0, whole - layout.parameters),
        begins=begins,
        parameters=manifest,
        activation_bytes=memories[0].activations.whole if memories else 0,
        memories=memories,
        base_bytes=sum(blob.size for blob in task.blobs()),
        gathered_bytes=gathered_bytes(model),
    )


def read_prepared(folder: Path) -> Manifest:
    """The manifest of a folder that `prepare` wrote. Raises ConfigError."""
    try:
        data = (folder / MANIFEST_FILE).read_bytes()
        if _has_images(data):
            raise ConfigError(
                f'{folder} has images, and `init` plans runs on text alone; write a run file with model.kind = "timm" '
                'and data.kind = "images", and let `check` plan it'
            )
        return read_manifest(Manifest, data)
    except FileNotFoundError:
        what = "has no " + MANIFEST_FILE if folder.is_dir() else "is no folder"
        raise ConfigError(f"{folder} {what}, so it has no prepared data; {PREPARE}") from None
    except (OSError, PayloadError) as error:
        raise ConfigError(f"{folder / MANIFEST_FILE}: {error}; {PREPARE}") from None


def _has_images(manifest: bytes) -> bool:
    try:
        read_manifest(ImageManifest, manifest)
    except PayloadError:
        return False
    return True


def sizes_of_manifest(manifest: Manifest, weights: dict[str, float] | None = None) -> DataFacts:
    """The facts of prepared data. Sources that the weights leave out are not counted as tokens."""
    used = [source for source in manifest.sources if not weights or source.name in weights]
    shards = [shard for source in manifest.sources for shard in (*source.train, *source.held_out)]
    form = manifest.conversations
    return DataFacts(
        tokens={source.name: sum(shard.tokens for shard in source.train) for source in used},
        bytes=sum(shard.size for shard in shards),
        node_bytes_min=CACHE_BYTES_MIN,
        vocabulary=manifest.vocabulary,
        context=form.context if form is not None else 0,
        preferences=form is not None and form.preferences,
    )
