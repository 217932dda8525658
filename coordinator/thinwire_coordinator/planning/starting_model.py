"""Chooses the model of a new run file: a preset by name, a folder, or what suits the amount of data."""

from __future__ import annotations

import math
import os
from pathlib import Path

from thinwire_common.hub_cache import folder_of, is_repository, origin_of
from thinwire_coordinator.planning.facts import DataFacts
from thinwire_coordinator.planning.problems import did_you_mean
from thinwire_coordinator.planning.run_text import Key
from thinwire_coordinator.planning.settings import PASSES_MAX, TOKENS_A_PARAMETER
from thinwire_proto.contract import TILE_EDGE, ModelSpec
from thinwire_proto.contract.models.hf import HuggingFaceSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models import PRESETS
from thinwire_proto.models.llama import spec_of
from thinwire_proto.models.weights_folder import CONFIG, INDEX, WEIGHTS
from thinwire_proto.task import task_of

BYTE_MODEL = "byte-1m"
FAMILY = "llama-"
"""Presets for tokenized text, from the smallest to the largest."""
OF_CONFIG = {
    "context": "tokens per sample",
    "width": "size of the residual stream",
    "layers": "",
    "heads": "of attention in a layer",
    "kv_heads": "of keys and values",
    "hidden": "inner width of the SwiGLU",
    "tied": "whether the output matrix is the embedding",
    "rope_theta": "base of the rotary positions",
    "norm_epsilon": "in each RMSNorm",
}
"""The keys that a `config.json` gives for the kind `llama`, with their comments in the run file."""


def check_name(name: str | None, *, is_adapter: bool) -> None:
    """Raise ConfigError if a name stands for no model, or for none that an adapter can be trained on."""
    is_folder = name is not None and (folder_of(name) / CONFIG).is_file()
    if is_folder or ((name is None or name in PRESETS) and not is_adapter):
        return
    if name is not None and Path(name).exists():
        raise ConfigError(f"--model {name}: has no {CONFIG}, as transformers writes it")
    if name is not None and is_repository(name):
        missing = f"--model {name}: there is no such folder, and none of this name in the Hub's cache"
        raise ConfigError(f"{missing}; if it is a name of the Hugging Face Hub, fetch it first: hf download {name}")
    if is_adapter or name is None:
        raise ConfigError("--lora needs --model FOLDER: the model of transformers that the adapter is trained on")
    guess = did_you_mean(name, PRESETS)
    raise ConfigError(f"--model {name}: there is no such preset or folder{guess}; there are {', '.join(PRESETS)}")


def chosen_model(
    name: str | None, sizes: DataFacts, beside: Path, *, is_corpus: bool, is_adapter: bool = False
) -> tuple[ModelSpec, list[Key], str]:
    """The model section, its lines in the run file, and what to say of its kind, if anything.

    beside: the folder of the run file. Raises ConfigError.
    """
    spec, keys, why = _chosen(name, sizes, beside, is_corpus=is_corpus, is_adapter=is_adapter)
    if sizes.context and sizes.context != spec.context:
        spec = spec.model_copy(update={"context": sizes.context})
        keys = [key for key in keys if key[0] != "context"]
        keys.append(("context", sizes.context, "tokens per sample, for which the conversations are packed"))
    return spec, keys, why


def _chosen(
    name: str | None, sizes: DataFacts, beside: Path, *, is_corpus: bool, is_adapter: bool
) -> tuple[ModelSpec, list[Key], str]:
    if name is None:
        name = BYTE_MODEL if is_corpus else _suitable(sizes)
    check_name(name, is_adapter=is_adapter)
    if is_adapter:
        folder = folder_of(name)
        path, relative = _paths(folder, beside)
        origin = origin_of(folder)
        adapter = LoraSpec(base=path)
        if origin is not None:
            adapter = adapter.model_copy(update={"base_name": origin.repository, "base_urls": (origin.url,)})
        return adapter, _keys_of_adapter(adapter, relative), "lora. Each volunteer needs pip install 'thinwire[lora]'"
    if name not in PRESETS:
        return _of_folder(folder_of(name), sizes, beside)
    spec = PRESETS[name]
    keys: list[Key] = [("preset", name, spec.in_words())]
    if sizes.vocabulary and (fitting := _vocabulary(sizes)) != spec.vocabulary:
        spec = spec.model_copy(update={"vocabulary": fitting})
        keys.append(("vocabulary", fitting, f"the data have {sizes.vocabulary:,}; a multiple of {TILE_EDGE}"))
    return spec, keys, ""


