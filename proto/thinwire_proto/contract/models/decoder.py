"""The spec of a decoder-only transformer; `thinwire_proto.models.decoder` is the model."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.sections import unit


@MODELS.register
class DecoderSpec(ModelSpec):
    """A decoder-only transformer with RMSNorm, rotary positions and SwiGLU; made for text as bytes."""

    TAKES: ClassVar[str] = "tokens"

    kind: Literal["decoder"] = "decoder"
    vocabulary: int = Field(256, ge=2, le=1 << 20, json_schema_extra=unit("tokens"))
    """number of different tokens"""
    context: int = Field(256, ge=2, le=1 << 17, json_schema_extra=unit("tokens"))
    """tokens per sample"""
    width: int = Field(128, ge=2, le=1 << 16)
    """size of the residual stream; a multiple of 2 · heads, best of 64"""
    layers: int = Field(4, ge=1, le=512)
    """number of blocks"""
    heads: int = Field(4, ge=1, le=1024)
    """attention heads per block"""
    hidden: int = Field(384, ge=1, le=1 << 18)
    """inner width of the SwiGLU; best a multiple of 64"""
    tied: bool = True
    """the output matrix is the embedding"""

    @model_validator(mode="after")
    def _heads_fit(self) -> DecoderSpec:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2·heads; {self.width} is not one of {2 * self.heads}")
        return self

    def in_words(self) -> str:
        return f"{self.layers} layers of width {self.width}, context {self.context}"
