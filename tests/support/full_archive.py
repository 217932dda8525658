"""A node whose disk is full when it writes an entry of its archive of messages.

python full_archive.py N start …      N: the entry.
"""

from __future__ import annotations

import errno
import sys

from thinwire_node import __main__
from thinwire_node.storage.message_archive import MessageArchive


def main() -> None:
    left, add = int(sys.argv[1]), MessageArchive.add

    def add_until_full(archive: MessageArchive, entry: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(archive, entry)

    MessageArchive.add = add_until_full  # type: ignore[method-assign, assignment]
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()


if __name__ == "__main__":
    main()
