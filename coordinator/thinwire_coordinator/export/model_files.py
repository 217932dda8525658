"""Writes a model as the files that transformers or peft opens: configuration, safetensors, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from torch import Tensor

from thinwire_proto.data.json_tokenizer import CONFIG_FILE as TOKENIZER_CONFIG
from thinwire_proto.exact.tensor_files import save_tensors
from thinwire_proto.task import HuggingFaceModel, Tokenizer

SHARD_BYTES_MAX = 5_000_000_000
"""Bound on the size of a file of weights, as in transformers 4. A larger tensor has a file of its own."""
AUTO, FAST = "AutoTokenizer", "PreTrainedTokenizerFast"
PROBE = 'class A:\n    """1234  x"""\n\n\treturn "don\'t"  # é ü 中文 🙂\n\n\n  The end, 3.14.'
"""Text at whose spaces, lines, digits and marks tokenizers differ."""
ABOUT = {"format": "pt"}
"""The metadata that transformers expects. With a second key, the same tensors would not always give the same bytes."""


def write_model(
    model: HuggingFaceModel, tokenizer: Tokenizer | None, folder: Path, shard_bytes_max: int = SHARD_BYTES_MAX
) -> None:
    """Write the files of a model into an empty folder. Raises OSError."""
    if model.adapter is not None:
        _write_json(folder / "adapter_config.json", model.adapter)
        save_tensors(_whole(model.tensors), folder / "adapter_model.safetensors", ABOUT)
    else:
        config = dict(model.config)
        if tokenizer is not None:
            config |= _special_tokens(config, tokenizer)
            _write_json(folder / "generation_config.json", _generation(config))
        _write_json(folder / "config.json", config)
        _write_weights(model.tensors, folder, shard_bytes_max)
    if tokenizer is not None:
        for name, data in tokenizer.files().items():
            (folder / name).write_bytes(data)


def _special_tokens(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The keys of special tokens, as the tokenizer has them.

    A config from scratch has the defaults of its family, which are tokens of another tokenizer.
    """
    ends, end = config.get("eos_token_id"), tokenizer.end
    try:
        words = from_json(tokenizer.files()[TOKENIZER_CONFIG])
    except (KeyError, ValueError):
        words = {}
    return {
        "bos_token_id": config.get("bos_token_id") if words.get("bos_token") else None,
        "eos_token_id": ends if isinstance(ends, list) and end in ends else end,
        "pad_token_id": config.get("pad_token_id") if words.get("pad_token") else None,
    }


def _generation(config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of `generate`: which tokens begin, end and fill a text."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: config[key] for key in keys if config.get(key) is not None} | {"_from_model_config": True}


def _write_weights(tensors: Mapping[str, Tensor], folder: Path, shard_bytes_max: int) -> None:
    """Write one file, or several and their index if they are larger than the bound."""
    parts = list(_parts(tensors, shard_bytes_max))
    if len(parts) == 1:
        save_tensors(_whole(parts[0]), folder / "model.safetensors", ABOUT)
        return
    places: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_tensors(_whole(part), folder / name, ABOUT)
        places |= dict.fromkeys(part, name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})


def _parts(tensors: Mapping[str, Tensor], bytes_max: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in their order, in parts of up to `bytes_max`."""
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if part and sum(other.nbytes for other in part.values()) + tensor.nbytes > bytes_max:
            yield part
            part = {}
        part[name] = tensor
    yield part


def _whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors wants them: none is a view of memory that another one has too."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def class_to_open(folder: Path, tokenizer: Tokenizer) -> str:
    """The class of transformers that opens the exported tokenizer: AUTO, or FAST where AUTO gives other tokens.

    For some families, such as qwen2, transformers ignores the class in `tokenizer_config.json` and takes the family's
    own, which splits text in another way than a tokenizer of the run's own does. The model would then read tokens that
    it was not trained on, and no error would say so. Without transformers on this machine, the answer is AUTO.
    """
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 - an extra
    except ImportError:
        return AUTO
    try:
        theirs: Any = AutoTokenizer.from_pretrained(folder)
        same = theirs(PROBE, add_special_tokens=False)["input_ids"] == tokenizer.encode(PROBE).tolist()
    except Exception:  # noqa: BLE001 - a family's own class may raise anything on a foreign tokenizer
        same = False
    return AUTO if same else FAST
