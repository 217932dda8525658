"""Reads a folder in the layout of transformers: `config.json`, and one or several safetensors files."""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from torch import Tensor

from thinwire_proto.contract import Parameter
from thinwire_proto.contract.models.hugging_face_config import REFUSED
from thinwire_proto.errors import ConfigError
from thinwire_proto.lfs_pointer import IS_LFS_POINTER, POINTER_BYTES_MAX, is_lfs_pointer

log = logging.getLogger("thinwire")

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
JSON_BYTES_MAX = 64 << 20
"""The index of a large mixture of experts has a few megabytes."""
ROPE_THETA = 10_000.0
"""transformers' default."""
DTYPES = ("F64", "F32", "F16", "BF16")
"""As headers of safetensors name them. Other types are those of quantized weights."""
COMPUTED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
"""Tensors in files of earlier versions of transformers, which follow from the config."""
NONE_TIED: Mapping[str, str] = {}
NAMES_SHOWN = 3


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than {JSON_BYTES_MAX:,} bytes")
        content = path.read_bytes()
        refuse_pointer(path, content)
        found = from_json(content)  # bounds the nesting, unlike json
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is not a JSON object")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order: those that transformers would read.

    Raises ConfigError if there are none, or if one cannot be read.
    """
    files = _named_files(folder)
    for path in files:
        dtypes(path)
    return files


def _named_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        parts = read_json(folder / INDEX).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
            raise ConfigError(f"{folder / INDEX}: has no table weight_map")
        names = sorted(set(parts.values()))
        if any(Path(name).name != name for name in names):
            raise ConfigError(f"{folder / INDEX}: names a file outside its folder")
        return [folder / name for name in names]
    raise ConfigError(
        f"{folder}: has neither {WEIGHTS} nor {INDEX}; weights in other formats can be converted: open them with "
        "transformers and call save_pretrained"
    )


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            refuse_pointer(path, file.read(POINTER_BYTES_MAX))
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read as safetensors: {error}") from None


def refuse_pointer(path: Path, begin: bytes) -> None:
    """Raise ConfigError if a file is a pointer of Git LFS. begin: its first POINTER_BYTES_MAX bytes, or all."""
    if is_lfs_pointer(begin):
        raise ConfigError(f"{path}: {IS_LFS_POINTER}")


def dtypes(path: Path) -> dict[str, str]:
    """The dtype of each tensor of a safetensors file, as its header names it. Raises ConfigError."""
    with opened(path) as file:
        return {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118 - not a dict


def check_dtype(path: Path, name: str, dtype: str) -> None:
    """Raise ConfigError if a tensor has numbers of a type that cannot be trained."""
    if dtype not in DTYPES:
        raise ConfigError(f"{path}: {name}: has type {dtype}; take weights in float32, float16 or bfloat16")


def read_tensors(
    folder: Path,
    manifest: Sequence[Parameter],
    files: Sequence[Path] | None = None,
    *,
    tied: Mapping[str, str] = NONE_TIED,
    computed: Container[str] = (),
) -> dict[str, Tensor]:
    """The tensors of a manifest, float32 on the CPU.

    files: where they are; by default in the folder's `weight_files`. tied: other names, and those of the tensors in the
    manifest that must have the same values. computed: tensors that follow from the config, and are left out.

    Raises ConfigError, naming the first that is missing or wrong, or that the model does not take.
    """
    found: dict[str, Tensor] = {}
    others: list[str] = []
    shapes = {parameter.name: parameter.shape for parameter in manifest}
    taken = shapes | {name: shapes[source] for name, source in tied.items()}
    for path in weight_files(folder) if files is None else files:
        with opened(path) as file:
            for name in sorted(file.keys()):
                if name not in taken:
                    others.append(name)
                    continue
                shape = tuple(file.get_slice(name).get_shape())
                if shape != taken[name]:
                    raise ConfigError(f"{path}: {name}: has shape {shape}; the model of this run has {taken[name]}")
                check_dtype(path, name, str(file.get_slice(name).get_dtype()))
                found[name] = file.get_tensor(name).to(torch.float32)
    for name, source in tied.items():
        if name in found and not torch.equal(found[name], found.setdefault(source, found[name])):
            raise ConfigError(
                f"{folder}: {name}: has other values than {source}, and the model of this run has one tensor for both; "
                "set model.tied = false"
            )
    for name in shapes:
        if name not in found:
            refuse_missing(folder, name, others)
    left_out = [name for name in others if name in computed or COMPUTED.search(name)]
    refuse_others(folder, [name for name in others if name not in left_out])
    tell_left_out(folder, left_out)
    return {name: found[name] for name in shapes}


def refuse_missing(folder: Path, name: str, others: Sequence[str]) -> NoReturn:
    """Raise ConfigError for a tensor that a folder lacks. others: names that the model does not have."""
    has = ""
    if others:
        has = f", but the files have {_listed(others)}: was a wrapper saved, such as DistributedDataParallel?"
    raise ConfigError(f"{folder}: {name}: is missing; the model of this run has it{has}")


def refuse_others(folder: Path, others: Sequence[str]) -> None:
    """Raise ConfigError if a folder has tensors that the model of the run does not take."""
    if others:
        raise ConfigError(
            f"{folder}: has tensors that the model of this run does not take, so it would compute something else: "
            f"{_listed(others)}; take a model that has them, or remove them from the files"
        )


def tell_left_out(folder: Path, names: Sequence[str]) -> None:
    """Log the tensors that a model does not need because it computes them itself."""
    if names:
        log.warning("%s: left out, because the model does not need them: %s", folder, _listed(names))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:NAMES_SHOWN]) + more


def check_config(
    folder: Path, ours: Mapping[str, object], defaults: Mapping[str, object], fixed: Container[str]
) -> None:
    """Raise ConfigError if `config.json` describes another model than `ours`, which the shapes may not show.

    defaults: of transformers, for keys that the file leaves out, or that are null; other such keys are not compared.
    fixed: keys that have the same value in all models of this kind. `max_position_embeddings` may be more than ours.
    """
    theirs = read_json(folder / CONFIG)
    refuse_keys(theirs, str(folder / CONFIG))
    for key, said, value in differences(theirs, ours, defaults):
        hint = "; model.kind = 'hf' takes such a model" if key in fixed else ""
        raise ConfigError(f"{folder / CONFIG}: {key} is {said!r}; the model of this run has {value!r}{hint}")


def differences(
    theirs: Mapping[str, Any], ours: Mapping[str, object], defaults: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """(key, their value, our value) of each key in which a config describes another model; see `check_config`."""
    theirs = {**theirs, "rope_parameters": rope_of(theirs)}
    for key, value in ours.items():
        said = defaults.get(key) if theirs.get(key) is None else theirs[key]
        if key == "max_position_embeddings" and isinstance(said, int) and isinstance(value, int) and said >= value:
            continue
        if said is not None and said != value:
            yield key, said, value


def refuse_keys(config: Mapping[str, Any], source: str) -> None:
    """Raise ConfigError if a config asks for what no model of a run may have. source: its name in errors."""
    for key, why in REFUSED.items():
        if config.get(key) not in (None, False):
            raise ConfigError(f"{source}: {key}: {why}")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of transformers 5, also from the keys of transformers 4. Raises ConfigError."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{CONFIG}: rope_parameters is {given!r}")
    found = {"rope_type": "default", "rope_theta": config.get("rope_theta", ROPE_THETA)} | given
    if "type" in found:  # its name before rope_type
        found["rope_type"] = found.pop("type")
    return found
