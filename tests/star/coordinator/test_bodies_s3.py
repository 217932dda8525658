"""Tests of bodies in an object store, with real requests to an S3 server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config
import pytest
from moto.server import ThreadedMotoServer

from support.sealed_run import make_run
from thinwire_coordinator.hall.capacity import measure
from thinwire_coordinator.hall.ledger.bodies import Bodies, StoreFails
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.kind import star_forecast
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_coordinator.verify import verify
from thinwire_node.data_addresses import DataAddresses
from thinwire_node.session.download import SourceFailed, download
from thinwire_proto.errors import LedgerError

S3 = DataAddresses(frozenset({"s3"}))

pytestmark = pytest.mark.filterwarnings("default")  # botocore and moto emit warnings


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of a folder in a bucket. The environment has the settings that s3fs needs."""
    server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("thinwire-test")
        yield "s3://thinwire-test/run"
    server.stop()


def test_a_bucket_is_not_made_by_mistake_and_a_folder_of_the_console_is_empty(bucket: str) -> None:
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    with pytest.raises(StoreFails, match="s3://thinwire-tset/run"):
        Bodies("s3://thinwire-tset/run").check_writable()
    assert not files.exists("thinwire-tset")
    files.pipe_file("thinwire-test/by-console/", b"")
    assert Bodies("s3://thinwire-test/by-console").everything() == []


def test_a_run_with_its_bodies_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "bodies.url").write_text(bucket)
    make_run(tmp_path, 4)
    assert not (tmp_path / "updates").exists()
    state = open_state(tmp_path)
    assert state.bodies.names() == {state.ledger.row(step).body_hash.hex() for step in range(4)}
    said: list[str] = []
    verify(tmp_path, said.append)
    assert "replayed 4 updates from the first state" in "\n".join(said)
    assert [need.location for need in measure(state, None, star_forecast)[1]] == [str(tmp_path)]

    state.bodies.put(b"sealed by nobody")
    assert len(state.bodies.names()) == 5
    Retention(state, None).sweep()
    assert len(state.bodies.names()) == 4
    state.save_snapshot(replica_at_head(state))
    Retention(state, 2).sweep()
    Retention(state, 2).sweep()
    assert state.snapshot_steps() == [2, 4]
    assert len(state.bodies.names()) == 2

    gone = state.ledger.row(3)
    state.bodies.remove([gone.body_hash.hex()])
    with pytest.raises(LedgerError, match="is missing"):
        state.bodies.get(gone.body_hash, gone.body_bytes)
    state.close()


async def test_a_node_reads_a_shard_from_a_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first without credentials, as from a public bucket; then with those of the machine."""
    data = bytes(range(256)) * 100
    bucket_owner = fsspec.filesystem("s3")
    bucket_owner.pipe(f"{bucket}/blobs/shard", data)
    bucket_owner.chmod(f"{bucket}/blobs/shard", acl="public-read")
    part = tmp_path / "shard.part"
    part.write_bytes(data[:1000])
    await download(f"{bucket}/blobs/shard", len(data), part, S3)
    assert part.read_bytes() == data
    bucket_owner.chmod(f"{bucket}/blobs/shard", acl="private")
    monkeypatch.setattr(fsspec.config, "conf", {})
    fsspec.config.set_conf_env(fsspec.config.conf, {"FSSPEC_S3": '{"anon": false}'})
    part.write_bytes(b"")
    await download(f"{bucket}/blobs/shard", len(data), part, S3)
    assert part.read_bytes() == data
    for name, size, says in (
        ("shard", 9, "has 25,600 bytes, and must have 9"),
        ("other", 9, "FileNotFoundError|PermissionError"),
    ):
        with pytest.raises(SourceFailed, match=says):
            await download(f"{bucket}/blobs/{name}", size, tmp_path / "nothing", S3)
    assert not (tmp_path / "nothing").exists()
