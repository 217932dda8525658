"""TLS for the HTTP servers, with a certificate that can be replaced while the server runs."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path


class ServerTls:
    """A TLS context whose certificate can be replaced; open connections go on. chain, key: PEM."""

    def __init__(self, chain: bytes, key: bytes) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.replace(chain, key)

    def replace(self, chain: bytes, key: bytes) -> None:
        """Use another certificate for new connections."""
        handle, name = tempfile.mkstemp()  # OpenSSL reads certificates from files only; this one has mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(chain + b"\n" + key)
            self.context.load_cert_chain(name)
        finally:
            Path(name).unlink()
