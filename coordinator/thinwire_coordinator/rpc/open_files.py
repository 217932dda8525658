"""Open files: each connection is one, and without a free one the coordinator could not write its ledger either."""

from __future__ import annotations

import sys
from dataclasses import replace

from thinwire_coordinator.access.bounds import Bounds

OWN_FILES = 256
"""Ledger, snapshots, files that are sent, the page's connections."""


def open_files_for(bounds: Bounds) -> Bounds:
    """Raise this process's limit of open files as far as `bounds` need it. Return bounds that fit the limit."""
    if sys.platform == "win32":
        return bounds
    import resource  # noqa: PLC0415 - Windows does not have it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = bounds.connections_max + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return bounds
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return replace(bounds, connections_most=max(OWN_FILES, raised - OWN_FILES))
