"""The access store: who may join the run, by the file access.sqlite in the coordinator's state directory."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.hall.access.ban_table import BanTable
from thinwire_coordinator.hall.access.bans import ORGANIZER
from thinwire_coordinator.hall.access.database import FILE, Database
from thinwire_coordinator.hall.access.invite_table import InviteTable
from thinwire_coordinator.hall.access.invites import ADDRESS_EVERY_S, InviteRecord, network_of, why_not
from thinwire_coordinator.hall.access.node_table import NodeRecord, NodeTable
from thinwire_coordinator.hall.access.port import Candidate
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_coordinator.hall.access.settings_table import SettingsTable
from thinwire_coordinator.hall.access.standing_table import StandingTable

SEEN_EVERY_S = 60.0
"""The interval between records of a node that joins again and again."""
NO_INVITE = 0
"""The number in place of an invite's for nodes that came without one."""


class AccessStore:
    """The tables of a state directory, and the decision who may join. Raises LocalError if the file cannot be used.

    needs_invite: whether a node needs one, unless it enrolled with one; without, everybody is enrolled who is not
    banned.
    """

    def __init__(self, folder: Path, *, needs_invite: bool = True) -> None:
        self._db = Database(folder / FILE)
        self._needs_invite = needs_invite
        self.invites = InviteTable(self._db)
        self.nodes = NodeTable(self._db)
        self.bans = BanTable(self._db)
        self.settings = SettingsTable(self._db)
        self.standings = StandingTable(self._db)

    def close(self) -> None:
        self._db.close()

    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        """See `port.Admits`."""
        node = candidate.public_key.node_id
        ban = self.bans.of(node)
        if ban is not None and ban.holds(now):
            return ban.denied(now)
        known = self.nodes.of(node)
        if known is not None and (known.invite != NO_INVITE or not self._needs_invite):
            self._see(known, candidate, now)
            return None
        with self._db.transaction():  # so that two nodes cannot both have the last use of an invite
            invite, denied = self._invite_of(candidate, now)
            if denied is None:
                self._enrol(candidate, invite, now)
        return denied

    def revoke(self, number: int, now: float, *, nodes: bool = False, by: str = ORGANIZER) -> list[str]:
        """Revoke an invite. nodes: also ban the nodes that enrolled with it. Returns the ids of those newly banned."""
        banned = []
        with self._db.transaction():
            self.invites.revoke(number, now)
            for node in self.nodes.of_invite(number) if nodes else ():
                ban = self.bans.of(node)
                if ban is None or ban.until is not None or not ban.holds(now):
                    self.bans.ban(node, None, f"invite {number} was revoked", by, now)
                    banned.append(node)
        return banned

    def _invite_of(self, candidate: Candidate, now: float) -> tuple[int, Denied | None]:
        """The number of the invite that admits a candidate, or why none does."""
        if not self._needs_invite:
            return NO_INVITE, None
        if not candidate.token:
            text = "this coordinator does not know the node; give the invite: thinwire-node start INVITE"
            return NO_INVITE, Denied(DoorReason.NO_INVITE, text)
        invite = self.invites.of_token(candidate.token)
        if invite is None:
            text = "this coordinator has not made this invite; ask the organizer for a new one"
            return NO_INVITE, Denied(DoorReason.UNKNOWN_TOKEN, text)
        return invite.number, why_not(invite, self._enrolled_from(invite, candidate, now), now)

    def _enrolled_from(self, invite: InviteRecord, candidate: Candidate, now: float) -> int:
        network = network_of(candidate.address)
        return self.nodes.enrolled_from(invite.number, network, now - ADDRESS_EVERY_S) if invite.is_open else 0

    def _enrol(self, candidate: Candidate, invite: int, now: float) -> None:
        key, address = candidate.public_key, candidate.address
        self.invites.use(invite)
        self.nodes.enrol(
            NodeRecord(key.node_id, key.data, candidate.name, invite, now, network_of(address), now, address)
        )

    def _see(self, known: NodeRecord, candidate: Candidate, now: float) -> None:
        same = (known.name, known.address) == (candidate.name, candidate.address)
        if not same or now - known.seen >= SEEN_EVERY_S:
            self.nodes.see(known.node, candidate.name, candidate.address, now)
