"""Any causal language model that transformers builds from a config."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from thinwire_proto.blobs import Blob, Blobs
from thinwire_proto.contract import ModelSpec
from thinwire_proto.contract.models.hf import HuggingFaceSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.trained import SpecTask, trained
from thinwire_proto.models.transformers_models import (
    CausalLM,
    build,
    canonical_config,
    check_keys,
    check_same_model,
    choose_context,
    hub_config,
    in_files,
    load_whole,
    sizes_of,
)
from thinwire_proto.models.weights_folder import CONFIG, read_json
from thinwire_proto.task import MODEL_MAKERS, NO_BLOBS, TASKS, HuggingFaceModel


@TASKS.register("hf")
class HuggingFaceTask(SpecTask[HuggingFaceSpec]):
    """The `Task` of the model kind `hf`."""

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        """As transformers draws them for the family."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return trained(build(self._spec.config, "cpu", draw=True))

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> CausalLM:
        return CausalLM(build(self._spec.config, device), self._spec.context)

    def load(self, folder: Path) -> dict[str, Tensor]:
        check_same_model(folder, self._spec.config)
        return trained(load_whole(folder, self._spec.config))

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        model = build(self._spec.config, "meta")
        config = hub_config(self._spec.config) | {"architectures": [type(model).__name__], "dtype": "float32"}
        return HuggingFaceModel(config, in_files(model, {name: tensor.cpu() for name, tensor in parameters.items()}))


def complete(spec: ModelSpec, go_on: Callable[[], None]) -> tuple[HuggingFaceSpec, Mapping[Blob, Path]]:
    """See `thinwire_proto.task.complete_model`."""
    assert isinstance(spec, HuggingFaceSpec)
    folder = spec.folder or (spec.weights if not spec.config else "")
    if folder:
        source = str(Path(folder) / CONFIG)
        config = read_json(Path(folder) / CONFIG)
    elif spec.config:
        source, config = "model.config", json.loads(spec.config)
        check_keys(config, source)
    else:
        raise ConfigError("model.folder, model.config: one of them is needed for model.kind = 'hf'")
    if spec.vocabulary:
        config["vocab_size"] = spec.vocabulary
    text = canonical_config(config, source)
    vocabulary, longest = sizes_of(text)
    if spec.vocabulary not in (0, vocabulary):
        raise ConfigError(f"model.vocabulary: {source} has no vocab_size of its own; change it in a copy of the config")
    context = choose_context(spec.context, longest, source)
    found = {"kind": "hf", "config": text, "vocabulary": vocabulary, "context": context}
    return HuggingFaceSpec.model_validate(found), {}


MODEL_MAKERS["hf"] = complete
