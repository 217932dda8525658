"""The rule `local_muon`: a node takes local Muon steps and compresses the difference of the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.local_steps import LocalStepsSpec
from thinwire_proto.contract.sections import TILE_EDGE, Parameter


@RULES.register(since="0.3.0")
class LocalMuonSpec(LocalStepsSpec):
    """A node takes local steps of Muon and sends the compressed difference of its parameters.

    `schedule.learning_rate` is that of the matrices.
    """

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = LocalStepsSpec.DEMO_DEFAULTS | {"k": TILE_EDGE**2, "update_levels": 3}
    """One bit of every component up, and its sum in seven levels down."""
    MORE_BYTES_A_PARAMETER: ClassVar[int] = LocalStepsSpec.MORE_BYTES_A_PARAMETER + 4
    """An outer momentum too. Matrices have no second moment, so this is an upper bound."""

    HAS_KNOWN_RATES: ClassVar[bool] = False

    kind: Literal["local_muon"] = "local_muon"
    outer_rate: float = Field(0.8, ge=1e-3, le=16, description="factor on the mean of what the nodes send")
    outer_momentum: float = Field(0.6, ge=0, lt=1, description="decay of the momentum of a node's differences")
    momentum: float = Field(0.9, ge=0, lt=1, description="decay of the momentum of a matrix, in inner steps")
    adamw_rate: float = Field(
        0.2, gt=0, le=16, description="factor on the learning rate for tensors that take steps of AdamW"
    )
    adamw_for: tuple[str, ...] = Field(
        ("embed", "wte", "wpe", "head.weight", "classifier", "score"),
        max_length=64,
        strict=False,
        description="parts of the names of matrices that take steps of AdamW, as all other tensors do",
    )

    def takes(self, parameter: Parameter) -> bool:
        """Whether a parameter takes steps of Muon."""
        return len(parameter.shape) == 2 and not any(part in parameter.name for part in self.adamw_for)

    def doubts(self, parameters: Sequence[Parameter], vocabulary: int) -> Iterator[tuple[str, str]]:
        for parameter in parameters:
            if vocabulary in parameter.shape and self.takes(parameter):
                yield (
                    "rule.adamw_for",
                    f"{parameter.name} has a side as long as the vocabulary and takes steps of Muon; an embedding or a "
                    "head learns better with AdamW, so name it here",
                )
