"""A pointer of Git LFS is told from a file, and from a text about Git LFS."""

from __future__ import annotations

import pytest

from thinwire_proto.lfs_pointer import POINTER_BYTES_MAX, is_lfs_pointer

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 12345671\n".encode()
WITH_EXTENSION = POINTER.replace(b"\noid", b"\next-0-foo sha256:" + b"0b" * 32 + b"\noid")


@pytest.mark.parametrize(
    "begin",
    [POINTER, POINTER.removesuffix(b"\n"), POINTER.replace(b"\n", b"\r\n"), WITH_EXTENSION],
    ids=["usual", "without the last line's end", "of a checkout on Windows", "with an extension"],
)
def test_a_pointer(begin: bytes) -> None:
    assert is_lfs_pointer(begin)


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        POINTER[:80],
        POINTER + b"This is what a pointer looks like.\n",
        b"A pointer:\n" + POINTER,
        POINTER.replace(b"sha256:0a", b"sha256:xx"),
        POINTER + POINTER,
        POINTER.replace(b"\noid", b"\na " + b"b" * POINTER_BYTES_MAX + b"\noid"),
    ],
    ids=["empty", "truncated", "a text about pointers", "quoted", "not a hash", "twice", "too long"],
)
def test_no_pointer(begin: bytes) -> None:
    assert not is_lfs_pointer(begin)
