"""A tokenizer read from a `tokenizer.json`, the format of the `tokenizers` library and of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MODEL_LENGTH_MAX = 10**30
"""The length that transformers writes for a tokenizer that does not know the model's context."""


class JsonTokenizer(Tokenizer):
    """A `Tokenizer` over the library `tokenizers`.

    path: the `tokenizer.json`, under any name. end: the token that ends a document. files: the tokenizer's other files,
    by name; without a `tokenizer_config.json` among them, `files` makes one.

    The file is read at first use. What is read then raises ConfigError if the library is missing or refuses the file.
    """

    def __init__(self, path: Path, end: int | None, files: Mapping[str, bytes] = {}) -> None:
        self.path = path
        self.end = end
        self._files = dict(files)

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int64 [n]. Text that spells a special token becomes that token, as in transformers; no
        token is added at the start or end."""
        return torch.tensor(self.library.encode(text, add_special_tokens=False).ids, dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [n], special tokens included. Tokens outside the vocabulary stand for nothing."""
        return str(self.library.decode(tokens.tolist(), skip_special_tokens=False))

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token. Some tokenizers leave numbers unused."""
        return max(self.library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def files(self) -> dict[str, bytes]:
        return {CONFIG_FILE: self._config(), **self._files, TOKENIZER_FILE: self.path.read_bytes()}

    def _config(self) -> bytes:
        """A `tokenizer_config.json` for the class that builds a tokenizer from any `tokenizer.json`."""
        config: dict[str, Any] = {
            "clean_up_tokenization_spaces": False,
            "model_max_length": MODEL_LENGTH_MAX,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        if self.end is not None and (word := self.library.id_to_token(self.end)) is not None:
            config["eos_token"] = word
        return json.dumps(config, indent=2, sort_keys=True).encode() + b"\n"

    @cached_property
    def library(self) -> Any:
        """The `tokenizers.Tokenizer`."""
        try:
            import tokenizers  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("this tokenizer needs the library tokenizers: pip install 'thinwire[data]'") from None
        try:
            return tokenizers.Tokenizer.from_file(str(self.path))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more precise
            raise ConfigError(f"{self.path}: is not a tokenizer.json: {error}") from None
