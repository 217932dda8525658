"""The base of the specs of prepared data: a manifest, and shards that nodes fetch as they need them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from thinwire_proto.blobs import HASH_PATTERN, Blob
from thinwire_proto.clean_text import clean_name
from thinwire_proto.contract.data import DataSpec
from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.sections import Addresses, Section


def _visible(name: str) -> str:
    """A name that reaches pages, labels and terminals of others."""
    if name != clean_name(name):
        raise ValueError(f"the name {clean_name(name)!r} has signs that cannot be seen, or is too long")
    return name


SourceName = Annotated[str, AfterValidator(_visible), Field(min_length=1, max_length=64)]


class File(Section):
    """A file, named by the hash of its contents."""

    hash: str = Field(pattern=HASH_PATTERN)
    size: int = Field(ge=1, le=1 << 40)

    @property
    def blob(self) -> Blob:
        return Blob(self.hash, self.size)


class Shard(File):
    """A shard. tokens: how many tokens it has; of images: how many images. text_bytes: bytes of text in UTF-8 that the
    tokens stand for, of conversations those that count; 0 if they are not text. counted: of a shard of conversations,
    how many tokens count; 0 if it holds text, of which all count."""

    tokens: int = Field(ge=1, le=1 << 40)
    text_bytes: int = Field(0, ge=0, le=1 << 50)
    counted: int = Field(0, ge=0, le=1 << 40)

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `counted` if it says nothing, so that shards of text are written as they always were."""
        found: dict[str, Any] = written(self)
        return found if self.counted else {key: value for key, value in found.items() if key != "counted"}


class PreparedSpec(DataSpec):
    """Prepared data. A node fetches the manifest from the coordinator, and only the shards that its leases need."""

    LOCAL: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = ""
    """the folder that `thinwire-coordinator prepare` wrote; only in a run file"""
    urls: Addresses = ()
    """addresses of copies of that folder's `blobs`: https://…, s3://…, gs://…; nodes fetch shards from there, and from
    the coordinator only if that fails"""
    manifest_hash: str = Field("", pattern=f"^({HASH_PATTERN[1:-1]})?$")
    """SHA-256 of the manifest"""
    manifest_bytes: int = Field(0, ge=0, le=1 << 32)
    """size of the manifest"""

    def check_complete(self, model: ModelSpec) -> None:
        if not self.manifest_hash:
            raise ValueError("data.manifest_hash must name the manifest")
