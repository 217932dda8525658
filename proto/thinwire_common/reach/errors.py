"""The errors of this package."""

from __future__ import annotations

from thinwire_proto.errors import RemoteError


class Unreachable(RemoteError):
    """No connection, or not to whom it should be. The text says what was wrong and what to do."""


class WrongCertificate(Unreachable):
    """Somebody answers by TLS, and is not to be trusted as the one that was meant."""
