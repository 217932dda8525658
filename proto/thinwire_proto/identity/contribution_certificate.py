"""A certificate of contribution: what the ledger of a run has counted of one node, signed by the run's coordinator.

Anybody can check the signature. Whoever has the ledger can count again: the certificate names the row up to which it
counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from datetime import datetime, timezone

from pydantic import TypeAdapter, ValidationError

from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey

KIND = "thinwire certificate of contribution 1"
TEXT_BYTES_MAX = 4 << 10
NUMBER_MAX = 1 << 63


@dataclass(frozen=True)
class ContributionCertificate:
    """contract, row, coordinator, signature: in hexadecimal; row: hash of the last of the `rows` that are counted.
    coordinator: its public key. node: its id. counted: contributions in these rows, or reports in a gossip run. tokens:
    of these, and run_tokens of all nodes. at: Unix time in seconds. signature: over `statements.certificate`."""

    contract: str
    node: str
    counted: int
    tokens: int
    run_tokens: int
    rows: int
    row: str
    at: int
    coordinator: str = ""
    signature: str = ""

    @property
    def _statement(self) -> bytes:
        numbers = (self.counted, self.tokens, self.run_tokens, self.rows, self.at)
        return statements.certificate(bytes.fromhex(self.contract), self.node, numbers, bytes.fromhex(self.row))

    def signed(self, key: SecretKey) -> ContributionCertificate:
        """The certificate with the signature of the coordinator's key."""
        return replace(self, coordinator=key.public.data.hex(), signature=key.sign(self._statement).hex())

    def check(self, fingerprint: bytes | None = None) -> None:
        """Check the signature. fingerprint: of the key that must have signed it, as an invite has it. Raises
        ConfigError."""
        key = PublicKey(bytes.fromhex(self.coordinator))
        if fingerprint is not None and key.fingerprint != fingerprint:
            raise ConfigError("the certificate is signed by another coordinator than the one that the invite names")
        if not key.verifies(bytes.fromhex(self.signature), self._statement):
            raise ConfigError("the signature does not fit: the certificate was changed, or nobody has signed it")

    def text(self) -> str:
        """The certificate as JSON."""
        return json.dumps({"kind": KIND, **asdict(self)}, indent=2) + "\n"


_CERTIFICATE = TypeAdapter(ContributionCertificate)
_NAMES = {field.name for field in dataclass_fields(ContributionCertificate)}
_SIZES = {"contract": 32, "row": 32, "coordinator": 32, "signature": 64, "node": 16}


def read_certificate(text: str | bytes) -> ContributionCertificate:
    """Read a certificate; its signature is not checked. Raises ConfigError if it is none."""
    try:
        if len(text) > TEXT_BYTES_MAX:
            raise ValueError(f"it has more than {TEXT_BYTES_MAX} bytes")
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("kind", "") != KIND:
            raise ValueError("it is of another kind, or of another version")
        if unknown := sorted(fields.keys() - _NAMES):
            raise ValueError(f"it has a field {unknown[0]}, which nobody signs")
        found = _CERTIFICATE.validate_json(json.dumps(fields), strict=True)
        for name, size in _SIZES.items():
            if len(bytes.fromhex(getattr(found, name))) != size:
                raise ValueError(f"its field {name} does not have {size} bytes")
        numbers = (found.at, found.counted, found.tokens, found.run_tokens, found.rows)
        if not all(0 <= number < NUMBER_MAX for number in numbers):
            raise ValueError("its numbers are out of bounds")
        datetime.fromtimestamp(found.at, timezone.utc)
        return found
    except (ValueError, ValidationError, OverflowError, OSError, RecursionError) as error:
        why = "a field is missing or wrong" if isinstance(error, ValidationError) else clean_text(str(error))
        raise ConfigError(f"this is no certificate of contribution: {why}") from None
