"""Tests of the address of bodies: the run keeps it, a different one is refused, and errors name missing packages."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from support.small import MODEL
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.ledger.bodies import Bodies, location_of
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import check_bodies, open_state
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError, LocalError

RUN = RunSpec.model_validate({"model": MODEL})


def test_the_address_is_kept_with_the_run(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    folder.mkdir()
    create_state(folder, RUN, str(elsewhere) + "/")
    state = open_state(folder)
    assert state.bodies.location == str(elsewhere)
    state.bodies.put(b"body")
    assert len(list(elsewhere.iterdir())) == 1
    check_bodies(state, str(elsewhere))
    with pytest.raises(ConfigError, match=r"the updates of this run are at .*/elsewhere; leave --bodies out"):
        check_bodies(state, str(tmp_path / "another"))
    assert not (tmp_path / "another").exists()
    state.close()


def test_a_new_run_needs_an_empty_address(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    Bodies(str(taken)).put(b"of another run")
    with pytest.raises(ConfigError, match="taken is not empty: give --bodies an address"):
        create_state(tmp_path, RUN, str(taken))
    create_state(tmp_path, RUN, str(tmp_path / "updates"))  # the default
    assert not (tmp_path / "bodies.url").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/run", "s3://bucket/run: needs s3fs; pip install 'thinwire[s3]'"),
        ("gs://bucket/run", "gs://bucket/run: needs gcsfs; pip install 'thinwire[gcs]'"),
        ("abfs://bucket/run", "abfs://bucket/run: cannot be opened here: Install adlfs"),
        ("cloud://bucket", "cloud://bucket: not an address that updates can be stored at: Protocol not known: cloud"),
    ],
)
def test_an_address_that_cannot_be_opened_names_the_missing_package(
    url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for protocol, package in (("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")):
        monkeypatch.delitem(_registry, protocol, raising=False)
        monkeypatch.setitem(sys.modules, package, None)  # imports fail as if it were not installed
    with pytest.raises(ConfigError) as error:
        location_of(url)
    assert said in str(error.value)


async def test_a_coordinator_whose_store_cannot_be_used_blames_the_address_and_not_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*more: Any, **named: Any) -> None:
        raise ValueError("unable to locate credentials")

    monkeypatch.setattr(MemoryFileSystem, "makedirs", fail)
    settings = CoordinatorSettings(tmp_path, "127.0.0.1:0", RUN, wait_for=1, evaluate_every=100)
    coordinator = Coordinator(replace(settings, bodies="memory://failing"))
    with pytest.raises(LocalError, match=r"memory://failing: unable to .*; check the address of --bodies") as raised:
        await coordinator.run(asyncio.Event())
    assert "disk" not in str(raised.value)
