"""Specs of the model kinds; each kind is one file of this package. `thinwire_proto.models` has the models."""

from __future__ import annotations

from typing import Any, ClassVar

from thinwire_proto.contract.unions import KindSpec, TaggedUnion


class ModelSpec(KindSpec):
    """The spec of a model. Both ends build the same tensors from it alone."""

    TAKES: ClassVar[str] = ""
    """The kind of its samples: "tokens", "images", or empty if it does not say, as a kind of another package need
    not."""

    vocabulary: int
    """Number of different tokens."""
    context: int
    """Tokens per sample; converts counts of samples into counts of tokens."""

    @property
    def first_weights(self) -> str:
        """A folder with the weights that a new run begins from; empty if they are drawn."""
        return str(getattr(self, "weights", ""))

    def completed_like(self, held: ModelSpec) -> dict[str, Any]:
        """For a run file's spec: the optional keys that it leaves out, as a contract's spec `held` has them."""
        return {}

    def check_complete(self) -> None:
        """Raise ValueError if a key is missing that is optional in a run file but required in a contract."""

    def in_words(self) -> str:
        """A short description for the web page."""
        return self.kind


MODELS: TaggedUnion[ModelSpec] = TaggedUnion("model", ModelSpec, default="decoder", home=__name__)
