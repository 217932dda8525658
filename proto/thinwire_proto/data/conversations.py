"""Packed conversations: which tokens of a row count, and where each conversation in it begins.

A *row* holds `context + 1` tokens, of one conversation after another, and a mark for each token. A token with BEGINS
opens a conversation, or the padding at the end of a row. A token sees the tokens of its own conversation alone, and its
position is counted from there. The loss is the mean over the tokens with COUNTS, each predicted from those before it:
the responses of the assistant. The first token of a conversation has none before it, so it never counts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

COUNTS, BEGINS = 1, 2
"""Bits of a mark, a byte."""


def text_marks(rows: int, tokens: int) -> Tensor:
    """Marks of windows of text, uint8 [rows, tokens]: all tokens count, and are one text."""
    marks = torch.full((rows, tokens), COUNTS, dtype=torch.uint8)
    marks[:, 0] = COUNTS | BEGINS
    return marks


def counted(marks: Tensor) -> int:
    """The tokens that the mean loss of rows is over. marks: uint8 [rows, context + 1]."""
    return int((marks[:, 1:] & COUNTS).sum())


def weight_of(tokens: Tensor, marks: Tensor | None = None) -> int:
    """See `thinwire_proto.task.Model.weight`: samples, or tokens that count where a batch has marks."""
    return len(tokens) if marks is None else counted(marks)


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
