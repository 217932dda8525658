"""TLS credentials of a gRPC server whose certificate is renewed while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from thinwire_proto.identity.certificates import Certificate


def following(current: Callable[[], Certificate]) -> grpc.ServerCredentials:
    """Credentials that follow the current certificate. gRPC asks at each handshake, in a thread of its own."""
    served = [current()]

    def changed() -> Any:
        if (newest := current()) == served[0]:
            return None  # keep the one in use
        served[0] = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(_configuration(served[0]), changed)


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)])
