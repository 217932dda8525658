"""A tokenizer.json: text to tokens and back, and the files that transformers opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.errors import ConfigError

TEXTS = ["the cat sat on the mat\n", "  two spaces, and two lines\n\n", "Grüße, 日本語 and 🎉", ""]
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 300 tokens; token 0 is END."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "0123abcd"  # a blob's name is a hash
    tokenizer.save(str(path))
    return path


def test_text_comes_back(path: Path) -> None:
    tokenizer = JsonTokenizer(path, end=0)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert tokens.dtype == torch.int64
        assert tokenizer.decode(tokens) == text
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0])


def test_transformers_opens_the_files(path: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds

    tokenizer = JsonTokenizer(path, end=0)
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened.eos_token == END
    assert opened.eos_token_id == 0
    for text in TEXTS:
        tokens = opened(text)["input_ids"]
        assert tokens == tokenizer.encode(text).tolist()
        assert opened.decode(tokens) == text


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ConfigError, match=r"tokenizer\.json: is not a tokenizer\.json"):
        JsonTokenizer(tmp_path / "tokenizer.json", None).encode("text")
