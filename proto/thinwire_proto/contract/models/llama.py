"""The spec of a transformer in Llama's layout; `thinwire_proto.models.llama` is the model."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.sections import unit


@MODELS.register
class LlamaSpec(ModelSpec):
    """A transformer in Llama's layout: what the run exports opens as transformers' `LlamaForCausalLM`."""

    LOCAL: ClassVar[tuple[str, ...]] = ("weights",)
    TAKES: ClassVar[str] = "tokens"

    kind: Literal["llama"] = "llama"
    weights: str = ""
    """a folder with weights to begin from, as transformers or timm saves them; without it, random"""
    vocabulary: int = Field(2048, ge=2, le=1 << 20, json_schema_extra=unit("tokens"))
    """number of different tokens, at least the tokenizer's; best a multiple of 64"""
    context: int = Field(256, ge=2, le=1 << 17, json_schema_extra=unit("tokens"))
    """tokens per sample"""
    width: int = Field(128, ge=2, le=1 << 16)
    """size of the residual stream; a multiple of 2 · heads, best of 64"""
    layers: int = Field(4, ge=1, le=512)
    """number of blocks"""
    heads: int = Field(2, ge=1, le=1024)
    """attention heads per block"""
    kv_heads: int = Field(1, ge=1, le=1024)
    """heads of keys and values per block; must divide heads"""
    hidden: int = Field(384, ge=1, le=1 << 18)
    """inner width of the SwiGLU; best a multiple of 64"""
    tied: bool = True
    """the output matrix is the embedding"""
    rope_theta: float = Field(10_000.0, gt=1, le=1e9)
    """base of the rotary positions; more for long contexts"""
    norm_epsilon: float = Field(1e-5, gt=0, lt=1)
    """added to the mean square in RMSNorm"""

    @model_validator(mode="after")
    def _heads_fit(self) -> LlamaSpec:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2·heads; {self.width} is not one of {2 * self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads; {self.kv_heads} does not divide {self.heads}")
        return self

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def in_words(self) -> str:
        return f"Llama with {self.layers} layers of width {self.width}, context {self.context}"
