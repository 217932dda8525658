"""What was written in format 1 is read for ever: runs, exports and invites. See tests/golden/README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.fork_server import run
from support.real import RealSwarm, real_swarm
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_proto.identity.invite import parse_invite
from thinwire_proto.identity.keys import KEY_FILE

GOLDEN = Path(__file__).parents[1] / "golden" / "format_1"
MODEL = """
[model]
width = 32
layers = 1
heads = 2
hidden = 32
context = 32
"""


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


@pytest.fixture
def swarm(golden: Path, tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as swarm:
        shutil.copytree(golden / "coordinator", swarm.state)
        for private in (swarm.state / KEY_FILE, swarm.state / "organizer.secret"):
            private.chmod(0o600)  # git keeps no such mode
        yield swarm


def test_a_run_is_verified_and_exports_the_same_model(golden: Path, swarm: RealSwarm) -> None:
    facts = json.loads((golden / "facts.json").read_text())
    verified = swarm.verify()
    assert facts["verified"] == verified.splitlines()[-1]
    assert all(amendment in verified for amendment in facts["amendments"])
    done = swarm.command("export", "--out", str(swarm.folder / "model"))
    assert done.returncode == 0, done.stderr
    weights = "model.safetensors"
    assert (swarm.folder / "model" / weights).read_bytes() == (golden / "export" / weights).read_bytes()


def test_an_export_begins_another_run(golden: Path, tmp_path: Path) -> None:
    facts = json.loads((golden / "facts.json").read_text())
    run_file, new = tmp_path / "RUN.toml", tmp_path / "new"
    run_file.write_text(MODEL)
    command = [
        "thinwire-coordinator",
        "import",
        str(golden / "export"),
        "--run",
        str(run_file),
        "--state-dir",
        str(new),
    ]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    with closing(open_state(new, read_only=True)) as state:
        lineage = state.contract.lineage
        assert lineage is not None
        assert (lineage.contract, lineage.fingerprint) == (facts["contract"], facts["fingerprint"])
        assert f"{state.load_snapshot(0).model_fingerprint():016x}" == facts["fingerprint"]


def test_an_invite_is_read(golden: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(golden / "coordinator", tmp_path / "coordinator")  # a reader leaves files beside a database
    with closing(open_state(copy, read_only=True)) as state:
        coordinator = state.ledger.signatures.coordinator
    invite = parse_invite((golden / "invite").read_text())
    assert coordinator is not None
    assert invite.fingerprint == coordinator.fingerprint
    assert invite.token
