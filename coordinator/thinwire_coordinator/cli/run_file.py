"""Reads and validates RUN.toml, and reports errors in it as ConfigError."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from thinwire_proto.contract import DATA, MODELS, DataSpec, ModelSpec, RunSpec, parse_run
from thinwire_proto.errors import ConfigError
from thinwire_proto.models import PRESETS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_run(path: Path) -> RunSpec:
    """Read and validate a run file. `model.preset` names a preset; other keys of [model] override it.

    Raises ConfigError.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    _expand_preset(document, str(path))
    for union in (MODELS, DATA):
        section = document.get(union.section, {})
        kind = union.kind_of(section)
        if kind is not None and isinstance(section, dict):
            _check_keys(section, kind.spec, f"{path}: {union.section}", path.parent)
    return parse_run(document, str(path))


def _expand_preset(document: dict[str, Any], source: str) -> None:
    model = document.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return
    name = model.pop("preset")
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"{source}: model.preset: {name!r} does not exist; choose one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if (kind := model.get("kind", preset.kind)) != preset.kind:
        raise ConfigError(
            f"{source}: model.preset: {name} is of kind {preset.kind!r}, and model.kind is {kind!r}; remove it"
        )
    document["model"] = preset.model_dump(exclude=set(preset.LOCAL)) | model


def _check_keys(section: dict[str, Any], spec: type[ModelSpec | DataSpec], name: str, folder: Path) -> None:
    """Refuse derived keys, and resolve paths relative to the run file's folder."""
    for key in spec.DERIVED:
        if key in section:
            raise ConfigError(f"{name}.{key}: computed by the coordinator; remove it")
    for key in spec.LOCAL:
        if isinstance(value := section.get(key), str) and value:
            section[key] = str(folder.resolve() / value)
