"""2,000 complete TLS handshakes, each dropped at once, with the port of gRPC and with the page; again after a while."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

from abuse.target import Target, trusting

HANDSHAKES = 2000
AT_A_TIME = 8
PAUSE_S = 10.0
CONNECT_S = 10.0


def dropped_handshakes(target: Target) -> None:
    context, addresses = trusting(), [target.address, *target.pages]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while not target.stop.is_set():
            each = [addresses[number % len(addresses)] for number in range(HANDSHAKES)]
            list(pool.map(lambda address: _shake(target, context, address), each))
            target.stop.wait(PAUSE_S)


def _shake(target: Target, context: ssl.SSLContext, address: str) -> None:
    if target.stop.is_set():
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as plain, context.wrap_socket(plain):
            target.count("handshakes")
    except OSError:
        target.count("handshakes refused")
