"""The client's address behind a proxy, from the header X-Forwarded-For.

Each proxy adds the address that it was called from at the end of the list. What stands before the entries of the
proxies that the organizer named, the client may have written itself. So only the last entry that is no such proxy
counts, and only if it came from one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Container, Sequence

HEADER = "x-forwarded-for"
SIGNS = (HEADER, "forwarded", "via", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers that a proxy adds, and no browser."""
LENGTH_MAX = 1 << 10
"""Characters of the header that are read, from its end."""


def client_of(host: str, forwarded: Sequence[str], is_proxy: Callable[[str], bool]) -> str:
    """The IP address of a client. host: that of the connection. forwarded: the values of the header, in their order."""
    if not is_proxy(host):
        return host
    found = host
    for entry in reversed(",".join(forwarded)[-LENGTH_MAX:].split(",")):
        address = _address(entry.strip())
        if address is None:
            break
        found = address
        if not is_proxy(address):
            break
    return found


def is_forwarded(headers: Container[str]) -> bool:
    """Whether a request came through a proxy, even one that the organizer has not named. headers: their names."""
    return any(name in headers for name in SIGNS)


def _address(text: str) -> str | None:
    """The IP address of an entry, which may have a port; None if it has none."""
    if text.startswith("["):
        text, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            return None
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
