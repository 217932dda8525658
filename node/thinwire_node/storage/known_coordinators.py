"""A node's file about its run's coordinators: their addresses, and the newest promotion among them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from thinwire_proto.identity.terms import NO_PROMOTION, ProvenTerm

FILE = "coordinators.json"


@dataclass(frozen=True)
class KnownCoordinators:
    """given: HOST:PORT that the volunteer's invite had. last: the one that admitted the node last, if it was another
    one. standby: as the coordinator announced it last; empty: never. term: after the newest promotion that was proven.
    """

    given: str = ""
    last: str = ""
    standby: str = ""
    term: ProvenTerm = NO_PROMOTION

    def addresses(self, given: str) -> list[str]:
        """Addresses to try for the coordinator, the likeliest first. given: by the invite that the node was started
        with."""
        last = self.last if given == self.given else ""
        return list(dict.fromkeys(address for address in (last, given, self.standby) if address))

    def admitted_by(self, address: str, given: str) -> KnownCoordinators:
        """The same after a coordinator at an address has admitted the node."""
        if address == given and not self.last:
            return self
        return replace(self, given=given, last=address)

    def written(self) -> bytes:
        fields = {"given": self.given, "last": self.last, "standby": self.standby}
        return json.dumps(fields | {"term": self.term.number, "signature": self.term.signature.hex()}).encode()


def read_known(path: Path) -> KnownCoordinators:
    """Read the file; without contents if it is missing or cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        term = ProvenTerm(int(found["term"]), bytes.fromhex(found["signature"]))
        return KnownCoordinators(str(found["given"]), str(found["last"]), str(found["standby"]), term)
    except (OSError, ValueError, KeyError, TypeError):
        return KnownCoordinators()


class Route:
    """The address that a node tries next. known: what it keeps. given: by the invite that it was started with."""

    def __init__(self, known: KnownCoordinators, given: str) -> None:
        self._given = given
        self._tried = 0
        self.address = known.addresses(given)[0]

    def joined(self) -> None:
        self._tried = 0

    def failed(self, known: KnownCoordinators) -> bool:
        """The coordinator did not answer there: go to the next address. Returns whether it was not tried yet since the
        node last joined, or since all were tried in vain."""
        found = known.addresses(self._given)
        at = found.index(self.address) if self.address in found else -1
        self.address = found[(at + 1) % len(found)]
        self._tried += 1
        return self._tried % len(found) != 0
