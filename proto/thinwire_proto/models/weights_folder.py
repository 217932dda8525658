"""Reads a folder in the layout of transformers: `config.json`, and one or several safetensors files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from torch import Tensor

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
JSON_BYTES_MAX = 64 << 20
"""The index of a large mixture of experts has a few megabytes."""
ROPE_THETA = 10_000.0
"""transformers' default."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than {JSON_BYTES_MAX:,} bytes")
        found = from_json(path.read_text(encoding="utf-8"))  # bounds the nesting, unlike json
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not a JSON object")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order. Raises ConfigError if there are none."""
    if (folder / INDEX).is_file():
        parts = read_json(folder / INDEX).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
            raise ConfigError(f"{folder / INDEX}: has no table weight_map")
        names = sorted(set(parts.values()))
        if any(Path(name).name != name for name in names):
            raise ConfigError(f"{folder / INDEX}: names a file outside its folder")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    raise ConfigError(
        f"{folder}: has neither {WEIGHTS} nor {INDEX}; weights in other formats can be converted: open them with "
        "transformers and call save_pretrained"
    )


def read_tensors(folder: Path, manifest: Sequence[Parameter], files: Sequence[Path] | None = None) -> dict[str, Tensor]:
    """The tensors of a manifest, float32 on the CPU. files: where they are; by default in the folder's `weight_files`.

    Raises ConfigError, naming the first that is missing or wrong.
    """
    found: dict[str, Tensor] = {}
    shapes = {parameter.name: parameter.shape for parameter in manifest}
    for path in weight_files(folder) if files is None else files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in shapes.keys() & set(file.keys()):
                    shape = tuple(file.get_slice(name).get_shape())
                    if shape != shapes[name]:
                        raise ConfigError(
                            f"{path}: {name}: has shape {shape}; the model of this run has {shapes[name]}"
                        )
                    found[name] = file.get_tensor(name).to(torch.float32)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: cannot be read as safetensors: {error}") from None
    for name, shape in shapes.items():
        if name not in found:
            raise ConfigError(f"{folder}: {name}: is missing; the model of this run has it, with shape {shape}")
    return {name: found[name] for name in shapes}


def check_config(folder: Path, ours: Mapping[str, object]) -> None:
    """Raise ConfigError if `config.json` describes another model than `ours`, which the shapes may not show.

    A key that the file leaves out, or that is null, is not compared. `max_position_embeddings` may be more than ours.
    """
    theirs = read_json(folder / CONFIG)
    theirs["rope_parameters"] = _rope(theirs)
    for key, value in ours.items():
        said = theirs.get(key)
        if key == "max_position_embeddings" and isinstance(said, int) and isinstance(value, int) and said >= value:
            continue
        if said is not None and said != value:
            raise ConfigError(f"{folder / CONFIG}: {key} is {said!r}; the model of this run has {value!r}")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of transformers 5, also from the keys of transformers 4."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = {"rope_type": "default", "rope_theta": config.get("rope_theta", ROPE_THETA)} | given
    if "type" in found:  # its name before rope_type
        found["rope_type"] = found.pop("type")
    return found
