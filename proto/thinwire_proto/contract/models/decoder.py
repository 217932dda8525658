"""The spec of a decoder-only transformer; `thinwire_proto.models.decoder` is the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.models import MODELS, ModelSpec


@MODELS.register(since="0.1.0")
class DecoderSpec(ModelSpec):
    kind: Literal["decoder"] = "decoder"
    vocabulary: int = Field(256, ge=2, le=1 << 20)
    context: int = Field(256, ge=2, le=1 << 17, description="tokens per sample")
    width: int = Field(128, ge=2, le=1 << 16)
    layers: int = Field(4, ge=1, le=512)
    heads: int = Field(4, ge=1, le=1024)
    hidden: int = Field(384, ge=1, le=1 << 18, description="inner width of the SwiGLU")
    tied: bool = Field(True, description="the output matrix is the embedding")

    @model_validator(mode="after")
    def _heads_fit(self) -> DecoderSpec:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2·heads; {self.width} is not one of {2 * self.heads}")
        return self

    def in_words(self) -> str:
        return f"{self.layers} layers of width {self.width}, context {self.context}"
