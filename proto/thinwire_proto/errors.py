"""Errors, by whose fault they are. Anything else that escapes from this package is a bug of ours."""

MEND_DISK = "make room or mend the disk, then start it again"
"""What to do where a disk fails, on either side."""


class ThinwireError(Exception):
    """Base of every error that thinwire raises on purpose; its text says what was wrong and what to do."""


class LocalError(ThinwireError):
    """Our own side is at fault: a bad setting, a misuse, a broken disk."""


class ConfigError(LocalError):
    """A setting that cannot be: names the field, and the relation that fails."""


class LedgerError(LocalError):
    """The ledger on disk does not hold together; `step` is the first step that fails, if one can be named."""

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class Damaged(LedgerError):
    """What is on disk is not what was written, or is gone. Says what to do; `restore`: with what."""

    def __init__(self, message: str, step: int | None = None, *, restore: str = "ledger.sqlite") -> None:
        super().__init__(f"{message}; restore {restore} from the newest copy that you have", step)


class RemoteError(ThinwireError):
    """The other side is at fault."""


class PayloadError(RemoteError):
    """Bytes that are not a payload of this contract: truncated, oversized, or with impossible contents."""


class ContractError(RemoteError):
    """The other side's contract cannot be read, or differs from ours; names the fields."""


class ReplicaError(RemoteError):
    """A replica and the ledger disagree; the replica has to be fetched anew."""
