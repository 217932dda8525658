"""The tokenizer of byte models: token i is the byte i."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_proto.task import Tokenizer


class ByteTokenizer(Tokenizer):
    """Token i is the byte i of the text in UTF-8. No token ends a document."""

    end = None

    def encode(self, text: str) -> Tensor:
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        return bytes(token for token in tokens.tolist() if token < 256).decode(errors="replace")

    def files(self) -> dict[str, bytes]:
        raise NotImplementedError
