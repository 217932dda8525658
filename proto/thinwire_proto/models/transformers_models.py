"""Builds and loads causal language models of transformers, from a config and never from a model's own code."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire_proto.contract.models.hugging_face_config import check_config_json
from thinwire_proto.contract.sections import canonical_json
from thinwire_proto.data.conversations import mean_loss, positions_of, weight_of
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra
from thinwire_proto.models.weights_folder import (
    COMPUTED,
    CONFIG,
    check_dtype,
    dtypes,
    read_json,
    refuse_keys,
    refuse_missing,
    refuse_others,
    tell_left_out,
    weight_files,
)
from thinwire_proto.models.wrapped import Wrapped, bounded_build

CONTEXT_DEFAULT_MAX = 1024
NOT_OF_THE_MODEL = {
    *("architectures", "attn_implementation", "dtype", "torch_dtype", "transformers_version", "id2label", "label2id"),
    "experts_implementation",
}
"""Keys of a config that describe a file or a machine."""
MAY_DIFFER = (
    *("dropout", "pdrop", "layerdrop", "drop_path", "drop_rate", "init", "token_id", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_router_logits"),
)
"""Parts of the names of keys that do not change what trained weights compute."""
LONGEST = "max_position_embeddings"
"""A key that changes nothing either, unless positions are scaled by it."""


class CausalLM(Wrapped):
    """A causal language model of transformers. Its parameters have the names that they have there."""

    def __init__(self, inner: nn.Module, context: int) -> None:
        super().__init__(inner)
        self._context = context

    weight = staticmethod(weight_of)

    @property
    def packs(self) -> bool:
        """Whether the model keeps conversations in a row apart: transformers masks attention where positions begin
        anew. A state that runs through the row, as of Mamba, does not see them."""
        inner: Any = self.inner
        model = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        layers = getattr(model.config.get_text_config(), "layer_types", None) or ()
        attends = all(str(layer).endswith("attention") and "linear" not in str(layer) for layer in layers)
        has_state = getattr(model, "_is_stateful", False)
        return attends and not has_state and "position_ids" in inspect.signature(model.forward).parameters

    def logits(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        """Logits [batch, length, vocabulary] of tokens [batch, length]. marks: of packed conversations."""
        packed = {} if marks is None or not self.packs else {"position_ids": positions_of(marks)}
        return self.inner(input_ids=tokens, use_cache=False, return_dict=True, **packed).logits  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        """See `thinwire_proto.data.conversations.mean_loss`."""
        logits = self.logits(tokens[:, :-1], None if marks is None else marks[:, :-1])
        return mean_loss(logits, tokens, marks)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """See `thinwire_proto.task.Writes`. Uses the last `context` tokens."""
        return self.logits(tokens[None, -self._context :])[0, -1].float()

    def continued_logits(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """See `thinwire_proto.task.WritesOn`. The cache is that of transformers."""
        if len(tokens) > self._context:
            return self.next_logits(tokens), None  # the context moves on, and with it all that was computed
        if cache is not None and cache.get_seq_length() != len(tokens) - 1:
            cache = None
        new = tokens[None] if cache is None else tokens[None, -1:]
        found = self.inner(input_ids=new, past_key_values=cache, use_cache=True, return_dict=True)
        return found.logits[0, -1].float(), getattr(found, "past_key_values", None)


def canonical_config(config: dict[str, Any], source: str) -> str:
    """The complete config of a model as canonical JSON, with all of transformers' defaults, so that another version of
    transformers builds the same model.

    config: the contents of `config.json`. source: its name in errors. Raises ConfigError.
    """
    refuse_keys(config, source)
    kept = {key: value for key, value in config.items() if not key.startswith("_") and key not in NOT_OF_THE_MODEL}
    try:
        found = _without_machine(json.loads(json.dumps(_config(kept, source).to_dict(), allow_nan=False)))
        text = canonical_json(found).decode()
        check_config_json(text)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{source}: {error}") from None
    return text


def hub_config(config: str) -> dict[str, Any]:
    """The contents of a `config.json` for a canonical config, with what programs for transformers 4 read of positions.
    Without it, they take another base of the angles without a word."""
    found: dict[str, Any] = json.loads(config)
    rope = found.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            found["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    return found


def check_keys(config: dict[str, Any], source: str) -> None:
    """Raise ConfigError if a hand-written config has a key that its model type does not know, which transformers would
    ignore."""
    plain = _config({"model_type": config.get("model_type")}, source)
    known = plain.to_dict().keys() | plain.attribute_map.keys()  # other names of keys
    for key in sorted(config.keys() - known):
        close = get_close_matches(key, known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(sorted(known))}"
        raise ConfigError(f"{source}: {key}: a config of {config['model_type']!r} has no such key{hint}")


def sizes_of(config: str) -> tuple[int, int]:
    """The vocabulary of a canonical config, and its longest context (0: no limit). Raises ConfigError."""
    text = _config(json.loads(config), CONFIG).get_text_config()
    vocabulary, context = getattr(text, "vocab_size", None), getattr(text, "max_position_embeddings", None)
    if not isinstance(vocabulary, int):
        raise ConfigError(f"{CONFIG}: has no vocab_size")
    return vocabulary, context if isinstance(context, int) else 0


def choose_context(given: int, longest: int, source: str) -> int:
    """The context of a run. given: what its run file says, or 0. longest: that of the config. Raises ConfigError."""
    if longest and given > longest:
        raise ConfigError(f"model.context is {given}; {source} allows at most {longest}")
    return given or min(longest or CONTEXT_DEFAULT_MAX, CONTEXT_DEFAULT_MAX)


def build(
    config: str, device: torch.device | str, *, draw: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """The model of a canonical config on `device`. Without `draw`, its parameters have arbitrary values.

    Raises ConfigError.
    """
    transformers = _transformers()
    without_drawing = import_extra("transformers.initialization", "hf").no_init_weights
    read = _config(json.loads(config), CONFIG)
    read.use_cache = False
    try:
        with bounded_build(), torch.device(device), nullcontext() if draw else without_drawing():
            model: Any = transformers.AutoModelForCausalLM.from_config(read, dtype=dtype, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - another library's code, on a config that it may not be able to build
        raise ConfigError(f"transformers {transformers.__version__} cannot build this model: {error}") from None
    model.tie_weights()
    return _ready(model)


def load(folder: Path, config: str, dtype: torch.dtype) -> nn.Module:
    """The model of a canonical config, with the weights of a folder's safetensors, on the CPU.

    Raises ConfigError, naming the first tensor that is missing or has another shape.
    """
    return _loaded(folder, config, dtype)[0]


def check_whole(folder: Path, config: str) -> None:
    """Raise ConfigError if the model of a canonical config does not take all weights of a folder. Reads no values."""
    _, unexpected = _loaded(folder, config, torch.float32, device_map="meta")
    refuse_others(folder, unexpected)


def load_whole(folder: Path, config: str) -> nn.Module:
    """The same as `load`, in float32, for a run that begins from these weights and trains all of them.

    Raises ConfigError also if the run would begin from another model than the folder's: one with further tensors, with
    different ones where the run has one for both, or with trained values in what a run does not train.
    """
    types = {name: (path, dtype) for path in weight_files(folder) for name, dtype in dtypes(path).items()}
    model, unexpected = _loaded(folder, config, torch.float32)
    refuse_others(folder, unexpected)
    left_out = _left_out(model, types)
    for name, (path, dtype) in types.items():
        if name not in left_out:
            check_dtype(path, name, dtype)
    plain = build(config, "cpu")  # its parameters take no memory, since nothing is written to them
    expected, computed = dict(plain.named_parameters()), dict(plain.named_buffers())
    for name, _ in model.named_parameters():
        if name not in expected:  # transformers unties tensors that differ
            raise ConfigError(
                f"{folder}: {name}: has other values than the tensor to which {CONFIG} ties it; if it is a tensor of "
                "its own, set tie_word_embeddings to false there"
            )
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, computed[name]):
            raise ConfigError(
                f"{folder}: {name}: has values of its own in the files, but it is no parameter, so a run would begin "
                "without them; take another model"
            )
    tell_left_out(folder, left_out)
    return model


def _left_out(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The tensors in files that transformers knows, and does not read."""
    patterns, read = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or (), model.state_dict().keys()
    ignored = [name for name in names if COMPUTED.search(name) or any(re.search(one, name) for one in patterns)]
    return [name for name in ignored if name not in read]


