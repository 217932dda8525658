"""Tests that a coordinator notices a blob that was truncated or deleted, before volunteers do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sealed_run import verified
from support.token_folder import VOCABULARY, write_tokens
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.ledger.checks import check_complete
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import Damaged

MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8, "vocabulary": VOCABULARY}


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Iterator[RunState]:
    write_tokens(tmp_path / "prepared", {"text": [100, 60]})
    data = {"kind": "tokens", "folder": str(tmp_path / "prepared")}
    (tmp_path / "state").mkdir()
    create_state(tmp_path / "state", RunSpec.model_validate({"model": MODEL, "data": data}))
    state = open_state(tmp_path / "state")
    yield state
    state.close()


def blobs(state: RunState) -> list[Path]:
    return sorted(state.blobs.folder.iterdir())


async def serve(state: RunState) -> None:
    settings = CoordinatorSettings(state.folder, "127.0.0.1:0", None, wait_for=1, evaluate_every=100)
    await Coordinator(settings).run(asyncio.Event())


async def test_a_truncated_blob_is_named(state: RunState) -> None:
    path = blobs(state)[1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-7])
    said = f"{path.name} is damaged: it has {size - 7} bytes, and must have {size}; restore it from the newest copy"
    with pytest.raises(Damaged, match=said):
        await serve(state)
    with pytest.raises(Damaged, match=said):
        verified(state.folder)


async def test_missing_blobs_are_named_and_a_copy_without_them_can_be_verified(state: RunState) -> None:
    first, second, _ = blobs(state)
    second.unlink()
    with pytest.raises(Damaged, match=f"{second.name} is missing; restore it from"):
        await serve(state)
    first.unlink()
    with pytest.raises(Damaged, match="and 1 other blobs are missing; restore them from"):
        check_complete(state)
    assert "blobs: 2 files are not here, and were not checked" in verified(state.folder)
