"""A node that kills itself (kill -9) after sending half of its contribution.

python half_an_upload.py start HOST:PORT …
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from thinwire_node import __main__
from thinwire_node.exchange.coordinator import link


def half(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    link.split_for_upload = half  # type: ignore[attr-defined]
    sys.argv = ["thinwire-node", *sys.argv[1:]]
    __main__.main()
