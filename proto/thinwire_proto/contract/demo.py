"""Decoupled momentum (DeMo): how momentum is kept and compressed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.sections import TILE_EDGE, Magnitude, Section


class DemoSpec(Section):
    """Decoupled momentum (arXiv 2411.19870): how momentum is kept and compressed."""

    transform: Literal["dct", "hadamard"] = "dct"
    k: int = Field(176, ge=1, le=TILE_EDGE**2, description="components kept of a tile, by k_policy")
    k_policy: Literal["fixed", "total"] = Field(
        "total", description="fixed: every node keeps k; total: the nodes of a round share k, whatever their number"
    )
    update_topk: int = Field(
        0, ge=0, le=TILE_EDGE**2, description="components an update keeps of a tile, the strongest; 0: all"
    )
    beta: float = Field(0.99, ge=0, lt=1, description="decay of the momentum in a step")
    alpha: float = Field(1.0, gt=0, le=1, description="share of what was sent that leaves the momentum")
    magnitude: Magnitude = Field(
        "clipped", description="of a step: see `decode`; tile: each tile's size travels with the votes"
    )
    precondition: Literal["none", "adam"] = Field("adam", description="what the gradient is divided by: √v̂, or nothing")
    precondition_beta: float = Field(0.99, ge=0, lt=1, description="decay of the second moment v in a step")

    @model_validator(mode="after")
    def _whole_updates(self) -> DemoSpec:
        if self.update_topk and self.magnitude == "tile":
            raise ValueError(
                'update_topk must be 0 with magnitude = "tile", whose updates keep all that is merged; '
                f"it is {self.update_topk}"
            )
        return self

    def k_of_round(self, nodes: int) -> int:
        """The k that a round with so many nodes announces. Where they share it, updates do not grow with the swarm."""
        return self.k if self.k_policy == "fixed" else max(1, self.k // max(1, nodes))
