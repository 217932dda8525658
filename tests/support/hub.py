"""The cache of the Hugging Face Hub, laid out as huggingface_hub does it."""

from __future__ import annotations

import hashlib
from pathlib import Path

REVISION = "b968826d9c46dd6066d109eabc6255188de91218"


def cached(cache: Path, repository: str, folder: Path) -> Path:
    """Copy a folder with a model into a Hub's cache, and return the folder of its revision. cache: that of the user."""
    held = cache / "huggingface" / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = held / "snapshots" / REVISION
    for made in (held / "blobs", held / "refs", snapshot):
        made.mkdir(parents=True)
    (held / "refs" / "main").write_text(REVISION)
    for file in folder.iterdir():
        hash = hashlib.sha256(file.read_bytes()).hexdigest()
        (held / "blobs" / hash).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", hash))
    return snapshot
