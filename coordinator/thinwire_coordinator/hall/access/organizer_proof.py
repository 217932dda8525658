"""Proof that the organizer asks for the status: the time, signed with the coordinator's key.

Only the organizer's commands can read that key. No secret travels: another program on the coordinator's port learns
only a proof that expires after STATUS_PROOF_S, and that reads the status and no more. Pure: `now` is Unix time in
seconds.
"""

from __future__ import annotations

import re

from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import STATUS_PROOF_S

PROOF = re.compile(r"([0-9]{1,12}):([0-9a-f]{128})")


def organizer_proof(key: SecretKey, now: float) -> str:
    """The proof, as it stands in the metadata `thinwire-organizer`."""
    return f"{round(now)}:{key.sign(statements.organizer(round(now))).hex()}"


def proves_organizer(text: str, key: PublicKey, now: float) -> bool:
    """Whether this proof was made with the secret of `key`, at most STATUS_PROOF_S ago."""
    found = PROOF.fullmatch(text)
    if found is None or abs(now - int(found[1])) > STATUS_PROOF_S:
        return False
    return key.verifies(bytes.fromhex(found[2]), statements.organizer(int(found[1])))
