"""The attacks: what a hostile node sends in place of honest votes. Each is one short function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Votes

STALE_AFTER = 8
"""Rounds in which a node that sends stale votes is honest; it then repeats these over and over."""


@dataclass(frozen=True)
class Knowledge:
    """The knowledge of a hostile node: everything.

    number: its own, from 0, among the hostile ones. own: what an honest node in its place would send. earlier: its
    `own` of all rounds before. others: what the honest nodes send in this round. k: components a tile. drawn: its own
    random numbers. agreed: random numbers that all hostile ones share in a round.
    """

    number: int
    round: int
    layout: TileLayout
    k: int
    own: Votes
    earlier: Sequence[Votes]
    others: Sequence[Votes]
    drawn: np.random.Generator
    agreed: np.random.Generator


Attack: TypeAlias = Callable[[Knowledge], Votes]


def flip(known: Knowledge) -> Votes:
    """Honest votes with every sign reversed."""
    return Votes(known.own.components, ~known.own.positive)


def random(known: Knowledge) -> Votes:
    """Random signs on random components."""
    return random_votes(known.layout, known.k, known.drawn)


def copy(known: Knowledge) -> Votes:
    """The votes of an honest node of the same round, without any work of its own."""
    return known.others[known.number % len(known.others)]


def silence(known: Knowledge) -> Votes:
    """One single vote, which costs nothing and looks like a contribution."""
    return Votes(known.own.components[:1], known.own.positive[:1])


def stale(known: Knowledge) -> Votes:
    """Its own honest votes of the first rounds, again and again."""
    return known.own if known.round < STALE_AFTER else known.earlier[known.round % STALE_AFTER]


def collude(known: Knowledge) -> Votes:
    """All hostile nodes agree on half of their votes, at random; the other half is honest, as a disguise."""
    chosen = random_votes(known.layout, known.k // 2, known.agreed)
    return joined(chosen, known.own, known.layout, known.k)


def oppose(known: Knowledge) -> Votes:
    """All hostile nodes vote against the components on which the honest ones agree most; a quarter of their votes. The
    rest is honest, as a disguise."""
    total = np.zeros(known.layout.components, np.int64)
    for votes in known.others:
        total[votes.components] += np.where(votes.positive, 1, -1)
    rank = [
        np.argsort(-np.abs(part).reshape(-1, size), axis=1, kind="stable")[:, : known.k // 4]
        + first
        + size * np.arange(len(part) // size)[:, None]
        for first, size, part in (
            (0, MATRIX_COMPONENTS, total[: known.layout.matrix_components]),
            (known.layout.matrix_components, VECTOR_COMPONENTS, total[known.layout.matrix_components :]),
        )
    ]
    strongest = np.sort(np.concatenate([part.reshape(-1) for part in rank]))
    strongest = strongest[total[strongest] != 0]
    return joined(Votes(strongest, total[strongest] < 0), known.own, known.layout, known.k)


ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack for attack in (flip, random, copy, silence, stale, collude, oppose)
}


def random_votes(layout: TileLayout, k: int, drawn: np.random.Generator) -> Votes:
    """k random components in each tile, with random signs."""
    parts = []
    for first, tiles, size in (
        (0, layout.matrix_tiles, MATRIX_COMPONENTS),
        (layout.matrix_components, layout.vector_tiles, VECTOR_COMPONENTS),
    ):
        if tiles:
            order = drawn.random((tiles, size)).argpartition(min(k, size - 1), axis=1)[:, : min(k, size)]
            parts.append((np.sort(order, 1) + first + size * np.arange(tiles)[:, None]).reshape(-1))
    components = np.concatenate(parts)
    return Votes(components, drawn.random(len(components)) < 0.5)


def joined(first: Votes, second: Votes, layout: TileLayout, k: int) -> Votes:
    """The votes of `first`, filled up with those of `second` to k in each tile."""
    new = ~np.isin(second.components, first.components)
    components = np.concatenate([first.components, second.components[new]])
    positive = np.concatenate([first.positive, second.positive[new]])
    tiles = layout.tile_of(components)
    order = np.argsort(tiles, kind="stable")  # in each tile those of `first` stand before those of `second`
    counts = np.bincount(tiles, minlength=layout.tiles)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.sort(order[place < k])
    ascending = kept[np.argsort(components[kept])]
    return Votes(components[ascending], positive[ascending])
