"""Says in words what an error of the operating system means for a program, and what to do about it."""

from __future__ import annotations

import errno

from thinwire_proto.errors import MEND_DISK, MEND_OWNER

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
FILES = (errno.EMFILE, errno.ENFILE)
LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
RAISE_FILES = (
    "allow more and start it again: ulimit -n 4096 (in a service LimitNOFILE=4096, in Docker --ulimit nofile=4096)"
)
"""Advice to whoever starts a program that may open too few files."""
NO_THREAD = "can't start new thread"


def is_of_machine(error: OSError) -> bool:
    """Whether the machine or one of its limits is the reason, and not the path."""
    return error.errno in (*DISK, *FILES, errno.EFBIG)


def in_words(error: OSError, consequence: str = "") -> str:
    """Say what has failed, the consequence for the program if there is one, and what to do about it."""
    what, mend = _what_and_mend(error)
    return "; ".join(part for part in (what, consequence, mend) if part)


def _what_and_mend(error: OSError) -> tuple[str, str]:
    if error.errno in FILES:
        return f"too many files and connections are open: {error}", RAISE_FILES
    if error.errno == errno.EFBIG:
        return f"a file may not become larger: {error}", "`ulimit -f` shows the limit, and the disk may have one too"
    if error.errno in LOCKS:
        return f"the file system cannot do this: {error}", "give a folder of a disk of this machine"
    if isinstance(error, PermissionError):
        return str(error), MEND_OWNER
    return f"the disk fails: {error}", MEND_DISK


def limit_in_words(error: Exception) -> str:
    """Which limit of the system a program has met, and what to do; empty if it is another error."""
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        return f"the system lets this program start no more threads ({error}); `ulimit -u` shows how many it allows"
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        why = f" ({error})" if str(error) else ""
        return (
            f"this program gets too little memory{why}; `ulimit -v` and its container's limit show how much it may have"
        )
    return ""
