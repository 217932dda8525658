"""A tokenizer.json: text to tokens and back, and the files that transformers opens."""

from __future__ import annotations

import json
import sys
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


def test_special_tokens_are_read_and_shown(path: Path) -> None:
    tokenizer = JsonTokenizer(path, end=0)
    assert tokenizer.encode(f"a{END}b").tolist().count(0) == 1
    assert tokenizer.decode(tokenizer.encode(f"a{END}b")) == f"a{END}b"


def test_a_token_outside_the_vocabulary_stands_for_nothing(path: Path) -> None:
    tokenizer = JsonTokenizer(path, end=0)
    padded = torch.cat([tokenizer.encode("the cat"), torch.tensor([tokenizer.vocabulary, 40_000])])
    assert tokenizer.decode(padded) == "the cat"


def test_the_vocabulary_counts_unused_numbers(path: Path, tmp_path: Path) -> None:
    document = json.loads(path.read_bytes())
    words = document["model"]["vocab"]
    assert JsonTokenizer(path, end=0).vocabulary == len(words)
    last = max(words, key=words.__getitem__)
    words[last] = 500
    document["model"]["merges"] = [pair for pair in document["model"]["merges"] if "".join(pair) != last]
    (tmp_path / "gap.json").write_text(json.dumps(document))
    assert JsonTokenizer(tmp_path / "gap.json", end=0).vocabulary == 501


def test_given_files_win_over_the_made_config(path: Path) -> None:
    given = {"tokenizer_config.json": b"{}", "chat_template.jinja": b"{{ messages }}"}
    files = JsonTokenizer(path, 0, given).files()
    assert files == {**given, "tokenizer.json": path.read_bytes()}


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


def test_without_the_library_the_error_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'thinwire\[data\]'"):
        JsonTokenizer(path, None).encode("text")
