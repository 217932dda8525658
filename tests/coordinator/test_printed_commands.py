"""Tests that commands which are printed can be pasted into a shell, whatever the paths in them are."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from deploy.local_swarm.gossip_summary import print_model
from thinwire_coordinator.hall.access.organizer import FILE, open_organizer_secret
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.invite_address import publish_address
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.keys import KEY_FILE, open_key
from thinwire_proto.wire.service_pb2 import StatusReply


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "st ate [x]"
    folder.mkdir()
    return folder


def test_serve(folder: Path) -> None:
    with pytest.raises(ConfigError) as told:
        open_existing_identity(folder)
    assert str(told.value).endswith(f"; run: thinwire-coordinator serve --state-dir '{folder}'")


def test_invite(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "thinwire.coordinator")
    settings = CoordinatorSettings(folder, "127.0.0.1:0", None, wait_for=1, evaluate_every=100)
    with closing(AccessStore(folder)) as access:
        publish_address(settings, access, 7700, bytes(32), public_tls=False).close()
    assert caplog.messages[-1].endswith(f"make one: thinwire-coordinator invite --state-dir '{folder}'")


@pytest.mark.skipif(os.name == "nt", reason="needs the modes of POSIX")
@pytest.mark.parametrize(
    ("name", "read"), [(KEY_FILE, open_key), (FILE, lambda path: open_organizer_secret(path.parent))]
)
def test_chmod(folder: Path, name: str, read: Callable[[Path], object]) -> None:
    (folder / name).write_bytes(b"x" * 32)
    (folder / name).chmod(0o644)
    with pytest.raises(ConfigError) as told:
        read(folder / name)
    assert str(told.value).endswith(f"run: chmod 600 '{folder / name}'")


def test_export(folder: Path) -> None:
    out = io.StringIO()
    print_model(folder, StatusReply(), Console(file=out, width=40))
    printed = out.getvalue().splitlines()[-1]
    assert printed.strip() == f"thinwire-coordinator export --state-dir '{folder / 'coordinator'}' --out MODEL"
