"""A coordinator does not serve a blob that its disk has damaged, and tells its organizer once."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest

from thinwire_coordinator.hall.rpc.files import ServedBlobs

DATA = bytes(range(256)) * 40


def write(folder: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    (folder / name).write_bytes(data)
    return name


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_whole_blob_is_served_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    blobs, name = ServedBlobs(tmp_path), write(tmp_path, DATA)
    assert await blobs.find(name) == (tmp_path / name, "")
    path, problem = await blobs.find("ab" * 32)
    assert (path.name, problem) == ("ab" * 32, f"this coordinator does not have the blob {'ab' * 8}…")


async def test_a_damaged_blob_is_refused_and_told_once_until_it_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blobs, name = ServedBlobs(tmp_path), write(tmp_path, DATA)
    path = tmp_path / name
    path.write_bytes(DATA[:-1] + b"?")
    found = await asyncio.gather(*(blobs.find(name) for _ in range(10)))
    found.append(await blobs.find(name))
    assert {problem for _, problem in found} == {
        f"this coordinator's copy of the blob {name[:16]}… is damaged; its organizer must restore it"
    }
    assert said(caplog) == [
        f"{path} is damaged: its bytes do not match its hash; restore it from the newest copy that you have, "
        "and start again"
    ]
    path.write_bytes(DATA)
    assert (await blobs.find(name))[1] == ""
    path.unlink()
    assert "does not have the blob" in (await blobs.find(name))[1]


@pytest.mark.parametrize("call", ["open", "stat"])
async def test_a_blob_that_cannot_be_read_for_a_while_is_served_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Such as too many open files, or a network disk that is away: nothing is damaged, so nothing is to be restored."""
    blobs, name = ServedBlobs(tmp_path), write(tmp_path, DATA)

    def failing(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, call, failing)
        problems = {(await blobs.find(name))[1] for _ in range(3)}
    assert problems == {f"this coordinator cannot read its copy of the blob {name[:16]}… now: Too many open files"}
    assert said(caplog) == [
        f"{tmp_path / name} cannot be read now: Too many open files; it is tried again when a node next asks for it"
    ]
    assert (await blobs.find(name))[1] == ""
