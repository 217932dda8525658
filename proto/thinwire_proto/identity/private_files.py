"""Files of secrets on file systems that keep no permissions or make no hard links.

Such are exFAT, the drives of Windows in WSL (/mnt/c), and many network shares.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

OF_OTHERS = 0o077
"""The permissions of everybody but a file's owner."""


def others_can_read(path: Path) -> bool:
    """Whether the permissions of a file let others read it, though its file system could keep them from it."""
    return os.name != "nt" and bool(path.stat().st_mode & OF_OTHERS) and keeps_permissions(path.parent)


def keeps_permissions(folder: Path) -> bool:
    """Whether a new file of this folder can belong to its owner alone. Raises OSError if nothing can be written."""
    if os.name == "nt":
        return True  # each user's folders are their own there
    probe = folder / f"permissions.{secrets.token_hex(8)}.part"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return not probe.stat().st_mode & OF_OTHERS
    finally:
        probe.unlink(missing_ok=True)


def publish_new(temporary: Path, path: Path) -> None:
    """Give a complete file its name. Raises FileExistsError if there is one already, so that both use that one.

    Without hard links, a rename does it. Then two processes must not do so at once; the lock of a state directory sees
    to that."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
