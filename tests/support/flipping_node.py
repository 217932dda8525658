"""A hostile node: sends the opposite sign of each of its votes.

python flipping_node.py start HOST:PORT …
"""

from __future__ import annotations

import sys
from dataclasses import replace

from thinwire_node import __main__
from thinwire_node.compression.sent import Sent
from thinwire_proto.exact.votes import Votes

if __name__ == "__main__":
    votes_of = Sent.votes

    def flipped(sent: Sent) -> Votes:
        votes = votes_of(sent)
        return replace(votes, positive=~votes.positive)

    Sent.votes = flipped  # type: ignore[assignment,method-assign]
    sys.argv = ["thinwire-node", *sys.argv[1:]]
    __main__.main()
