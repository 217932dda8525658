"""A node without a centre whose disk is full when it writes its journal, from the time that a file exists.

python full_journal.py FILE start …
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from thinwire_node import __main__
from thinwire_node.storage.gossip_journal import GossipJournal, JournalEntry


def main() -> None:
    full, write = Path(sys.argv[1]), GossipJournal.write

    def write_unless_full(journal: GossipJournal, entry: JournalEntry) -> None:
        if full.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(journal, entry)

    GossipJournal.write = write_unless_full  # type: ignore[method-assign, assignment]
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()


if __name__ == "__main__":
    main()
