"""The spec of a causal language model that transformers builds from a config; `thinwire_proto.models.hf` builds it."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.models.hugging_face_config import ConfigJson
from thinwire_proto.contract.sections import unit


@MODELS.register
class HuggingFaceSpec(ModelSpec):
    """Any causal language model that transformers builds from a config, without code of the model's own."""

    LOCAL: ClassVar[tuple[str, ...]] = ("folder", "weights")
    TAKES: ClassVar[str] = "tokens"

    kind: Literal["hf"] = "hf"
    folder: str = ""
    """a folder with the model's config.json; or write its keys in [model.config]"""
    weights: str = ""
    """a folder with weights to begin from, as transformers or timm saves them; without it, random"""
    config: ConfigJson = ""
    """the contents of config.json, as a table; transformers completes it with its defaults"""
    vocabulary: int = Field(0, ge=0, le=1 << 20, json_schema_extra=unit("tokens"))
    """number of different tokens; 0: as in the config"""
    context: int = Field(0, ge=0, le=1 << 17, json_schema_extra=unit("tokens"))
    """tokens per sample; 0: as in the config, but at most 1,024"""

    @model_validator(mode="after")
    def _one_config(self) -> HuggingFaceSpec:
        if self.folder and self.config:
            raise ValueError("folder and config: give one of them")
        return self

    def check_complete(self) -> None:
        if not (self.config and self.vocabulary and self.context > 1):
            raise ValueError("model: a contract has config, vocabulary and context")

    def completed_like(self, held: ModelSpec) -> dict[str, Any]:
        if not isinstance(held, HuggingFaceSpec):
            return {}
        found = {key: getattr(held, key) for key in ("vocabulary", "context") if not getattr(self, key)}
        if not self.config or _is_part(json.loads(self.config), json.loads(held.config)):
            found["config"] = held.config
        return found

    def in_words(self) -> str:
        return f"{json.loads(self.config)['model_type']} of transformers, context {self.context}"


def _is_part(part: Any, whole: Any) -> bool:
    """Whether the keys of a table have the same values in another. Keys that transformers has renamed are skipped."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(_is_part(value, whole[key]) for key, value in part.items() if key in whole)
    return bool(part == whole)
