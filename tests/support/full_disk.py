"""A node without a centre whose disk is full for one kind of file, from the time that a given file exists.

python full_disk.py archive FILE start …      when it writes an entry of its archive of messages
python full_disk.py journal FILE start …      when it writes its journal
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

from thinwire_node import __main__
from thinwire_node.gossip.journal import GossipJournal
from thinwire_node.gossip.message_archive import MessageArchive

WRITES: dict[str, tuple[Any, str]] = {"archive": (MessageArchive, "add"), "journal": (GossipJournal, "write")}


def main() -> None:
    (owner, name), full = WRITES[sys.argv[1]], Path(sys.argv[2])
    write = getattr(owner, name)

    def write_unless_full(*arguments: Any) -> Any:
        if full.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    setattr(owner, name, write_unless_full)
    sys.argv = ["thinwire-node", *sys.argv[3:]]
    __main__.main()


if __name__ == "__main__":
    main()
