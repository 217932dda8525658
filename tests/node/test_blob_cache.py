"""Tests of the blob cache: it is bounded, keeps what is wanted, survives a restart and notices damaged files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from thinwire_node.storage.blob_cache import BlobCache
from thinwire_proto.blobs import Blob, BlobMissing
from thinwire_proto.errors import PayloadError


def blob_named(number: int, size: int = 100) -> tuple[Blob, bytes]:
    data = bytes([number]) * size
    return Blob(hashlib.sha256(data).hexdigest(), size), data


def put(cache: BlobCache, number: int, size: int = 100) -> Blob:
    blob, data = blob_named(number, size)
    cache.part(blob).write_bytes(data)
    cache.take_in(blob)
    os.utime(cache.folder / blob.hash, (number, number))  # the order of use
    return blob


def test_the_blob_that_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "blobs", 300)
    one, two, three = (put(cache, number) for number in (1, 2, 3))
    (cache.folder / "foreign").write_bytes(b"x" * 1000)
    cache.used([one])
    four = put(cache, 4)
    assert [cache.has(blob) for blob in (one, two, three, four)] == [True, False, True, True]
    assert cache.size == 300
    assert (cache.folder / "foreign").exists()


def test_a_new_process_continues_with_the_same_files(tmp_path: Path) -> None:
    first = BlobCache(tmp_path, 1000)
    one, two = put(first, 1), put(first, 2)
    part, data = blob_named(3)
    first.part(part).write_bytes(data[:60])
    again = BlobCache(tmp_path, 250)
    assert again.size == 260
    assert again.path(two).read_bytes() == blob_named(2)[1]
    with again.part(part).open("ab") as file:  # needs room for 40 bytes, so the oldest blob goes
        file.write(data[60:])
    again.take_in(part)
    assert again.has(part)
    assert not again.has(one)


def test_damaged_files_are_noticed(tmp_path: Path) -> None:
    first = BlobCache(tmp_path, 1000)
    flipped, cut, later = put(first, 1), put(first, 2), put(first, 3)
    (tmp_path / flipped.hash).write_bytes(b"x" * 100)
    again = BlobCache(tmp_path, 1000)
    with pytest.raises(BlobMissing):
        again.path(flipped)
    assert not (tmp_path / flipped.hash).exists()
    assert again.has(cut)
    assert again.has(later)
    (tmp_path / cut.hash).write_bytes(b"")
    assert not again.has(cut)
    (tmp_path / later.hash).unlink()
    assert not again.has(later)


def test_a_file_with_another_hash_never_gets_the_name(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)
    blob, data = blob_named(1)
    cache.part(blob).write_bytes(data[:-1] + b"x")
    with pytest.raises(PayloadError, match="100 bytes came with the hash"):
        cache.take_in(blob)
    assert list(tmp_path.iterdir()) == []
