"""Completes a run file as a new run would be, and finds the facts of its model and its data. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thinwire_coordinator.planning.facts import DataFacts, ModelFacts
from thinwire_coordinator.planning.footprint import facts_of
from thinwire_coordinator.planning.prepared import sizes_of_manifest
from thinwire_proto.contract import ModelSpec, RunSpec
from thinwire_proto.data.manifest import Manifest, read_manifest
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.needs import CACHE_BYTES_MIN
from thinwire_proto.task import Made, complete_model, data_kind_of


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
    model, facts, sizes = run.model, None, DataFacts()
    try:
        model = model_of(run.model)
        facts = facts_of(model, begins=bool(run.model.first_weights))
    except (ConfigError, ContractError) as error:
        errors.append(("model", str(error)))
    run = run.model_copy(update={"model": model})
    try:
        kind = data_kind_of(run.data)
        made = kind.make(run, lambda: None)
        cache = CACHE_BYTES_MIN if kind.has_blobs else 0
        sizes = replace(sizes_of(made), node_bytes_min=kind.file_bytes_max(made.spec) + cache)
        made.spec.check(model)
        made.spec.check_complete(model)
    except (ConfigError, ContractError, ValueError) as error:
        errors.append(("data", str(error)))
    return Completed(run, facts, sizes, tuple(errors))


def model_of(spec: ModelSpec) -> ModelSpec:
    """The model section as the contract will have it. Raises ConfigError or ContractError."""
    completed, _ = complete_model(spec, lambda: None)
    completed.check_complete()
    return completed


def sizes_of(made: Made) -> DataFacts:
    """The facts of data that were made for a run."""
    try:
        return sizes_of_manifest(read_manifest(Manifest, made.file), getattr(made.spec, "weights", None))
    except PayloadError:  # data of a kind that has no manifest
        train_bytes = getattr(made.spec, "train_bytes", 0)
        tokens = {made.spec.kind: train_bytes} if train_bytes else {}
        return DataFacts(tokens, len(made.file), vocabulary=256 if train_bytes else 0)
