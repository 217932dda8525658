"""Checks the `config.json` of a transformers model that a contract holds, as canonical JSON.

The contract comes from a stranger, so it may hold nothing that makes transformers load code, download files or build a
model without bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from thinwire_proto.contract.sections import canonical_json

CONFIG_BYTES_MAX = 1 << 16
LAYERS_MAX = 1024
INTEGER_MAX = 1 << 31
REFUSED = {
    "auto_map": "this model needs code of its own, which thinwire never runs; take a model type of transformers itself",
    "backbone": "a second model would be fetched; take a causal language model",
    "use_pretrained_backbone": "a second model would be fetched; take a causal language model",
    "quantization_config": "quantized weights cannot be trained; take the model in float32, float16 or bfloat16",
}
"""Keys of a config that are refused, and why."""


def read_config(given: object) -> object:
    """Turn a table of a run file into canonical JSON. Raises ValueError if a config is refused."""
    if isinstance(given, dict):
        try:
            given = canonical_json(given).decode()
        except TypeError as error:
            raise ValueError(f"is not JSON: {error}") from None
    if isinstance(given, str) and given:
        check_config_json(given)
    return given


ConfigJson = Annotated[str, BeforeValidator(read_config), Field(max_length=CONFIG_BYTES_MAX)]
"""The contents of a `config.json` as canonical JSON; "" if there is none. A run file may have a table instead."""


def check_config_json(text: str) -> None:
    """Raise ValueError if this is not the canonical JSON of a config that may be built."""
    if len(text) > CONFIG_BYTES_MAX:
        raise ValueError(f"has {len(text):,} bytes; a config has at most {CONFIG_BYTES_MAX:,}")
    config = from_json(text)  # json raises RecursionError for nested text, which is no ValueError
    if not isinstance(config, dict) or canonical_json(config).decode() != text:
        raise ValueError("is not canonical JSON of a table")
    if not isinstance(config.get("model_type"), str):
        raise ValueError("has no model_type, such as model_type = 'qwen3'")
    for key, value in _entries(config):
        if key in REFUSED and value not in (None, False):
            raise ValueError(f"{key}: {REFUSED[key]}")
        if key.startswith("_") or key.endswith("_implementation"):
            raise ValueError(f"{key}: is a setting of a machine, not of a model; remove it")
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            raise ValueError(f"{key}: is {value}; at most {INTEGER_MAX:,} is allowed")
        if "layer" in key and isinstance(value, int) and value > LAYERS_MAX:
            raise ValueError(f"{key}: is {value}; at most {LAYERS_MAX} are allowed")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """All keys with their values, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _entries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _entries(inner)
