"""The spec of a LoRA adapter on a frozen base; `thinwire_proto.models.lora` is the model."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from thinwire_proto.blobs import HASH_PATTERN, Blob
from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.models.hugging_face_config import ConfigJson
from thinwire_proto.contract.sections import Addresses, Section, unit

ALL_LINEAR = ("all-linear",)
FILE_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
"""The name of a file of the base that may be a part of an address, and of a path."""


class BaseFile(Section):
    """A safetensors file of the base."""

    name: str = Field("", pattern=f"^({FILE_NAME})?$")
    """Its name in the base's folder; empty: one that is left out of addresses."""
    hash: str = Field(pattern=HASH_PATTERN)
    size: int = Field(ge=8, le=1 << 44)


@MODELS.register
class LoraSpec(ModelSpec):
    """A LoRA adapter (arXiv 2106.09685) on a frozen model of transformers. Only the adapter is trained and travels."""

    DERIVED: ClassVar[tuple[str, ...]] = ("config", "files", "vocabulary")
    LOCAL: ClassVar[tuple[str, ...]] = ("base", "weights")
    TAKES: ClassVar[str] = "tokens"

    kind: Literal["lora"] = "lora"
    base: str = ""
    """a folder with the config.json and the safetensors of the model that is adapted"""
    base_name: str = Field("", max_length=256)
    """the base's name on the Hugging Face Hub, such as Qwen/Qwen3-8B, for the exported adapter's config"""
    base_urls: Addresses = ()
    """addresses of folders with the base's files by their names, which nodes read before they ask the coordinator, such
    as https://huggingface.co/Qwen/Qwen3-8B/resolve/REVISION; s3 and gs too"""
    weights: str = ""
    """a folder with an adapter to begin from; without it, one that changes nothing"""
    rank: int = Field(8, ge=1, le=1024)
    """inner width of the adapter's matrices"""
    alpha: float = Field(16.0, gt=0, le=1e6)
    """the adapter's output is scaled by alpha / rank"""
    dropout: float = Field(0.0, ge=0, lt=1)
    """share of the adapter's inputs that are dropped in training"""
    targets: tuple[str, ...] = Field(ALL_LINEAR, min_length=1, max_length=64, strict=False)
    """the modules that are adapted, by the ends of their names, such as ["q_proj", "v_proj"]; ["all-linear"]: all
    matrices but the output's"""
    beta: float = Field(0.1, gt=0, le=100)
    """β of DPO, where data hold preferences; the larger, the closer the model stays to its base"""
    context: int = Field(0, ge=0, le=1 << 17, json_schema_extra=unit("tokens"))
    """tokens per sample; 0: as in the config, but at most 1,024"""
    vocabulary: int = Field(0, ge=0, le=1 << 31, json_schema_extra=unit("tokens"))
    """number of different tokens"""
    config: ConfigJson = ""
    """the base's config"""
    files: tuple[BaseFile, ...] = Field((), max_length=1024, strict=False)
    """the base's weights"""

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return tuple(Blob(file.hash, file.size) for file in self.files)

    def check_complete(self) -> None:
        if not (self.config and self.files and self.vocabulary and self.context > 1):
            raise ValueError("model: a contract has config, files, vocabulary and context")

    def completed_like(self, held: ModelSpec) -> dict[str, Any]:
        return {"context": held.context} if isinstance(held, LoraSpec) and not self.context else {}

    def in_words(self) -> str:
        return f"LoRA of rank {self.rank} on {json.loads(self.config)['model_type']}, context {self.context}"
