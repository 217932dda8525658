"""The checks of a report. Pure: facts in, a refusal with its reason out; a refused report changes nothing."""

from __future__ import annotations

import re

from thinwire_common.reach.hosts import HOST
from thinwire_coordinator.gossip.directory import Directory
from thinwire_coordinator.gossip.participants import Heard, Participant
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.chain import GENESIS
from thinwire_proto.gossip.reports import SignedReport
from thinwire_proto.identity.keys import PublicKey

ADDRESS = re.compile(rf"({HOST.pattern}|):[0-9]{{1,5}}")
ADDRESS_LENGTH_MAX = 263
"""A host name of 255 letters, brackets and a port."""


def heard_of(signed: SignedReport, key: PublicKey, address: str = "") -> Heard:
    """The part of a report that the directory keeps. address: where its peers reach the node."""
    report = signed.report
    place = frozenset(report.missed), address, key.data, report.head == GENESIS
    return Heard(signed.node, report.topology, report.iteration, *place)


def address_of(listens_at: str, host: str) -> str:
    """The address of a node, HOST:PORT. host: the IP address that its call comes from, for a node that names its port
    alone. Raises PayloadError."""
    if not listens_at:
        return ""
    if len(listens_at) > ADDRESS_LENGTH_MAX or not ADDRESS.fullmatch(listens_at):
        raise PayloadError("the report names an address that is not HOST:PORT")
    if not listens_at.startswith(":"):
        return listens_at
    return f"[{host}]{listens_at}" if ":" in host else f"{host}{listens_at}"


def why_refuse(signed: SignedReport, key: PublicKey, directory: Directory) -> Denied | None:
    """key: of the node whose session it is. A report may name samples whose earlier report got no answer, or whose
    lease has gone to others while the node was away; these count nothing."""
    report, known = signed.report, directory.by_node.get(signed.node)
    if problem := report.problem():
        return Denied(DoorReason.MALFORMED, f"the report is malformed: {problem}")
    if not key.verifies(signed.signature, signed.statement):
        return Denied(DoorReason.BAD_SIGNATURE, "the report is not signed by the key of the node (see sign_report)")
    if text := directory.why_refuse(heard_of(signed, key)):
        back = known is not None and report.iteration < known.iteration
        return Denied(DoorReason.ITERATION_BACK if back else DoorReason.MALFORMED, text)
    return None


def is_repeated(signed: SignedReport, known: Participant | None) -> bool:
    """Whether these samples were reported before, and the answer did not arrive: as after a restart."""
    mark = signed.report.trained_through
    return known is not None and mark is not None and known.trained_through == mark
