"""Kinds of models, each a file of this package. What a kind builds stands in `thinwire_proto.models`."""

from __future__ import annotations

from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ModelSpec(KindSpec):
    """A model, from whose spec alone both ends build the same tensors."""

    vocabulary: int
    """Different tokens of a sample."""
    context: int
    """Tokens of a sample, by which samples are counted as tokens."""

    def in_words(self) -> str:
        """For people to read, on the page."""
        return self.kind


MODELS: TaggedUnion[ModelSpec] = TaggedUnion("model", ModelSpec, default="decoder", home=__name__)
