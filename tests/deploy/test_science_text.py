"""The larger study trains on tokens of this machine's text, from which duplicate files are dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from bench.convergence import text as text_module
from bench.convergence.__main__ import LARGE
from bench.convergence.run import Run, Size, train
from bench.convergence.text import VOCABULARY, make_machine_text, text_files, text_of
from thinwire_proto.data.corpus import windows
from thinwire_proto.models import BYTE_PRESETS

TEXT_FILES = 800


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Size:
    """A model of one layer, for tests in which only the order of things matters."""
    model = BYTE_PRESETS["byte-1m"].model_copy(update={"layers": 1, "width": 64, "hidden": 64, "context": 64})
    monkeypatch.setitem(BYTE_PRESETS, "small", model)
    return Size("small", samples=4, held_out=8)


def synthetic_text(folder: Path) -> Path:
    folder.mkdir()
    for number in range(TEXT_FILES):
        (folder / f"{number}.py").write_text(f"def function_{number}(value):\n    return value + {number}\n" * 30)
    return folder


def test_machine_text_is_tokenized_and_duplicate_files_are_dropped(tmp_path: Path) -> None:
    folder = synthetic_text(tmp_path / "text")
    (folder / "copy.md").write_bytes((folder / "7.py").read_bytes())
    (folder / "picture.png").write_bytes(b"\x89PNG" * 1000)
    assert len(text_files((folder,))) == TEXT_FILES
    count = make_machine_text((folder,), tmp_path / "cache")
    train, held_out = (np.load(tmp_path / "cache" / f"{part}.npy") for part in ("train", "held_out"))
    assert (train.dtype, len(train)) == (np.uint16, count)
    assert 0 < len(held_out) < 0.1 * count
    tokenizer = Tokenizer.from_file(str(tmp_path / "cache" / "tokenizer.json"))
    assert tokenizer.decode(train[:50].tolist()).startswith("def function_")
    windows_of = windows(train, 16)
    assert windows_of.dtype == np.uint16
    assert windows_of.shape[1] == 17


def test_the_larger_study_trains_on_the_machines_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Size
) -> None:
    """Two steps of each of its arms, with a smaller model."""
    monkeypatch.setattr(text_module, "FOLDERS", (synthetic_text(tmp_path / "text"),))
    monkeypatch.setattr(text_module, "CACHE", tmp_path / "cache")
    text_of.cache_clear()
    size = replace(small, text="machine")
    for arm in LARGE.arms:
        result = train(Run(arm, 1e-3, 1, 2, 2 * 4 * size.spec.context, size), torch.device("cpu"))
        assert result.parameters > VOCABULARY * size.spec.width
        assert 3 < result.loss < 9.1
    text_of.cache_clear()


def test_a_larger_models_vocabulary_is_its_tokenizers() -> None:
    assert LARGE.size.spec.vocabulary == VOCABULARY
    assert LARGE.size.spec.width == BYTE_PRESETS["byte-30m"].width
    assert LARGE.tokens >= 200_000_000
