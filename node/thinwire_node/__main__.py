"""The command `thinwire-node`."""

from __future__ import annotations

import logging
import os
import sys

from thinwire_common.logs import logs_json, print_error, tell
from thinwire_node.cli.parser import parser
from thinwire_proto.errors import ThinwireError

log = logging.getLogger("thinwire.node")


OFFLINE = {"HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "NO"}
"""A node takes all that it runs from its own packages, and all that it trains on from the run. So libraries that could
fetch models or kernels from a hub are told not to, before they are imported."""


def main() -> None:
    for variable, value in OFFLINE.items():
        os.environ.setdefault(variable, value)
    arguments = parser().parse_args()
    try:
        arguments.command(arguments)
    except ThinwireError as error:
        if logs_json():
            tell(log, logging.ERROR, "node.failed", str(error))
        else:
            print_error("thinwire-node", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
