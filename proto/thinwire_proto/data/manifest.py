"""The manifest of prepared data: its shards, by source, and its tokenizer. Its SHA-256 is in the contract.

`thinwire-coordinator prepare` writes a folder:

    manifest.json    this, in canonical JSON
    blobs/HASH       shards, and the tokenizer's `tokenizer.json` (format of the `tokenizers` library)

A shard of tokens is their little-endian integers, one after another, without a head. A document ends with the token
`end`, if there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from thinwire_proto.blobs import HASH_PATTERN, Blob
from thinwire_proto.clean_text import clean_name
from thinwire_proto.contract.sections import Section, canonical_json
from thinwire_proto.errors import PayloadError

MANIFEST_FILE = "manifest.json"
BLOBS_FOLDER = "blobs"


def _visible(name: str) -> str:
    """A name that reaches pages, labels and terminals of others."""
    if name != clean_name(name):
        raise ValueError(f"the name {clean_name(name)!r} has signs that cannot be seen, or is too long")
    return name


class File(Section):
    """A file, named by the hash of its contents."""

    hash: str = Field(pattern=HASH_PATTERN)
    size: int = Field(ge=1, le=1 << 40)

    @property
    def blob(self) -> Blob:
        return Blob(self.hash, self.size)


class Shard(File):
    """A shard. tokens: how many tokens it has; of images: how many images. text_bytes: bytes of text in UTF-8 that the
    tokens stand for; 0 if they are not text."""

    tokens: int = Field(ge=1, le=1 << 40)
    text_bytes: int = Field(0, ge=0, le=1 << 50)


FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
"""A name inside of a folder: no separator, no hidden file, no way out of it."""
FileName = Annotated[str, Field(max_length=128, pattern=FILE_NAME)]


class Source(Section):
    """One source of a mixture. held_out: shards of the documents that no node trains on; may be empty."""

    name: Annotated[str, AfterValidator(_visible)] = Field(min_length=1, max_length=64)
    train: tuple[Shard, ...] = Field(strict=False)
    held_out: tuple[Shard, ...] = Field((), strict=False)


class Manifest(Section):
    """The manifest.

    token: type of a token in a shard. tokenizer: hash and size of `tokenizer.json`; None: token i is the byte i.
    end: the token that ends a document. files: other files of the tokenizer, by name, such as
    `tokenizer_config.json` with a chat template.
    """

    version: Literal[1] = 1
    token: Literal["uint8", "uint16", "uint32"] = "uint16"
    vocabulary: int = Field(ge=2, le=1 << 31)
    end: int | None = Field(None, ge=0)
    tokenizer: File | None = None
    files: dict[FileName, File] = Field(default_factory=dict, max_length=64)
    sources: tuple[Source, ...] = Field(min_length=1, max_length=1024, strict=False)

    def blobs(self) -> Iterator[Blob]:
        """Every file that the manifest names."""
        if self.tokenizer is not None:
            yield self.tokenizer.blob
        for file in self.files.values():
            yield file.blob
        for source in self.sources:
            for shard in (*source.train, *source.held_out):
                yield shard.blob

    def written(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))


AnyManifest = TypeVar("AnyManifest", bound=Section)


def read_manifest(kind: type[AnyManifest], data: bytes, expected_hash: str = "") -> AnyManifest:
    """Read a manifest of a kind. Raises PayloadError if it is malformed, or not the one with `expected_hash`."""
    found = hashlib.sha256(data).hexdigest()
    if expected_hash and found != expected_hash:
        raise PayloadError(f"the manifest has hash {found[:16]}…; the contract names {expected_hash[:16]}…")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise PayloadError(f"the manifest cannot be read: {error.errors()[0]['msg']}") from None
