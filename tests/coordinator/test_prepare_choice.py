"""`prepare` chooses how a file is read by the path part of its name and by its first bytes."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from support.file_server import serving
from support.reading import read
from thinwire_coordinator.prepare.problems import Counts
from thinwire_coordinator.prepare.readers.arrow import read_arrow
from thinwire_coordinator.prepare.readers.choice import Reader, reader_of
from thinwire_coordinator.prepare.readers.json_lines import read_json_array, read_json_lines
from thinwire_coordinator.prepare.readers.parquet import read_parquet
from thinwire_coordinator.prepare.readers.text import read_text
from thinwire_coordinator.prepare.readers.token_files import read_token_file
from thinwire_coordinator.prepare.sources import parse_sources
from thinwire_proto.errors import ConfigError

TEXTS = [f"Text {number} says Grüße." for number in range(50)]
LINES = "".join(json.dumps({"text": text, "number": 1}) + "\n" for text in TEXTS).encode()
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 12345671\n".encode()


READERS: list[tuple[str, bytes, Reader]] = [
    ("a.jsonl", b"", read_json_lines),
    ("a.JSONL", b"not JSON", read_json_lines),
    ("a.jsonl.gz", b"not JSON", read_json_lines),
    ("a.json", LINES, read_json_lines),
    ("a.json", b"\xef\xbb\xbf" + LINES, read_json_lines),
    ("a.json", b'\n{"text": null}\n{"text": 5}\n', read_json_lines),
    ("a.json", b'{"text": "cut\n' + LINES, read_json_lines),
    ("a.json", b'{"body": "x"}\n{"body": "y"}\n', read_json_lines),  # and --text-key is wrong
    ("a.json", b'{"body": "x"}\n{"body": "a line that goes on', read_json_lines),
    ("a.json", b'{"body": "x"}', read_text),
    ("a.json", b'{\n "text": "y"\n}', read_text),
    ("a.json", b'[{"text": "z"}]', read_json_array),
    ("a.json", b'\xef\xbb\xbf[\n{"conversations": [{"from": "human", "value": "a long', read_json_array),
    ("a.json", b'[{"body": "z"}]', read_text),
    ("a.json", b'["text"]', read_text),
    ("a.txt", b'[{"text": "z"}]', read_text),
    ("a", LINES, read_json_lines),
    ("a.jsonl.download", LINES, read_json_lines),
    ("a.txt", LINES, read_json_lines),
    ("a.txt", b'{"body": "x"}\n' * 9, read_text),
    ("a.md", b'{"text": "x"}\n# An example\n', read_text),
    ("a", b"PAR1\0", read_parquet),
    ("a", b"PAR1 is how such a file begins.", read_text),
    ("a.parquet", b"", read_parquet),
    ("a", b"ARROW1\0\0", read_arrow),
    ("a", b"\xff\xff\xff\xff\0", read_arrow),
    ("a.arrow", b"", read_arrow),
    ("a.bin", b"PAR1", read_token_file),
    ("a", (20240520).to_bytes(4, "little"), read_token_file),
    ("a", b"", read_text),
]


@pytest.mark.parametrize(("name", "begin", "reader"), READERS)
def test_the_reader_of_a_file(name: str, begin: bytes, reader: Reader) -> None:
    assert reader_of(name, begin, "text") is reader


@pytest.mark.parametrize(
    "address",
    [
        "train.jsonl?download=true",
        "train.jsonl.gz?download=1",
        "TRAIN.JSONL?a=/b/.hidden*&c=d.txt",
        "train.jsonl#part",
        "train%2Ejsonl",
        "get?file=train.jsonl",
        "train.parquet?sig=%2F",
    ],
)
@pytest.mark.parametrize("content_encoding", [None, "gzip"])
def test_a_web_address_is_read_by_its_path(address: str, content_encoding: str | None) -> None:
    """A query or a fragment is no part of a name. A server may compress what it sends, and it may be long parts that it
    sends one after another."""
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), table)
    path = address.partition("?")[0].partition("#")[0].replace("%2E", ".")
    content = {".gz": gzip.compress(LINES), "uet": table.getvalue()}.get(path[-3:], LINES)
    if content_encoding is not None:
        content = gzip.compress(content[:50]) + gzip.compress(content[50:])
    with serving({f"/{path}": content}) as server:
        server.content_encoding = content_encoding
        found = read(f"{server.url}/{address}")
    assert found.documents == TEXTS
    assert found.said == []


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.arrow", "a.bin", "a.jsonl.gz", "a.txt.zst"])
def test_a_pointer_of_git_lfs_is_a_bad_file_of_any_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    found = read(tmp_path)
    assert (found.documents, found.counts) == ([], Counts(bad=1))
    assert "is a pointer of Git LFS, not the file itself; fetch the files with `git lfs pull`" in found.said[0]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.json", '{"name": "x"}', "JSON"),
        ("a.json", "[1, 2]", "JSON"),
        ("a.txt", '[{"text": "z"},\n{"text": "y"}]', "JSON"),
        ("a.log", '{"body": "x"}\n{"body": "y"}\n', "JSON"),
        ("a.csv", "one line", "a table"),
        ("a.TSV.gz", "a\tb\n", "a table"),
        ("a.txt", "a,b,c\n" * 9, "a table"),
        ("a.txt", "a\tb\n" * 9, "a table"),
        ("train.txt", "\n<!DOCTYPE html>\n<html></html>", "a web page"),
        ("a.html", "<!DOCTYPE html>\n<html></html>", None),
        ("a.md", "[a link](b)\n[c]: d\n", None),
        ("a.toml", '[[table]]\nname = ["x"]\n', None),
        ("a.txt", "Yes, no.\n" * 9, None),
        ("a.py", "\tx\n\t\ty\n" * 9, None),
        ("a.json", "\0", None),
        ("a.json", "", None),
    ],
)
def test_text_that_looks_like_something_else_is_said(tmp_path: Path, name: str, content: str, what: str | None) -> None:
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read(tmp_path)
    said = [line for line in found.said if line.startswith("note: ")]
    assert len(said) == found.counts.as_text == (what is not None)
    assert all(f"note: {name}: is read as plain text, although it looks like {what}" in line for line in said)


def data_set(texts: list[str]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts})


@pytest.mark.filterwarnings("default")  # of the library datasets
def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    """Neither its descriptions are texts, nor the results of `map` that the library keeps beside its files."""
    data_set(TEXTS).save_to_disk(tmp_path / "saved", num_shards=3)
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))
    loaded.map(lambda row: {"text": row["text"].upper()})
    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    found = read(tmp_path / "saved")
    assert found.documents == list(loaded["text"]) == TEXTS
    assert found.said == []
    (tmp_path / "saved/data-00001-of-00003.arrow").unlink()
    with pytest.raises(ConfigError, match=r"saved: its state.json lists data-00001-of-00003.arrow, which is missing"):
        read(tmp_path / "saved")


@pytest.mark.filterwarnings("default")  # of the library datasets
def test_of_several_splits_one_is_named(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": data_set(TEXTS), "test": data_set(TEXTS[:1])})
    splits.save_to_disk(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"holds the splits train, test; give one: .*/saved/train"):
        read(tmp_path / "saved")
    assert read(tmp_path / "saved/train").documents == TEXTS


@pytest.mark.parametrize(
    ("text", "name", "urls"),
    [
        ("language=en", "language-en", ("language=en",)),
        ("language=en/0.txt", "0", ("language=en/0.txt",)),
        ("language=*/*.txt", "data", ("language=*/*.txt",)),
        ("wiki=language=en", "wiki", ("language=en",)),
        ("language=de", "language", ("de",)),
        ("wiki=https://a.example/x.jsonl?a=b", "wiki", ("https://a.example/x.jsonl?a=b",)),
        (f"wiki=https://a.example/x?a={'b' * 300}", "wiki", (f"https://a.example/x?a={'b' * 300}",)),
        ("https://a.example/my%20texts.jsonl?a=b/c#d", "my-texts", ("https://a.example/my%20texts.jsonl?a=b/c#d",)),
    ],
)
def test_a_path_that_exists_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, urls: tuple[str, ...]
) -> None:
    (tmp_path / "language=en").mkdir()
    (tmp_path / "language=en/0.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    (source,) = parse_sources([text])
    assert (source.name, source.urls) == (name, urls)
