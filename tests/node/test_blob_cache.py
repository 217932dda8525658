"""Tests of the blob cache: it is bounded, keeps what is wanted, survives a restart and notices damaged files."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thinwire_node.storage.blob_cache import BlobCache
from thinwire_proto.blobs import Blob, BlobMissing, HashingStopped
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


def test_a_blob_counts_as_used_as_long_as_it_is_wanted(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "blobs", 300)
    one, two, three = (put(cache, number) for number in (1, 2, 3))
    cache.want("lease", [one, two])
    cache.want("lease", [two])
    four = put(cache, 4)
    assert [cache.has(blob) for blob in (one, two, three, four)] == [True, True, False, True]


def test_wanted_blobs_stay_even_beyond_the_bound(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "blobs", 200)
    one, two = put(cache, 1), put(cache, 2)
    cache.want("task", [one])
    cache.want("lease", [two])
    three = put(cache, 3)
    assert cache.has(one)
    assert cache.has(two)
    assert cache.has(three)
    assert cache.size == 300
    cache.want("lease", [three])
    put(cache, 4, 50)
    assert (cache.has(one), cache.has(two), cache.has(three)) == (True, False, True)


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


def test_how_many_blobs_fit(tmp_path: Path) -> None:
    blobs = [blob_named(number, size)[0] for number, size in enumerate((100, 150, 60, 10))]
    assert [BlobCache(tmp_path, size).room_for(blobs, "lease") for size in (99, 100, 309, 320)] == [0, 1, 2, 4]


def test_how_many_blobs_fit_beside_those_that_others_want(tmp_path: Path) -> None:
    blobs = [blob_named(number)[0] for number in range(4)]
    cache = BlobCache(tmp_path, 300)
    cache.want("task", blobs[:1])
    cache.want("lease", blobs[1:3])
    assert cache.room_for(blobs[1:], "lease") == 2
    cache.want("evaluation", blobs[2:])
    assert cache.room_for(blobs[1:], "lease") == 0
    assert cache.room_for(blobs[2:], "lease") == 2  # they lie there once
    cache.bound(1000, file_bytes_max=350)
    assert [cache.most_bytes(blob) for blob in blobs[:2]] == [350, 250]


def test_no_more_is_deleted_than_a_full_disk_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlobCache(tmp_path, 1000)
    one, two, three = (put(cache, number) for number in (1, 2, 3))
    cache.want("task", [one])
    blob, data = blob_named(4)
    cache.part(blob).write_bytes(data[:40])

    def usage(folder: Path) -> Any:
        return SimpleNamespace(free=300 - sum(cache.has(blob) * blob.size for blob in (one, two, three)))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert cache.lacking_bytes(blob) == -40
    assert [cache.has(blob) for blob in (one, two, three)] == [True, False, True]
    cache.want("lease", [three, blob])
    assert cache.lacking_bytes(Blob(blob.hash, 300)) == 160
    assert [cache.has(blob) for blob in (one, two, three)] == [True, False, True]


def test_a_process_that_ends_reads_no_file_to_its_end_and_keeps_it(tmp_path: Path) -> None:
    whole = put(BlobCache(tmp_path, 1000), 1)
    arrived, data = blob_named(2)
    cache = BlobCache(tmp_path, 1000)
    cache.part(arrived).write_bytes(data)
    cache.close()
    for use in (partial(cache.has, whole), partial(cache.take_in, arrived), partial(cache.take_in_left, arrived)):
        with pytest.raises(HashingStopped):
            use()
    again = BlobCache(tmp_path, 1000)
    assert again.has(whole)
    assert again.take_in_left(arrived)
