"""The cache of the Hugging Face Hub on this machine: where it is, and what it holds. Reads its folders alone, so the
package huggingface_hub is not needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HUB = "https://huggingface.co"


class Origin(NamedTuple):
    """A repository of the Hub, such as Qwen/Qwen3-8B, and a commit of it."""

    repository: str
    revision: str

    @property
    def url(self) -> str:
        """The address of a folder with the files by their names."""
        return f"{HUB}/{self.repository}/resolve/{self.revision}"


def user_cache() -> Path:
    """The folder that programs of this user keep caches in. Raises RuntimeError if there is no home folder."""
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it has fetched. Raises RuntimeError if there is no home folder."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := os.environ.get(name):
            return Path(given).expanduser()
    home = os.environ.get("HF_HOME")
    return (Path(home).expanduser() if home else user_cache() / "huggingface") / "hub"


def is_repository(name: str) -> bool:
    """Whether a name has the form of a repository's."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def folder_of(name: str) -> Path:
    """The folder with a model or a tokenizer that a name stands for, if it is there: itself, or that of the newest
    revision of a repository in the cache."""
    path = Path(name)
    return path if path.exists() or not is_repository(name) else _snapshot_of(name) or path


def _snapshot_of(repository: str) -> Path | None:
    try:
        held = hub_cache() / f"models--{repository.replace('/', '--')}"
        revision = (held / "refs" / "main").read_text(encoding="ascii").strip()
        folder = held / "snapshots" / Path(revision).name
    except (OSError, RuntimeError, ValueError):
        return None
    return folder if folder.is_dir() else None


def origin_of(folder: Path) -> Origin | None:
    """The repository and the revision that a folder of the cache is a snapshot of; None: it is no such folder."""
    held, kind = folder.resolve().parents[1:2], folder.resolve().parent.name
    if kind != "snapshots" or not held or not held[0].name.startswith("models--"):
        return None
    return Origin(held[0].name.removeprefix("models--").replace("--", "/", 1), folder.resolve().name)


def cached_files(hash: str, name: str) -> Iterator[Path]:
    """Files of the cache that may have this SHA-256, or this name in a repository; the first by the hash."""
    try:
        held = hub_cache()
        yield from held.glob(f"models--*/blobs/{hash}")  # large files are named so
        if name:  # where a system has no links, files are here alone
            yield from held.glob(f"models--*/snapshots/*/{name}")
    except (OSError, RuntimeError):
        return
