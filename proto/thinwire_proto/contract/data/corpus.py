"""The spec of a corpus: named text files that the coordinator serves. `thinwire_proto.data.text` reads it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.data import DATA, DataSpec
from thinwire_proto.contract.models import ModelSpec


@DATA.register
class CorpusSpec(DataSpec):
    """Files of text as bytes, which every node fetches whole: the Python standard library of the coordinator's
    machine."""

    DERIVED: ClassVar[tuple[str, ...]] = ("corpus_hash", "corpus_bytes", "train_bytes")
    GIVES: ClassVar[str] = "tokens"

    kind: Literal["corpus"] = "corpus"
    corpus_hash: str = Field("", pattern="^([0-9a-f]{64})?$")
    """SHA-256 of the corpus, uncompressed"""
    corpus_bytes: int = Field(0, ge=0, le=1 << 40)
    """size of the whole corpus"""
    train_bytes: int = Field(0, ge=0, le=1 << 40)
    """size of the part that nodes train on"""

    def check(self, model: ModelSpec) -> None:
        if 0 < model.vocabulary < 256:  # 0: not known before the model's config is read
            raise ValueError(f"model.vocabulary must be at least 256 for text as bytes; it is {model.vocabulary}")

    def check_complete(self, model: ModelSpec) -> None:
        if not self.corpus_hash:
            raise ValueError("data.corpus_hash must name the corpus")
        if self.train_bytes <= model.context:
            raise ValueError(
                f"data.train_bytes must be more than model.context; {self.train_bytes} bytes hold no sample "
                f"of {model.context} tokens"
            )
