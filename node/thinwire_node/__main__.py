"""The command `thinwire-node`."""

from __future__ import annotations

import logging
import sys

from thinwire_common.logs import logs_json, print_error, tell
from thinwire_node.cli.parser import parser
from thinwire_proto.errors import ThinwireError

log = logging.getLogger("thinwire.node")


def main() -> None:
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
