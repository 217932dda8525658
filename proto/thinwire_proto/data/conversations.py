"""Packed conversations: which tokens of a row count, and where each conversation in it begins.

A *row* holds `context + 1` tokens, of one conversation after another, and a mark for each token. A token with BEGINS
opens a conversation, or the padding at the end of a row. A token sees the tokens of its own conversation alone, and its
position is counted from there. The loss is the mean over the tokens with COUNTS, each predicted from those before it:
the responses of the assistant. The first token of a conversation has none before it, so it never counts.

A row of *preferences* holds pairs: a chosen conversation, which CHOSEN marks, and right after it the rejected one.
Their loss is the mean over pairs (`thinwire_proto.models.lora`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from thinwire_proto.data.manifest import Conversations

COUNTS, BEGINS, CHOSEN = 1, 2, 4
"""Bits of a mark, a byte. CHOSEN is beside BEGINS only."""


def text_marks(rows: int, tokens: int) -> Tensor:
    """Marks of windows of text, uint8 [rows, tokens]: all tokens count, and are one text."""
    marks = torch.full((rows, tokens), COUNTS, dtype=torch.uint8)
    marks[:, 0] = COUNTS | BEGINS
    return marks


def counted(marks: Tensor) -> int:
    """The tokens that the mean loss of rows is over. marks: uint8 [rows, context + 1]."""
    return int((marks[:, 1:] & COUNTS).sum())


def pairs_in(marks: Tensor) -> int:
    """The pairs of preferences in rows; 0 if they hold something else."""
    return int(torch.count_nonzero(marks & CHOSEN))


def weight_of(tokens: Tensor, marks: Tensor | None = None) -> int:
    """See `thinwire_proto.task.LearnsConversations.weight`: samples, or where a batch has marks, pairs of preferences
    or tokens that count."""
    return len(tokens) if marks is None else pairs_in(marks) or counted(marks)


def positions_of(marks: Tensor) -> Tensor:
    """Positions of tokens, each counted from the beginning of its conversation: int64, in the shape of marks."""
    each = torch.arange(marks.shape[1], device=marks.device).expand(marks.shape)
    begins = torch.where((marks & BEGINS) > 0, each, 0)
    return each - begins.cummax(1).values


def visible(marks: Tensor) -> Tensor:
    """What each token sees: bool [rows, 1, length, length], of marks [rows, length]."""
    numbers = ((marks & BEGINS) > 0).cumsum(1)
    return torch.tril(numbers[:, :, None] == numbers[:, None, :])[:, None]


def mean_loss(logits: Tensor, tokens: Tensor, marks: Tensor | None, reduction: str = "mean") -> Tensor:
    """Next-token cross entropy, in nats: of all tokens, or of those that count.

    logits: [rows, context, vocabulary]. tokens, marks: [rows, context + 1].
    """
    wanted = tokens[:, 1:].flatten()
    if marks is None:
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted, reduction=reduction)
    counts = (marks[:, 1:] & COUNTS).flatten() > 0
    # only these rows of the logits become float32: a conversation may have few tokens that count
    return F.cross_entropy(logits.flatten(0, 1)[counts].float(), wanted[counts], reduction=reduction)


def preferred_by(ratios: Tensor, marks: Tensor) -> Tensor:
    """By how much a model prefers the chosen conversation of each pair more than its reference does, in nats: float32
    [pairs].

    ratios: of each token that counts, the logarithm of its probability minus that of the reference; float32 [counted].
    marks: of rows of preferences, [rows, context + 1].
    """
    each = torch.arange(marks.shape[1], device=marks.device).expand(marks.shape)
    begins = torch.where((marks & BEGINS) > 0, each, 0).cummax(1).values
    is_chosen = (marks.gather(1, begins) & CHOSEN) > 0
    pairs = ((marks & CHOSEN) > 0).flatten().cumsum(0).view_as(marks)
    counts = (marks[:, 1:] & COUNTS) > 0
    signed = torch.where(is_chosen[:, 1:][counts], ratios, -ratios)
    return ratios.new_zeros(pairs_in(marks)).index_add(0, pairs[:, 1:][counts] - 1, signed)


def counted_of(marks: npt.NDArray[np.uint8], form: Conversations) -> int:
    """The tokens that count in rows [rows, context + 1]. Raises ValueError if no row of `prepare` has such marks."""
    counts, begins, bits = (marks & COUNTS) > 0, (marks & BEGINS) > 0, COUNTS | BEGINS | CHOSEN * form.preferences
    numbers: npt.NDArray[np.int64] = np.cumsum(begins, 1, np.int64)  # of the conversation of each token, from 1 on
    if marks.max() > bits or not begins[:, 0].all() or (counts & begins).any() or not counts.any(1).all():
        raise ValueError("has marks that are not of conversations")
    if form.preferences and not _are_pairs(marks, numbers):
        raise ValueError("has marks that are not of pairs of conversations")
    if numbers[counts].max() > 1 + form.preferences and not form.packed:
        raise ValueError("has several conversations in a row; the manifest says one")
    return int(counts.sum())


def _are_pairs(marks: npt.NDArray[np.uint8], numbers: npt.NDArray[np.int64]) -> bool:
    """Whether each row has a chosen and a rejected conversation in turn, something counts in each, and at most padding
    follows. numbers: of the conversation of each token, from 1 on."""
    begins, last = (marks & BEGINS) > 0, numbers[:, -1:]
    is_padding = numbers > last - last % 2
    keys = np.arange(len(marks))[:, None] * (marks.shape[1] + 1) + numbers  # a number of each conversation of all rows
    return np.array_equal((marks & CHOSEN) > 0, begins & (numbers % 2 == 1) & ~is_padding) and np.array_equal(
        np.unique(keys[(marks & COUNTS) > 0]), keys[begins & ~is_padding]
    )
