"""What `prepare` writes into its folder, so that nothing of it is taken for a text."""

from __future__ import annotations

from pathlib import Path

from thinwire_proto.data.json_tokenizer import TOKENIZER_FILE
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE

WORK_FOLDER = "unfinished"
"""Folder of an interrupted run, below the output folder."""
CLAIM_FILE = "prepare.lock"
"""Locked while `prepare` works. It stays after an interruption, so it tells our unfinished work from foreign files."""
MADE = frozenset({MANIFEST_FILE, BLOBS_FOLDER, WORK_FOLDER, CLAIM_FILE, TOKENIZER_FILE})


def holds_prepared_data(folder: Path) -> bool:
    """Whether a `prepare` has written into a folder, or begun to."""
    whole = (folder / MANIFEST_FILE).is_file() and (folder / BLOBS_FOLDER).is_dir()
    return whole or ((folder / CLAIM_FILE).is_file() and (folder / WORK_FOLDER).is_dir())
