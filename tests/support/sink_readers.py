"""A reader of what the sink of W&B writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32_768
FILE_HEAD_BYTES = 7
HEAD_BYTES = 7
"""Checksum (4), length (2) and kind (1) of a fragment."""
WHOLE, LAST = 1, 4


def wandb_runs(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """The run id and the logged rows of each offline run in `folder`/wandb, oldest first."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415 - slow

    messages: Any = wandb_internal_pb2
    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        rows: list[dict[str, Any]] = []
        run_id = ""
        for data in _records(path.read_bytes()):
            record = messages.Record.FromString(data)
            run_id = record.run.run_id or run_id
            if record.HasField("history"):
                rows.append(_row(record.history))
        found.append((run_id, rows))
    return found


def _row(history: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, whose fragments never cross the end of a block."""
    at, record = FILE_HEAD_BYTES, b""
    while at + HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD_BYTES:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + HEAD_BYTES + size > len(data):
            return  # still being written
        record += data[at + HEAD_BYTES : at + HEAD_BYTES + size]
        at += HEAD_BYTES + size
        if kind in (WHOLE, LAST):
            yield record
            record = b""
