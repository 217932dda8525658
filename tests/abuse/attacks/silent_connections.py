"""500 connections that send nothing. Whatever the coordinator closes is opened again."""

from __future__ import annotations

import contextlib
import select
import socket

from abuse.target import Target

CONNECTIONS = 500
AGAIN_S = 0.2


def silent_connections(target: Target) -> None:
    host, _, port = target.address.rpartition(":")
    held: list[socket.socket] = []
    try:
        while not target.stop.is_set():
            while len(held) < CONNECTIONS:
                held.append(socket.create_connection((host, int(port)), 10))
                target.count("connections")
            poll = select.poll()
            for one in held:
                poll.register(one, select.POLLIN)
            ended = {file for file, _ in poll.poll(AGAIN_S * 1000) if _has_ended(held, file)}
            for one in [one for one in held if one.fileno() in ended]:
                one.close()
            held = [one for one in held if one.fileno() >= 0]
    finally:
        for one in held:
            one.close()


def _has_ended(held: list[socket.socket], file: int) -> bool:
    """Read what came; the server sends its settings first."""
    one = next(one for one in held if one.fileno() == file)
    with contextlib.suppress(OSError):
        return not one.recv(1 << 12)
    return True
