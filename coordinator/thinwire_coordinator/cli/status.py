"""The command `thinwire-coordinator status`."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.json_format import MessageToJson
from rich.console import Console

from thinwire_coordinator.cli.options import DEFAULT_ADDRESS
from thinwire_coordinator.cli.status_client import ask_status, ask_status_of
from thinwire_coordinator.cli.status_table import table
from thinwire_proto.wire.service_pb2 import StatusReply


def print_status(coordinator: str | None, state_dir: Path | None, *, as_json: bool = False) -> None:
    """Print the status of a swarm. Raises RemoteError if its coordinator does not answer.

    state_dir: of the organizer who asks. coordinator: None takes the one that runs on state_dir, or else the default.
    """
    status = ask_status(coordinator or DEFAULT_ADDRESS) if state_dir is None else ask_status_of(state_dir, coordinator)
    if as_json:
        print(json_of(status))
    else:
        Console().print(table(status))


def json_of(status: StatusReply) -> str:
    """All fields of a status, by their names on the wire. Numbers of 64 bits are strings, as protobuf writes them."""
    return MessageToJson(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
