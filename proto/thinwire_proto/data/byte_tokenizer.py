"""The tokenizer of byte models: token i is the byte i."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.data.json_tokenizer import CONFIG_FILE, MODEL_LENGTH_MAX, TOKENIZER_FILE
from thinwire_proto.task import Tokenizer

BYTES = 256
PRINTABLE = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))
"""The bytes that stand for themselves in the alphabet of GPT-2 (`bytes_to_unicode` in its encoder.py)."""


class ByteTokenizer(Tokenizer):
    """Token i is the byte i of the text in UTF-8. No token ends a document. files: more of its files, by name."""

    end = None

    def __init__(self, files: Mapping[str, bytes] = {}) -> None:
        self._more = dict(files)

    def encode(self, text: str) -> Tensor:
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        return bytes(token for token in tokens.tolist() if token < BYTES).decode(errors="replace")

    def files(self) -> dict[str, bytes]:
        """A byte-level BPE without merges, whose vocabulary gives each byte its own number."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        vocabulary = {character: byte for byte, character in enumerate(_alphabet())}
        tokenizer: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
        config = {
            "clean_up_tokenization_spaces": False,
            "model_max_length": MODEL_LENGTH_MAX,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        return {**self._more, TOKENIZER_FILE: _written(tokenizer), CONFIG_FILE: _written(config)}


def _alphabet() -> list[str]:
    """For each byte, its character in the alphabet of byte-level tokenizers: those that cannot be printed get the
    characters from U+0100 on, in order."""
    spare = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in PRINTABLE else next(spare)) for byte in range(BYTES)]


def _written(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
