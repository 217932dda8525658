"""A certificate authority for one test, and a certificate that it signed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write an authority, and a chain with its key for the host `name`. Returns both files, in PEM."""
    now = datetime.now(timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, found)]) for found in ("test authority", name)]
    found = []
    for number, is_authority in enumerate((True, False)):
        builder = x509.CertificateBuilder().subject_name(names[number]).issuer_name(names[0])
        builder = builder.public_key(keys[number].public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        found.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority, chain = folder / "authority.pem", folder / "chain.pem"
    authority.write_bytes(found[0])
    chain.write_bytes(found[1] + key)
    return authority, chain
