"""`prepare` reads every format, and says what it could not read."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from support.file_server import serving
from support.prepared import all_texts, prepared
from thinwire_coordinator.prepare.problems import SourceFailed, TooManyProblems
from thinwire_coordinator.prepare.readers.text import PART_BYTES
from thinwire_coordinator.prepare.tokenizer_training import train_tokenizer
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import MANIFEST_FILE
from thinwire_proto.errors import ConfigError

TEXTS = [f"Text {number}, which says Grüße to {number * 7919}." for number in range(60)]
LINES = "".join(json.dumps({"text": text, "number": 1}) + "\n" for text in TEXTS).encode()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(TEXTS, 300, path)
    return str(path)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read_back(out: Path, source: Path | str, tokenizer: str, **settings: object) -> list[str]:
    return all_texts(out, prepared(out, source, tokenizer=tokenizer, **settings).manifest)


def test_a_folder_of_text(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden files and links to folders are left out. A binary file is named and counted."""
    write(tmp_path / "in/a.txt", b"one")
    write(tmp_path / "in/deep/er/b.md", "\ufefftwo".encode())
    write(tmp_path / "in/c.py.gz", gzip.compress(b"three"))
    write(tmp_path / "in/no-suffix", b"four")
    write(tmp_path / "in/empty.txt", b"")
    write(tmp_path / "in/.git/config", b"hidden")
    write(tmp_path / "in/picture.png", b"\x89PNG\0\0")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/linked.txt").symlink_to(write(tmp_path / "outside.txt", b"six"))
    made = prepared(tmp_path / "out", tmp_path / "in", tokenizer=tokenizer)
    assert all_texts(tmp_path / "out", made.manifest) == ["four", "one", "six", "three", "two"]
    assert made.counts[:2] == (0, 1)
    assert "skipped: picture.png: is binary, not text" in capsys.readouterr().err


