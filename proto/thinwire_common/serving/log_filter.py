"""A filter of gRPC's log: it leaves out the lines that any stranger can cause."""

from __future__ import annotations

import logging

LOGGER = "grpc._cython.cygrpc"
OF_PEERS = ("ExecuteBatchError raised in core", "Aborting method", "Invalid encoding on")
"""The other end went away in the middle of a stream, or sent metadata that are no text; or this end stops."""


class _LeftOut(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(OF_PEERS)


def filter_peer_errors() -> None:
    """Leave out the errors that gRPC logs about what the other end did. A second call changes nothing."""
    log = logging.getLogger(LOGGER)
    if not any(isinstance(one, _LeftOut) for one in log.filters):
        log.addFilter(_LeftOut())
