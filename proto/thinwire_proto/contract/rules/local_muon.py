"""The rule `local_muon`: a node takes local Muon steps and compresses the difference of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.local_steps import LocalStepsSpec
from thinwire_proto.contract.rules.muon_steps import MuonStepsSpec
from thinwire_proto.contract.sections import AMENDABLE, TILE_EDGE, Parameter


@RULES.register
class LocalMuonSpec(MuonStepsSpec, LocalStepsSpec):
    """A node takes local steps of Muon and sends the compressed difference of its parameters.

    `schedule.learning_rate` is that of the matrices.
    """

    DEMO_DEFAULTS: ClassVar[dict[str, Any]] = LocalStepsSpec.DEMO_DEFAULTS | {"k": TILE_EDGE**2, "update_levels": 3}
    """One bit of every component up, and its sum in seven levels down."""
    MORE_BYTES_A_PARAMETER: ClassVar[int] = LocalStepsSpec.MORE_BYTES_A_PARAMETER + 4
    """An outer momentum too. Matrices have no second moment, so this is an upper bound."""
    OWN_MOMENT_BYTES_A_PARAMETER: ClassVar[int] = LocalStepsSpec.OWN_MOMENT_BYTES_A_PARAMETER + 4
    NEEDS_WHOLE: ClassVar[str] = ""
    RATE_OVER_DEMO: ClassVar[float] = 7.5
    """0.015 over 0.002, with 16 and 64 nodes."""

    kind: Literal["local_muon"] = "local_muon"
    outer_rate: float = Field(0.8, ge=1e-3, le=16, json_schema_extra=AMENDABLE)
    """factor on the mean of what the nodes send"""
    outer_momentum: float = Field(0.6, ge=0, lt=1)
    """decay of the momentum of a node's differences"""

    def undivided(self, parameters: Sequence[Parameter]) -> set[str]:
        return {one.name for one in parameters if self.takes(one)}

    @classmethod
    def with_defaults(cls, demo: dict[str, Any]) -> dict[str, Any]:
        """An update that keeps the strongest, or has no sizes, has no levels unless it is said."""
        given = super().with_defaults(demo)
        if "update_levels" not in demo and (demo.get("update_topk") or given["magnitude"] != "tile"):
            given["update_levels"] = 0
        return given
