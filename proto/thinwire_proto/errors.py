"""Error types, by whose fault the error is. Any other exception that escapes from thinwire is a bug in thinwire."""

MEND_DISK = "free some space or repair the disk, then start it again"
"""Advice to the operator after a disk error, on either side."""
MEND_OWNER = "the user who starts it must own all files there; was it started as another user before?"
"""The same after an error of permissions."""
MEND_FILES = "Are there enough open files? `ulimit -n` shows how many a program may have."
"""The same if a file could not be opened, perhaps because too many are open."""
MEND_STORE = "check the address of --bodies, its credentials and the connection, then start it again"
"""The same if a store elsewhere fails, which the coordinator alone uses."""


class ThinwireError(Exception):
    """Base of all errors that thinwire raises on purpose. The text says what was wrong and what to do."""


class LocalError(ThinwireError):
    """This side is at fault: a bad setting, misuse, or a broken disk."""


class ConfigError(LocalError):
    """An invalid setting. The text names the field and the condition that fails."""


class UsageError(ConfigError):
    """A wrong option or environment variable of a program. To start the program again as it is does not help."""


class LedgerError(LocalError):
    """The ledger on disk is inconsistent. `step` is the first step that fails, if known. mend: what the operator can
    do, if that is not in the message."""

    def __init__(self, message: str, step: int | None = None, *, mend: str = MEND_DISK) -> None:
        super().__init__(message)
        self.step = step
        self.mend = mend


class Locked(LedgerError):
    """Another program holds the lock of a database. Nothing was read or written, and it may be tried again."""


class Damaged(LedgerError):
    """Data on disk is missing or differs from what was written. The text says which file (`restore`) to restore."""

    def __init__(self, message: str, step: int | None = None, *, restore: str = "ledger.sqlite") -> None:
        super().__init__(f"{message}; restore {restore} from the newest copy that you have", step)


class RemoteError(ThinwireError):
    """The other side is at fault."""


class PayloadError(RemoteError):
    """The bytes are not a payload of this contract: truncated, oversized, or with impossible contents."""


class ContractError(RemoteError):
    """The other side's contract cannot be read, or differs from ours. The text names the fields."""


class ReplicaError(RemoteError):
    """A replica and the ledger disagree, so the replica must be downloaded again."""


class OtherContract(ReplicaError):
    """A snapshot that can be read belongs to another contract."""
