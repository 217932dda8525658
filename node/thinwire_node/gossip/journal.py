"""The journal of a node in a gossip run: all that it holds after an iteration, in one file.

The file is written after the messages of the next iteration are made, and before one of them leaves. It is replaced in
one rename. So a node that is killed at any moment finds either the old state, of which no message of the new one was
sent, or the new one, whose messages it sends again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from thinwire_node.storage.state import NodeState
from thinwire_proto.errors import ConfigError, ReplicaError
from thinwire_proto.exact.tensor_files import read_about, read_tensors, save_tensors
from thinwire_proto.gossip.member_state import MemberState

JOURNAL_FILE = "gossip.safetensors"
PASSING_FILE = "gossip.part"
NUMBERS = "member numbers"
MEMBER = "member "  # prefix of the member's tensors
VERSION = "5"


@dataclass(frozen=True)
class JournalEntry:
    """member: see `Member.state`. moments: of the optimizer, by name. steps: those that it has taken. finished:
    iterations. trained_through: the last position of the lease in the parameters. samples: trained in all. unreported:
    samples, and the sum of their losses, that the coordinator may not have heard of."""

    member: MemberState
    moments: dict[str, torch.Tensor]
    steps: int
    finished: int
    trained_through: int | None
    samples: int
    unreported: tuple[int, float] = (0, 0.0)


class GossipJournal:
    """The journal in a state directory. contract: the hash of the run's."""

    def __init__(self, state: NodeState, contract: bytes) -> None:
        self._state = state
        self._contract = contract.hex()

    def write(self, entry: JournalEntry) -> None:
        """Replace the journal. It is synced to disk when this returns. Raises OSError, and then the old one stands."""
        tensors = {MEMBER + name: tensor for name, tensor in entry.member.tensors.items()} | entry.moments
        tensors[NUMBERS] = torch.frombuffer(bytearray(entry.member.numbers), dtype=torch.uint8)
        about = {
            "thinwire gossip": VERSION,
            "contract": self._contract,
            "numbers": json.dumps(
                [entry.steps, entry.finished, entry.trained_through, entry.samples, *entry.unreported]
            ),
        }
        passing = self._state.path(PASSING_FILE)
        save_tensors(tensors, passing, about)
        self._state.rename(passing, JOURNAL_FILE)

    def unreadable(self, why: Exception) -> ConfigError:
        """The error to raise if an entry does not fit."""
        path = self._state.path(JOURNAL_FILE)
        return ConfigError(f"{path} cannot be read: {why}; give another --state-dir to take part as a new node")

    def read(self) -> JournalEntry | None:
        """The newest entry; None if there was none.

        Raises ConfigError if it cannot be read: the node's peers count on what it held."""
        path = self._state.path(JOURNAL_FILE)
        if not path.exists():
            return None
        try:
            about, tensors = read_about(path), read_tensors(path)
            if (about["thinwire gossip"], about["contract"]) != (VERSION, self._contract):
                raise ValueError("it belongs to another run, or was written by another version")
            steps, finished, trained_through, samples, *unreported = json.loads(about["numbers"])
            numbers = bytes(tensors.pop(NUMBERS).numpy())
            moments = {name: tensors.pop(name) for name in sorted(tensors) if not name.startswith(MEMBER)}
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise self.unreadable(error) from None
        member = MemberState(numbers, {name.removeprefix(MEMBER): tensor for name, tensor in tensors.items()})
        return JournalEntry(member, moments, steps, finished, trained_through, samples, (unreported[0], unreported[1]))


def read_x(folder: Path) -> torch.Tensor:
    """The parameters in a journal, float32, flat, also while a node runs. Raises ReplicaError, or FileNotFoundError
    without a journal."""
    try:
        x = read_tensors(folder / JOURNAL_FILE)[f"{MEMBER}x"]
    except (SafetensorError, KeyError) as error:
        raise ReplicaError(f"{folder / JOURNAL_FILE} cannot be read: {error}") from None
    return x
