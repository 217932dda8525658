"""A hostile node: sends the opposite sign of each of its votes.

python flipping_node.py start HOST:PORT …
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from thinwire.compression.sent import Sent, WholeSent
from thinwire_node import __main__
from thinwire_proto.exact.votes import Votes, WholeVotes


def flipping(votes_of: Callable[[Sent], Votes]) -> Callable[[Sent], Votes]:
    def flipped(sent: Sent) -> Votes:
        votes = votes_of(sent)
        if isinstance(votes, WholeVotes):
            assert votes.codes is not None
            return WholeVotes(-votes.signs, votes.codes)
        return Votes(votes.components, ~votes.positive, votes.codes)

    return flipped


if __name__ == "__main__":
    for kind in (Sent, WholeSent):
        kind.votes = flipping(kind.votes)  # type: ignore[arg-type,assignment,method-assign]
    sys.argv = ["thinwire-node", *sys.argv[1:]]
    __main__.main()
