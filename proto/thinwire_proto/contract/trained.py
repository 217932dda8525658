"""The size of what a node trains, from which its memory and disk space follow. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.contract.sections import TILE_EDGE


@dataclass(frozen=True)
class Trained:
    """The size of what a node trains. parameters: without padding. matrix_tiles, vector_tiles: of their tensors."""

    parameters: int
    matrix_tiles: int
    vector_tiles: int

    @property
    def components(self) -> int:
        return self.chosen(TILE_EDGE**2)

    def chosen(self, k: int) -> int:
        """The most components of all tiles, if each has at most k."""
        return self.matrix_tiles * min(k, TILE_EDGE**2) + self.vector_tiles * min(k, TILE_EDGE)
