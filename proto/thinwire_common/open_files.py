"""The number of files and connections that this process may have open at a time."""

from __future__ import annotations

from thinwire_common.os_errors import RAISE_FILES
from thinwire_proto.errors import LocalError

USUAL = 4096
"""Raised to at the start of each program, if the system allows it. Many systems begin with 256 or 1024."""
UNLIMITED = 1 << 30


def raise_open_files(wanted: int = USUAL) -> int:
    """Raise the limit of this process to `wanted`, as far as the system allows it. Returns the limit."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:  # Windows, which has no such limit
        return UNLIMITED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return UNLIMITED
    if soft >= wanted:
        return soft
    raised = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (ValueError, OSError):  # macOS has a limit of the kernel below the hard one
        return soft
    return raised


def check_open_files(least: int) -> None:
    """Raise LocalError if this process may have fewer files open than it needs."""
    if (limit := raise_open_files()) < least:
        raise LocalError(f"this program may have {limit} files open, and needs at least {least}; {RAISE_FILES}")