def _keys_of_adapter(spec: LoraSpec, base: str) -> list[Key]:
    of_hub: list[Key] = [
        ("base_name", spec.base_name, "for the exported adapter's config"),
        ("base_urls", spec.base_urls, "nodes fetch the base there; without this line, from the coordinator"),
    ]
    of_hub = of_hub if spec.base_urls else []
    return [
        ("kind", spec.kind, "an adapter on a frozen model of transformers"),
        ("base", base, "relative to this file"),
        *of_hub,
        ("rank", spec.rank, "inner width of the adapter's matrices; a larger one has more parameters, which travel"),
        ("alpha", spec.alpha, "the adapter's output is scaled by alpha / rank"),
        ("targets", spec.targets, 'all matrices but the output\'s; or names, such as ["q_proj", "v_proj"]'),
    ]


def _of_folder(folder: Path, sizes: DataFacts, beside: Path) -> tuple[ModelSpec, list[Key], str]:
    """A model of transformers: from its weights if the folder has some, otherwise from its config alone.

    The built-in `llama` where that computes the same, because volunteers need nothing for it.
    """
    path, relative = _paths(folder, beside)
    has_weights = (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()
    of_data = f"the data have {sizes.vocabulary:,}; a multiple of {TILE_EDGE}"
    weights: list[Key] = [("weights", relative, "the run begins from these; relative to this file")]
    keys: list[Key]
    try:
        spec = spec_of(folder, has_weights=has_weights)
    except ConfigError as error:
        why = f"hf and not the built-in llama: {error}. Each volunteer needs pip install 'thinwire[hf]'"
        keys = [("kind", "hf", "a causal language model of transformers")]
        if has_weights:
            return HuggingFaceSpec(weights=path), keys + weights, why
        vocabulary = _vocabulary(sizes)
        keys += [("folder", relative, "with config.json; relative to this file"), ("vocabulary", vocabulary, of_data)]
        return HuggingFaceSpec(folder=path, vocabulary=vocabulary), keys, why
    spec = spec.model_copy(update={"weights": path} if has_weights else {"vocabulary": _vocabulary(sizes)})
    keys = [
        ("kind", spec.kind, "the built-in one; computes what transformers does with this config.json"),
        *(weights if has_weights else []),
        ("vocabulary", spec.vocabulary, "as in config.json" if has_weights else of_data),
        *((key, getattr(spec, key), comment) for key, comment in OF_CONFIG.items()),
    ]
    return spec, keys, ""


def _paths(folder: Path, beside: Path) -> tuple[str, str]:
    """A folder's path, and its path relative to the folder of the run file."""
    return str(folder.resolve()), Path(os.path.relpath(folder.resolve(), beside)).as_posix()


def _suitable(sizes: DataFacts) -> str:
    """The largest preset for whose parameters the data are enough, in four passes; at least the smallest."""
    names = [name for name in PRESETS if name.startswith(FAMILY)]
    enough = PASSES_MAX * sizes.all_tokens
    fitting = [name for name in names if TOKENS_A_PARAMETER * _parameters(name, sizes) <= enough]
    return fitting[-1] if fitting else names[0]


def _parameters(name: str, sizes: DataFacts) -> int:
    spec = PRESETS[name].model_copy(update={"vocabulary": _vocabulary(sizes)})
    return sum(math.prod(parameter.shape) for parameter in task_of(spec).manifest())


def _vocabulary(sizes: DataFacts) -> int:
    """The data's vocabulary, rounded up to whole tiles."""
    return -(-sizes.vocabulary // TILE_EDGE) * TILE_EDGE
