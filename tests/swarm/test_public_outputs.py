"""All that a coordinator tells strangers and other nodes, and hands on, tells nothing of a volunteer but the name."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.raw_calls import join
from support.raw_node import RawNode, opened
from support.real import RealSwarm, real_swarm, run_text
from thinwire_coordinator.hall.view import RunView
from thinwire_proto.identity.keys import KEY_FILE
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

NAME, ADDRESS = "the-name-she-chose", "192.0.2.77"
OF_THE_LEDGER = {"node_id", "name", "counted", "tokens"}
FOR_THE_ORGANIZER = ("access.sqlite", "identity.key", "organizer.secret", "tls")
"""Files and folders of the state directory that the organizer keeps to themselves."""


class FarNode(RawNode):
    """A node that a proxy passes on, so that its address is not this machine's. rounds: open, so that it is active."""

    rounds: Iterator[pb.Announcement]

    def join(self, **fields: Any) -> pb.JoinReply:
        stub: Any = _Forwarded(SwarmStub(self.channel))
        return join(stub, self.key, self.token, name=NAME, **fields)


class _Forwarded:
    def __init__(self, stub: SwarmStub) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), metadata=(("x-forwarded-for", ADDRESS),))


@pytest.fixture(scope="module")
def ada(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarNode]:
    """A node with a counted contribution, in a swarm whose page strangers can reach."""
    more = ("--tls-proxy", "127.0.0.1", "--tls-proxy-forwards", "--http", "127.0.0.1:0", "--evaluate-every", "1")
    with real_swarm(tmp_path_factory.mktemp("public")) as swarm:
        swarm.coordinator(run_text(50), *more)
        node = FarNode(swarm)
        node.rounds = node.attend()
        assert node.contribute(opened(node.rounds), node.good_payload()).outcome == pb.Receipt.OUTCOME_COUNTED
        assert json.loads(swarm.command("nodes", "--json").stdout)[0]["address"] == ADDRESS
        yield node


def secrets_of(node: FarNode) -> dict[str, bytes]:
    """What must be in no answer and in no file that others get."""
    swarm = node.swarm
    return {
        "address": ADDRESS.encode(),
        "session": node.secret.encode(),
        "token": swarm.token,
        "token in hexadecimal": swarm.token.hex().encode(),
        "invite": str(swarm.invite).encode(),
        "secret of the organizer": (swarm.state / "organizer.secret").read_bytes().strip(),
        "key of the coordinator": (swarm.state / KEY_FILE).read_bytes(),
        "key of the node": node.key.data,
    }


def got(swarm: RealSwarm, path: str) -> tuple[int, bytes]:
    """The answer of the page to a stranger; of a stream without an end, its beginning."""
    connection = http.client.HTTPConnection(urlsplit(str(swarm.ready["page"])).netloc, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    data = answer.read1() if answer.getheader("content-type", "").startswith("text/event-stream") else answer.read()
    connection.close()
    return answer.status, data


def test_no_answer_to_a_stranger_tells_more_than_the_name(ada: FarNode) -> None:
    swarm = ada.swarm
    served = got(swarm, "/nowhere")[1].decode().partition("available:")[2]
    paths = [path.strip() for path in served.split(",")]
    assert {"/metrics", "/api/status", "/api/history", "/api/live", "/history.csv", "/organizer/state"} <= set(paths)
    answers = {path: got(swarm, path) for path in [*paths, "/api/status?nodes=200&sort=-early"]}
    with swarm.channel() as channel:
        status = SwarmStub(channel).Status(pb.StatusRequest(fingerprint=True), timeout=10)
    answers["Status"] = 200, status.SerializeToString()
    for path, (_, data) in answers.items():
        for what, secret in secrets_of(ada).items():
            assert secret not in data, f"{path} tells the {what}"
    assert answers["/organizer/state"][0] == 401
    for path in ("/metrics", "/history.csv", "/api/history", "/livez", "/readyz"):
        assert NAME.encode() not in answers[path][1]
        assert ada.key.public.node_id[:8].encode() not in answers[path][1]

    listed = json.loads(answers["/api/status?nodes=200&sort=-early"][1])["node_list"]
    assert (listed["sort"], listed["sorts"]) == (
        "tokens",
        ["name", "rounds", "tokens"],
    )  # the order tells nothing either
    (row,) = listed["rows"]
    assert {key for key, value in row.items() if value is not None} == RunView.public
    assert (row["name"], row["rounds"]) == (NAME, 1)
    (node,) = status.nodes
    assert {field.name for field, _ in node.ListFields()} == OF_THE_LEDGER
    assert (node.name, node.counted, status.nodes_active, status.nodes_in_full) == (NAME, 1, 1, False)


def test_nothing_that_is_handed_on_tells_more_than_the_name(ada: FarNode) -> None:
    """To another node, and to whoever gets a copy of the ledger, the updates and the snapshots."""
    swarm = ada.swarm
    other, found = RawNode(swarm), dict[str, bytes]()
    found["Attend"] = next(other.attend()).SerializeToString()
    found["Updates"] = next(other.stub.Updates(pb.UpdatesRequest(from_step=0))).SerializeToString()
    for call, request in (("Snapshot", pb.SnapshotRequest()), ("Corpus", pb.CorpusRequest())):
        found[call] = b"".join(part.SerializeToString() for part in getattr(other.stub, call)(request))
    for path in sorted(swarm.state.rglob("*")):
        name = path.relative_to(swarm.state).parts[0]
        if path.is_file() and not name.startswith(FOR_THE_ORGANIZER):
            found[str(path)] = path.read_bytes()
    assert any("ledger.sqlite" in name for name in found)
    for name, data in found.items():
        for what, secret in secrets_of(ada).items():
            assert secret not in data, f"{name} tells the {what}"
    log = Path(swarm.processes[0].log).read_bytes()
    for what, secret in secrets_of(ada).items():
        assert secret not in log, f"the log tells the {what}"
    for path in sorted(swarm.state.rglob("*")):
        if path.is_file() and path.relative_to(swarm.state).parts[0].startswith(FOR_THE_ORGANIZER):
            assert path.name == "ca.pem" or not path.stat().st_mode & 0o077, f"others can read {path}"
