"""The contract's section `demo`: settings of decoupled momentum (DeMo)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from thinwire_proto.contract.sections import AMENDABLE, TILE_EDGE, Magnitude, Section, unit


class DemoSpec(Section):
    """Settings of decoupled momentum (arXiv 2411.19870): how nodes keep and compress their momentum. A tile is 64 × 64
    parameters; a component is one coefficient of a tile's transform."""

    k: int = Field(96, ge=1, le=TILE_EDGE**2, json_schema_extra=unit("components per tile") | AMENDABLE)
    """components that a node sends per tile"""
    update_topk: int = Field(320, ge=0, le=TILE_EDGE**2, json_schema_extra=unit("components per tile") | AMENDABLE)
    """strongest components that an update keeps per tile; 0: all, which is the default with magnitude "tile" """
    update_levels: int = Field(0, ge=0, le=127, json_schema_extra=AMENDABLE)
    """with magnitude "tile": an update has every component, rounded to one of 2n + 1 levels between ± the largest of
    its tile; 0: 255 levels, and only components that are not 0 travel"""
    vote_levels: int = Field(0, ge=0, le=127, json_schema_extra=AMENDABLE)
    """with update_levels and k = 4096: a contribution has every component, rounded to one of 2n + 1 levels, which are
    vote_step apart; 0: the sign of each component alone"""
    vote_step: float = Field(1.5, gt=0, le=3, json_schema_extra=AMENDABLE)
    """with vote_levels: distance of two levels, in standard deviations of the tile's components"""
    beta: float = Field(0.99, ge=0, le=1)
    """decay of the momentum per step; 1: error feedback, which forgets nothing"""
    magnitude: Magnitude = "clipped"
    """size of a parameter's step. sign: always the learning rate; clipped: less where the merged votes are weak; tile:
    votes also carry a scale for each tile"""
    precondition: Literal["none", "adam"] = "adam"
    """divisor of the gradient: √v̂ (adam) or 1 (none)"""
    precondition_beta: float = Field(0.99, ge=0, lt=1)
    """decay of the second moment v per step"""

    @model_validator(mode="before")
    @classmethod
    def _whole_with_sizes(cls, given: Any) -> Any:
        """With sized votes an update keeps all merged components by default."""
        if isinstance(given, dict) and given.get("magnitude") == "tile":
            return {"update_topk": 0} | given
        return given

    @model_validator(mode="after")
    def _levels_have_sizes(self) -> DemoSpec:
        if self.update_levels and self.magnitude != "tile":
            raise ValueError(
                f'demo.update_levels must be 0 with demo.magnitude = "{self.magnitude}"; only with "tile" does an '
                "update have sizes to round"
            )
        if self.update_levels and self.update_topk:
            raise ValueError(
                "of demo.update_levels and demo.update_topk, one must be 0: an update has all components in a few "
                "levels, or the strongest in many"
            )
        if self.vote_levels and not self.sends_whole_tiles:
            raise ValueError(
                f"demo.vote_levels needs demo.update_levels above 0 and demo.k = {TILE_EDGE**2}, because the levels of "
                "all components travel"
            )
        return self

    @property
    def sends_whole_tiles(self) -> bool:
        """Whether contributions have all components of each tile (`wire.whole_tiles`)."""
        return self.update_levels > 0 and self.k == TILE_EDGE**2

    @property
    def largest_vote(self) -> int:
        """The largest magnitude of a vote, before its weight."""
        return max(1, self.vote_levels)