def _loaded(folder: Path, config: str, dtype: torch.dtype, **more: Any) -> tuple[nn.Module, list[str]]:
    """The model, and the names of the tensors that it does not take. Raises ConfigError."""
    transformers = _transformers()
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=_config(json.loads(config), CONFIG),
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the report has them
            output_loading_info=True,
            **more,
        )
    except Exception as error:  # noqa: BLE001 - another library's code, on files that may be anything
        raise ConfigError(f"{folder}: transformers cannot read these weights: {error}") from None
    for name, theirs, ours in sorted(report["mismatched_keys"]):
        raise ConfigError(f"{folder}: {name}: has shape {tuple(theirs)}; the model of this run has {tuple(ours)}")
    for name in sorted(report["missing_keys"]):
        refuse_missing(folder, name, sorted(report["unexpected_keys"]))
    return _ready(model), sorted(report["unexpected_keys"])


def check_same_model(folder: Path, config: str) -> None:
    """Raise ConfigError if the `config.json` of a folder describes another model, which the shapes may not show."""
    path = folder / CONFIG
    ours, theirs = json.loads(config), json.loads(canonical_config(read_json(path), str(path)))
    for key in ours.keys() | theirs.keys():
        if ours.get(key) != theirs.get(key) and not (
            any(part in key for part in MAY_DIFFER) or (key == LONGEST and not _scales_positions(ours))
        ):
            raise ConfigError(f"{path}: {key} is {theirs.get(key)!r}; the model of this run has {ours.get(key)!r}")


