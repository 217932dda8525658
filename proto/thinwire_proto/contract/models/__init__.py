"""Specs of the model kinds; each kind is one file of this package. `thinwire_proto.models` has the models."""

from __future__ import annotations

from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ModelSpec(KindSpec):
    """The spec of a model. Both ends build the same tensors from it alone."""

    vocabulary: int
    """Number of different tokens."""
    context: int
    """Tokens per sample; converts counts of samples into counts of tokens."""

    def in_words(self) -> str:
        """A short description for the web page."""
        return self.kind


MODELS: TaggedUnion[ModelSpec] = TaggedUnion("model", ModelSpec, default="decoder", home=__name__)
