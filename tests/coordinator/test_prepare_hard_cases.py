"""Readers of `prepare` find the same documents as each format's own tool, in files that are hard to read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard

from support.reading import read
from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES

WORDS = random.Random(41)
TEXT = "".join(
    f"Line {number} of {WORDS.randbytes(WORDS.randrange(40)).hex()}: Grüße.\n" for number in range(4000)
).encode()
HALF = TEXT.index(b"\n", len(TEXT) // 2) + 1
Pack = Callable[[bytes], bytes]


def changed(data: bytes) -> bytes:
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]


def zstd_skipped(data: bytes) -> bytes:
    """A frame that holds no text, such as the seek table at the end of a file."""
    return b"\x5e\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


def zstd_long(data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=31)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # which does not know the size
    return compressor.compress(data) + compressor.flush()


def old_lzma(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_ALONE)


TOOLS: dict[str, tuple[str, Pack]] = {
    "gzip": (".gz", gzip.compress),
    "bzip2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
    "zstd": (".zst", lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data)),
}
CASES: dict[str, Callable[[Pack], bytes]] = {
    "one part": lambda pack: pack(TEXT),
    "two parts": lambda pack: pack(TEXT[:HALF]) + pack(TEXT[HALF:]),
    "many small parts": lambda pack: b"".join(pack(TEXT[at : at + 999]) for at in range(0, len(TEXT), 999)),
    "an empty part in the middle": lambda pack: pack(TEXT[:HALF]) + pack(b"") + pack(TEXT[HALF:]),
    "an empty part alone": lambda pack: pack(b""),
    "zeros at the end": lambda pack: pack(TEXT) + bytes(512),
    "zeros in the middle": lambda pack: pack(TEXT[:HALF]) + bytes(8) + pack(TEXT[HALF:]),
    "junk at the end": lambda pack: pack(TEXT) + b"junk" * 50_000,
    "one byte at the end": lambda pack: pack(TEXT) + b"\n",
    "a cut part at the end": lambda pack: pack(TEXT[:HALF]) + pack(TEXT[HALF:])[:-20],
    "cut in the middle": lambda pack: pack(TEXT)[: len(pack(TEXT)) * 3 // 4],
    "cut in the first bytes": lambda pack: pack(TEXT)[:3],
    "nothing": lambda pack: b"",
    "another checksum at the end": lambda pack: changed(pack(TEXT)),
}
SAID = {case for case in CASES if case.startswith(("cut", "nothing", "another", "a cut", "junk", "one byte"))}
SPECIAL: list[tuple[str, str, bytes]] = [
    ("zstd", "a window of 2 GiB", zstd_long(TEXT)),
    ("zstd", "a frame to skip at the end", zstandard.compress(TEXT) + zstd_skipped(b"table")),
    ("zstd", "a frame to skip at the beginning", zstd_skipped(b"") + zstandard.compress(TEXT)),
    ("xz", "the older format", old_lzma(TEXT)),
    ("xz", "no check", lzma.compress(TEXT, check=lzma.CHECK_NONE)),
    (
        "gzip",
        "a name and a comment",
        gzip.compress(b"")[:3] + b"\x18" + bytes(6) + b"name\0note\0" + gzip.compress(TEXT)[10:],
    ),
]
ALL = [(tool, case, make(TOOLS[tool][1])) for tool in TOOLS for case, make in CASES.items()] + SPECIAL


@pytest.mark.parametrize(("tool", "case", "content"), ALL, ids=[f"{tool}, {case}" for tool, case, _ in ALL])
def test_a_packed_file_is_read_as_its_tool_reads_it(tmp_path: Path, tool: str, case: str, content: bytes) -> None:
    """And what a tool leaves out is read if it can be, or said. Never is there more than the text that was packed."""
    path = tmp_path / f"a.txt{TOOLS[tool][0]}"
    path.write_bytes(content)
    found = read(path)
    text = "".join(str(document) for document in found.documents).encode()
    assert TEXT.startswith(text)
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    options = ["--long=31"] if tool == "zstd" else []
    theirs = subprocess.run([tool, *options, "-dc"], input=content, capture_output=True, check=False)
    if case != "another checksum at the end":  # which costs the piece before it
        assert text.startswith(theirs.stdout.decode(errors="ignore").encode())
    is_whole = text == (b"" if case == "an empty part alone" else TEXT)
    assert is_whole or case.startswith(("cut", "a cut", "nothing", "another"))
    assert found.counts.bad == (case in SAID)
    if theirs.returncode == 0 and not theirs.stderr:
        assert is_whole
        assert case not in SAID
    assert len(found.said) == found.counts.bad
    assert found.counts.binary_files == 0


# How a line ends, and what may stand in it: `lines` is what json reads when Python ends lines at \n, \r and \r\n.
SENTENCES = ["one", "two\u2028two", "three\x85three", "four\x0bfour\x1cfour", "five\\nfive", "Grüße 🙂"]
OBJECTS = [json.dumps({"text": text, "n": 1}, ensure_ascii=False) for text in SENTENCES]
LONG = json.dumps({"text": "x" * (5 * BUFFER_BYTES)})
AT_A_BOUNDARY = json.dumps({"text": "y" * (BUFFER_BYTES - 13)})
LINES: dict[str, bytes] = {
    "\\n": "\n".join(OBJECTS).encode() + b"\n",
    "\\r\\n": "\r\n".join(OBJECTS).encode() + b"\r\n",
    "\\r": "\r".join(OBJECTS).encode() + b"\r",
    "mixed": "\r\n".join(OBJECTS[:3]).encode() + b"\n\r" + "\r".join(OBJECTS[3:]).encode(),
    "no end": "\n".join(OBJECTS).encode(),
    "blank lines": b"\n \t\n" + "\n\n\r\n".join(OBJECTS).encode() + b"\n\n  ",
    "a mark": b"\xef\xbb\xbf" + "\n".join(OBJECTS).encode(),
    "marks of files that were joined": b"".join(b"\xef\xbb\xbf" + line.encode() + b"\n" for line in OBJECTS),
    "UTF-16": "\r\n".join(OBJECTS).encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + "\n".join(OBJECTS).encode("utf-16-be"),
    "UTF-32": "\n".join(OBJECTS).encode("utf-32"),
    "a long line": "\n".join([LONG, *OBJECTS, LONG]).encode(),
    "a long line that \\r ends": "\r".join([*OBJECTS, LONG, *OBJECTS]).encode(),
    "\\r\\n where two pieces meet": "\r\n".join([AT_A_BOUNDARY, *OBJECTS]).encode(),
    "nulls": "\n".join([*OBJECTS, '{"text": null}', '{"text": NaN}']).encode(),
    "null first": "\n".join(['{"text": null}', *OBJECTS]).encode(),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSON", "a.jsonl.gz", "download"])
@pytest.mark.parametrize("case", LINES)
def test_json_lines_are_read_as_json_reads_them(tmp_path: Path, name: str, case: str) -> None:
    content = LINES[case]
    encoding = "utf-16" if case.startswith("UTF-16") else "utf-32" if case.startswith("UTF-32") else "utf-8"
    lines = [
        line.strip().removeprefix("\ufeff") for line in io.TextIOWrapper(io.BytesIO(content), encoding, newline=None)
    ]
    expected: list[Any] = [json.loads(line)["text"] for line in lines if line]
    texts = [text for text in expected if isinstance(text, str)]
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = read(tmp_path)
    assert found.documents == texts
    assert (found.counts.null_texts, found.counts.bad, found.said) == (len(expected) - len(texts), 0, [])


def test_a_line_that_is_cut_is_one_bad_part(tmp_path: Path) -> None:
    """In a packed file it belongs to the damage."""
    content = "\n".join(OBJECTS).encode()
    (tmp_path / "a.jsonl").write_bytes(content[:-3])
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(content[:-3]) + zstandard.compress(content[-3:])[:-1])
    found = read(tmp_path)
    assert found.documents == SENTENCES[:-1] * 2
    assert [line.partition(": ")[2][:24] for line in found.said] == [
        "a.jsonl:6: is not JSON: ",
        "b.jsonl.zst: is damaged,",
    ]
    assert found.counts.bad == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\u2028", "\n\n"])
def test_plain_text_is_kept_as_it_is(tmp_path: Path, encoding: str, line_end: str) -> None:
    text = line_end.join(SENTENCES)
    (tmp_path / "a.md").write_bytes(text.encode(encoding))
    assert read(tmp_path).documents == [text]


TABLE = pyarrow.table({"text": [None, *SENTENCES, "", None, "x" * 3_000_000, *SENTENCES], "n": range(16)})
KINDS = [
    pyarrow.string(),
    pyarrow.large_string(),
    pyarrow.string_view(),
    pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
]


def compare_with_table(found: Any, table: pyarrow.Table) -> None:
    values = table["text"].to_pylist()
    assert found.documents == [text for text in values if text]
    assert (found.counts.null_texts, found.counts.bad) == (values.count(None), 0)


def arrow_stream(table: pyarrow.Table, rows: int = 3) -> bytes:
    written = io.BytesIO()
    with pyarrow.ipc.new_stream(written, table.schema) as writer:
        writer.write_table(table, rows)
    return written.getvalue()


def arrow_file(table: pyarrow.Table) -> bytes:
    written = io.BytesIO()
    pyarrow.feather.write_feather(table, written, chunksize=3)
    return written.getvalue()


def small_pages(table: pyarrow.Table) -> bytes:
    written = io.BytesIO()
    pages: dict[str, Any] = {"row_group_size": 3, "data_page_size": 64, "data_page_version": "2.0"}
    pyarrow.parquet.write_table(table, written, compression="zstd", use_dictionary=False, **pages)
    return written.getvalue()


def packed_parquet(table: pyarrow.Table) -> bytes:
    written = io.BytesIO()
    pyarrow.parquet.write_table(table, written)
    return gzip.compress(written.getvalue())


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.parquet", small_pages),
        ("a.arrow", arrow_stream),
        ("a.arrow", arrow_file),
        ("a.feather", arrow_file),
        ("a.arrow.gz", lambda table: gzip.compress(arrow_file(table))),
        ("a.parquet.gz", packed_parquet),
        ("download", packed_parquet),
    ],
)
def test_tables_are_read_as_pyarrow_reads_them(
    tmp_path: Path, name: str, make: Callable[[pyarrow.Table], bytes], kind: pyarrow.DataType
) -> None:
    table = TABLE.set_column(0, "text", TABLE["text"].cast(kind))
    (tmp_path / name).write_bytes(make(table))
    compare_with_table(read(tmp_path), table)


@pytest.mark.parametrize("make", [arrow_stream, arrow_file])
def test_a_cut_table_is_said(tmp_path: Path, make: Callable[[pyarrow.Table], bytes]) -> None:
    """A stream keeps the batches before; a file has its list of batches at its end."""
    content = make(pyarrow.table({"text": SENTENCES * 2}))
    (tmp_path / "a.arrow").write_bytes(content[: len(content) - len(content) // 3])
    found = read(tmp_path)
    assert found.counts.bad == 1
    assert found.documents == (SENTENCES * 2)[: len(found.documents)]
    assert bool(found.documents) == (make is arrow_stream)
