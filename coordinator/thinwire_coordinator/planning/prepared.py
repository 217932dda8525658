"""Looks at a folder of prepared data."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.planning.facts import DataFacts
from thinwire_proto.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.needs import CACHE_BYTES_MIN

PREPARE = "make one with `thinwire-coordinator prepare`"


def read_prepared(folder: Path) -> Manifest:
    """The manifest of a folder that `prepare` wrote. Raises ConfigError."""
    try:
        return read_manifest(Manifest, (folder / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        what = "has no " + MANIFEST_FILE if folder.is_dir() else "is no folder"
        raise ConfigError(f"{folder} {what}, so it has no prepared data; {PREPARE}") from None
    except (OSError, PayloadError) as error:
        raise ConfigError(f"{folder / MANIFEST_FILE}: {error}; {PREPARE}") from None


def sizes_of_manifest(manifest: Manifest, weights: dict[str, float] | None = None) -> DataFacts:
    """The facts of prepared data. Sources that the weights leave out are not counted as tokens."""
    used = [source for source in manifest.sources if not weights or source.name in weights]
    shards = [shard for source in manifest.sources for shard in (*source.train, *source.held_out)]
    return DataFacts(
        tokens={source.name: sum(shard.tokens for shard in source.train) for source in used},
        bytes=sum(shard.size for shard in shards),
        node_bytes_min=CACHE_BYTES_MIN,
        vocabulary=manifest.vocabulary,
        unused=tuple(source.name for source in manifest.sources if source not in used),
    )
