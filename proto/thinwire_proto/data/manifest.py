"""The manifest of prepared data: its shards, by source, and its tokenizer. Its SHA-256 is in the contract.

`thinwire-coordinator prepare` writes a folder:

    manifest.json    this, in canonical JSON
    blobs/HASH       shards, and the tokenizer's `tokenizer.json` (format of the `tokenizers` library)

A shard of tokens is their little-endian integers, one after another, without a head. A document ends with the token
`end`, if there is one.

A shard of conversations is rows of `context + 1` tokens in the same form, each followed by as many marks of one byte
(`thinwire_proto.data.conversations`). The template that made the conversations' text is `files["chat_template.jinja"]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from thinwire_proto.blobs import Blob
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract.data.prepared import File, Shard, SourceName
from thinwire_proto.contract.sections import Section, canonical_json
from thinwire_proto.errors import PayloadError

MANIFEST_FILE = "manifest.json"
BLOBS_FOLDER = "blobs"


CHAT_TEMPLATE_FILE = "chat_template.jinja"
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
"""A name inside of a folder: no separator, no hidden file, no way out of it."""
FileName = Annotated[str, Field(max_length=128, pattern=FILE_NAME)]


class Source(Section):
    """One source of a mixture. held_out: shards of the documents that no node trains on; may be empty."""

    name: SourceName
    train: tuple[Shard, ...] = Field(strict=False)
    held_out: tuple[Shard, ...] = Field((), strict=False)


class Conversations(Section):
    """The form of the conversations in a manifest. context: tokens that a row predicts. packed: whether a row may hold
    more than one conversation, or pair. preferences: all sources have pairs of conversations, a chosen and a rejected
    one."""

    context: int = Field(ge=2, le=1 << 24)
    packed: bool
    preferences: bool = False


class Manifest(Section):
    """The manifest.

    token: type of a token in a shard. tokenizer: hash and size of `tokenizer.json`; None: token i is the byte i.
    end: the token that ends a document. files: other files of the tokenizer, by name, such as
    `tokenizer_config.json`. conversations: None if there are none.
    """

    version: Literal[1] = 1
    token: Literal["uint8", "uint16", "uint32"] = "uint16"
    vocabulary: int = Field(ge=2, le=1 << 31)
    end: int | None = Field(None, ge=0)
    tokenizer: File | None = None
    files: dict[FileName, File] = Field(default_factory=dict, max_length=64)
    sources: tuple[Source, ...] = Field(min_length=1, max_length=1024, strict=False)
    conversations: Conversations | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `conversations` if there are none, so that a manifest of text is written as it always was."""
        found: dict[str, Any] = written(self)
        return found if self.conversations else {key: one for key, one in found.items() if key != "conversations"}

    @model_validator(mode="after")
    def _whole_rows(self) -> Manifest:
        length = 1 + self.conversations.context if self.conversations else 0
        for source in self.sources:
            kinds = {shard.counted > 0 for shard in (*source.train, *source.held_out)}
            if len(kinds) > 1:
                raise ValueError(f"source {source.name} has both text and conversations")
            if False in kinds and self.conversations is not None and self.conversations.preferences:
                raise ValueError(f"source {source.name} has text, and others have preferences")
            for shard in (*source.train, *source.held_out):
                rows = shard.tokens // length if length else 0
                if shard.counted and (rows * length != shard.tokens or not rows <= shard.counted < shard.tokens):
                    raise ValueError(f"shard {shard.hash[:16]}… is not whole rows of conversations")
        return self

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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PayloadError(clean_text(f"the manifest cannot be read: {where}: {first['msg']}")) from None
