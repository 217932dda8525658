"""How a node may name the host at which its peers reach it. Both the node and the coordinator check it by this."""

from __future__ import annotations

import re

HOST = re.compile(r"\[[0-9a-fA-F:.]{2,45}\]|[0-9A-Za-z._-]{1,255}")
"""An IPv6 address in brackets, an IPv4 address, or a name; underscores are usual among containers."""
