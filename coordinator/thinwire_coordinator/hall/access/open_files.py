"""Open files: each connection is one, and without a free one the coordinator could not write its ledger either."""

from __future__ import annotations

from dataclasses import replace

from thinwire_common.open_files import raise_open_files
from thinwire_coordinator.hall.access.bounds import Bounds

OWN_FILES = 96
"""Databases, snapshots, bodies and what the libraries have open; a small run has 41 (measured)."""
LEAST = 128
"""The coordinator does not start with fewer."""
A_CONNECTION = 2
"""A node's connection, and the file that it is sent meanwhile."""
PAGE_SHARE = 4
"""The page's connections get at most one in so many of all files."""
PAGE_CONNECTIONS_MAX = 1024
"""A browser uses one connection for its stream, and a few more for its requests."""


def page_connections() -> int:
    """The most connections of the page that this process can have beside those of nodes."""
    return min(PAGE_CONNECTIONS_MAX, (raise_open_files() - OWN_FILES) // PAGE_SHARE)


def open_files_for(bounds: Bounds) -> Bounds:
    """Raise this process's limit of open files as far as `bounds` need it. Return bounds that fit the limit."""
    taken = OWN_FILES + page_connections()
    allowed = raise_open_files(A_CONNECTION * bounds.connections_max + taken)
    return replace(bounds, connections_most=(allowed - taken) // A_CONNECTION)