def _scales_positions(config: dict[str, Any]) -> bool:
    """Whether the longest context of a config may change what the model computes."""
    rope = json.dumps([config.get("rope_parameters"), config.get("rope_scaling")])
    return any(kind in rope for kind in ("dynamic", "longrope", "yarn"))


def in_files(model: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as transformers' files name them, which differs from the module's names for mixtures of experts."""
    convert = import_extra("transformers.core_model_loading", "hf").revert_weight_conversion
    converted: dict[str, Tensor] = convert(model, parameters)
    return {name: tensor.contiguous() for name, tensor in converted.items()}


def _ready(model: nn.Module) -> nn.Module:
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise ConfigError(f"{frozen[0]}: has no gradient, and its values are not in the config; take another model")
    return model.train()


def _config(config: dict[str, Any], source: str) -> Any:
    """A config of transformers from its contents. Raises ConfigError."""
    transformers = _transformers()
    kind = config.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise ConfigError(
            f"{source}: model_type is {kind!r}, which transformers {transformers.__version__} does not have; a newer "
            "transformers may have it"
        )
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(config)
    except Exception as error:  # noqa: BLE001 - another library's code, on contents that may be anything
        raise ConfigError(f"{source}: transformers cannot read this config: {error}") from None


def _without_machine(value: Any) -> Any:
    """A config without the keys that describe a file or a machine, at any depth."""
    if isinstance(value, dict):
        return {
            key: _without_machine(inner)
            for key, inner in value.items()
            if not key.startswith("_") and key not in NOT_OF_THE_MODEL
        }
    return [_without_machine(inner) for inner in value] if isinstance(value, list) else value


def _transformers() -> Any:
    """The library. It takes seconds to import, so only runs that need it do so."""
    transformers = import_extra("transformers", "hf")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
