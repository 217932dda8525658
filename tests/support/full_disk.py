"""A node of a gossip run that finds its disk full when it writes its journal, from the time that a given file exists.

python full_disk.py FILE start …
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

from thinwire_node import __main__
from thinwire_node.gossip.journal import GossipJournal


def main() -> None:
    full, write = Path(sys.argv[1]), GossipJournal.write

    def write_unless_full(*arguments: Any) -> Any:
        if full.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    GossipJournal.write = write_unless_full  # type: ignore[assignment,method-assign]
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()


if __name__ == "__main__":
    main()
