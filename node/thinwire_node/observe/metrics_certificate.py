"""The certificate of a node's metrics, where they leave the machine.

It signs itself, so a scraper takes it as its own root (Prometheus: `ca_file`, with `server_name: thinwire-node`). All
nodes that are given the same folder share one.

DIR/node.key.pem   certificate and key; mode 0600
DIR/node.pem       the certificate alone, for the scraper
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from thinwire_common.tls import ServerTls
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.private_files import publish_new

SERVER_NAME = "thinwire-node"
CERTIFICATE_FILE = "node.pem"
LASTS = timedelta(days=10 * 365)
RENEW_BEFORE = timedelta(days=365)
BACKDATED = timedelta(days=1)
_KEY_BEGINS = b"-----BEGIN PRIVATE KEY-----"


def metrics_tls(folder: Path) -> ServerTls:
    """The TLS of a node's metrics, from the certificate in a folder. Makes one if there is none. Raises ConfigError."""
    path = folder / "node.key.pem"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = _read(path) or _create(path)
        chain, mark, key = found.partition(_KEY_BEGINS)
        _write(folder / CERTIFICATE_FILE, chain, 0o644).replace(folder / CERTIFICATE_FILE)
        return ServerTls(chain, mark + key)
    except OSError as error:
        raise ConfigError(f"--metrics-tls {folder}: cannot keep a certificate: {error.strerror or error}") from None


def _read(path: Path) -> bytes | None:
    """Certificate and key; None if there are none, or they end soon."""
    try:
        data = path.read_bytes()
        ends = x509.load_pem_x509_certificate(data).not_valid_after_utc
    except (FileNotFoundError, ValueError):
        return None
    return data if datetime.now(timezone.utc) < ends - RENEW_BEFORE else None


def _create(path: Path) -> bytes:
    data = _new()
    temporary = _write(path, data, 0o600)
    try:
        if _read(path) is None:
            path.unlink(missing_ok=True)
        publish_new(temporary, path)  # fails if another node was faster, so that both use its certificate
    except FileExistsError:
        return path.read_bytes()
    return data


def _write(path: Path, data: bytes, mode: int) -> Path:
    """A new file beside `path`; nodes in different containers may have the same process id, so its name is random."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _new() -> bytes:
    now, key = datetime.now(timezone.utc), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    names: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME), x509.DNSName("localhost")]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - BACKDATED).not_valid_after(now + LASTS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM) + secret