def test_what_cannot_be_opened_costs_only_itself(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to nowhere is named and counted. A pipe, which would be waited for, is left out."""
    for number in range(3):
        write(tmp_path / f"in/{number}.txt", f"text {number}".encode())
    (tmp_path / "in/away.txt").symlink_to(tmp_path / "gone.txt")
    os.mkfifo(tmp_path / "in/pipe")
    made = prepared(tmp_path / "out", tmp_path / "in", tokenizer=tokenizer)
    assert all_texts(tmp_path / "out", made.manifest) == ["text 0", "text 1", "text 2"]
    assert made.counts.bad == 1
    assert "skipped: away.txt: cannot be opened: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("line_end", ["\n\n", "\r\n\r\n", "\n", " ", "ü"])
def test_a_long_text_is_divided(tmp_path: Path, tokenizer: str, line_end: str) -> None:
    text = "".join(f"{number}日本語{line_end}" for number in range(20_000))
    out = tmp_path / "out"
    found = read_back(out, write(tmp_path / "long.txt", text.encode()), tokenizer)
    assert len(found) > 1
    assert max(len(part.encode()) for part in found) <= PART_BYTES
    assert all(part in text for part in found)
    assert sum(len(part) for part in found) == len(text)
    if line_end != "ü":
        assert all(part.endswith(line_end) for part in found)


def test_a_table_with_two_columns_of_the_text_is_refused(tmp_path: Path, tokenizer: str) -> None:
    table = pyarrow.table([TEXTS, TEXTS], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(ConfigError, match="has more than one column 'text'"):
        prepared(tmp_path / "out", tmp_path / "twice.parquet", tokenizer=tokenizer)


def test_text_that_is_not_utf_8(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {
        "in/a.txt": b"a",
        "in/b.txt": b"b",
        "in/latin.txt": "one\ntwo\nGrüße".encode("latin-1"),
    }.items():
        write(tmp_path / name, content)
    made = prepared(tmp_path / "out", tmp_path / "in", tokenizer=tokenizer)
    assert made.counts.bad == 1
    assert "skipped: latin.txt:3: is not UTF-8: byte 0xfc (1 of at most 10)" in capsys.readouterr().err


def test_bad_json_lines_are_skipped_and_named(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [b'{"text": 5}', b"{", b'{"body": "x"}', b'{"text": "\\ud800"}', b"\xff", b"[1]"]
    source = write(tmp_path / "a.jsonl", b"\n".join([*bad, b"", LINES]))
    made = prepared(tmp_path / "out", source, tokenizer=tokenizer)
    assert made.counts.bad == len(bad)
    assert all_texts(tmp_path / "out", made.manifest) == sorted(TEXTS)
    said = capsys.readouterr().err
    for what in (
        "a.jsonl:1: 'text' is not text but int",
        "a.jsonl:2: is not JSON: Expecting property name",
        "a.jsonl:3: has no key 'text', and no conversation, but body; --text-key names the key",
        "a.jsonl:4: 'text' has half a character",
        "a.jsonl:5: is not UTF-8",
        "a.jsonl:6: is not an object but list",
    ):
        assert what in said
    with pytest.raises(TooManyProblems, match=r"a.jsonl:4: .*parts cannot be read.*--bad-max"):
        prepared(tmp_path / "strict", source, tokenizer=tokenizer, bad_max=3)
    assert not (tmp_path / "strict" / MANIFEST_FILE).exists()


def test_a_broken_page_costs_its_row_group(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": TEXTS}), path, row_group_size=20, write_page_checksum=True, use_dictionary=False
    )
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 8] ^= 0x55
    path.write_bytes(content)
    made = prepared(tmp_path / "out", path, tokenizer=tokenizer)
    assert made.counts.bad == 1
    assert all_texts(tmp_path / "out", made.manifest) == sorted(TEXTS[:20] + TEXTS[40:])
    assert "a.parquet, row group 1, from row 0 on: cannot be read: " in capsys.readouterr().err


def llm_c(tokens: list[int], magic: int, version: int, kind: str, claimed: int | None = None) -> bytes:
    head = np.zeros(256, np.int32)
    head[:3] = magic, version, len(tokens) if claimed is None else claimed
    return head.tobytes() + np.array(tokens, kind).tobytes()


def token_file(name: str, documents: list[list[int]]) -> bytes:
    """End token 0: after each document for nanoGPT, before it for llm.c."""
    if name == "nanogpt":
        return np.array([token for document in documents for token in [*document, 0]], np.uint16).tobytes()
    tokens = [token for document in documents for token in [0, *document]]
    return llm_c(tokens, 20240520, 1, "<u2") if name == "llm.c" else llm_c(tokens, 20240801, 7, "<u4")


@pytest.mark.parametrize("name", ["nanogpt", "llm.c", "llm.c llama"])
def test_files_of_tokens(tmp_path: Path, tokenizer: str, name: str) -> None:
    """Documents arrive as they are in text, on the same side of the split and with the same bytes of text."""
    library = JsonTokenizer(Path(tokenizer), 0)
    content = token_file(name, [library.encode(text).tolist() for text in TEXTS])
    made = prepared(tmp_path / "out", f"x={write(tmp_path / 'train.bin', content)}", tokenizer=tokenizer)
    of_text = prepared(tmp_path / "text", f"x={write(tmp_path / 'a.jsonl', LINES)}", tokenizer=tokenizer)
    assert made.manifest_hash == of_text.manifest_hash


def test_tokens_without_an_end_are_divided(tmp_path: Path, tokenizer: str) -> None:
    content = np.arange(1, 200_001, dtype=np.uint32) % 255 + 1
    made = prepared(tmp_path / "out", write(tmp_path / "a.bin", content.astype("<u2").tobytes()), tokenizer=tokenizer)
    split = made.sources[0].split
    assert split.train.documents + split.held_out.documents == 4
    assert split.train.tokens + split.held_out.tokens == 200_000 + 4


@pytest.mark.filterwarnings("default")  # of the library datasets
def test_a_data_set_as_the_hub_has_it(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed by the library `datasets`, which takes a folder OWNER/NAME here for one of the Hub."""
    write(tmp_path / "me/stories/train.jsonl", LINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert read_back(tmp_path / "out", "hf://datasets/me/stories:train", tokenizer) == sorted(TEXTS)
    with pytest.raises(ConfigError, match=r"has no column 'body', and none of a conversation, but .*text"):
        prepared(tmp_path / "other", "hf://datasets/me/stories", tokenizer=tokenizer, text_key="body")
    with pytest.raises(SourceFailed, match=r"hf://datasets/me/poems:train: cannot be opened"):
        prepared(tmp_path / "other", "hf://datasets/me/poems", tokenizer=tokenizer)
    for library in ("datasets", "huggingface_hub"):
        assert not logging.getLogger(library).handlers  # their messages would be printed twice


def test_over_http(tmp_path: Path, tokenizer: str) -> None:
    with serving({"/a.jsonl": LINES}) as server:
        assert read_back(tmp_path / "out", f"{server.url}/a.jsonl", tokenizer) == sorted(TEXTS)
        with pytest.raises(ConfigError, match="there is no such file"):
            prepared(tmp_path / "other", f"{server.url}/b.jsonl", tokenizer=tokenizer)
    with pytest.raises(
        SourceFailed, match=r"a\.jsonl: cannot be reached: .*onnect.*; check the address and the connec"
    ):
        prepared(tmp_path / "other", f"{server.url}/a.jsonl", tokenizer=tokenizer)  # nothing listens there any more


def test_a_source_that_stalls_is_named(tmp_path: Path, tokenizer: str) -> None:
    with serving({"/a.jsonl": LINES}) as server:
        server.stall_after = 1000
        with pytest.raises(SourceFailed, match=r"a\.jsonl: sent nothing for 0 s; check the connection"):
            prepared(tmp_path / "out", f"{server.url}/a.jsonl", tokenizer=tokenizer, stall_s=0.2)
    assert not (tmp_path / "out" / MANIFEST_FILE).exists()
