"""The limits of a node, and the file that holds them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from thinwire_common.files import replace_synced
from thinwire_common.options import IN_WORDS, Options, option, threads_option
from thinwire_common.units import read_bytes_size
from thinwire_node.limits.quantities import Hours, read_hours, read_rate
from thinwire_proto.errors import ConfigError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIMITS_FILE = "limits.toml"
FILE_BYTES_MAX = 64 << 10
NONE = "none"
"""The value that takes a limit away."""
AT_START = frozenset({"threads", "max_memory", "max_disk"})
"""Limits that hold from the next start of the node on."""
HEAD = """# The limits of this node, which docs/volunteer.md explains. A running node reads a change within a second.
# `thinwire-node set KEY=VALUE` and the options of `thinwire-node start` write this file.
"""

Size = Annotated[int, BeforeValidator(lambda text: read_bytes_size(str(text)))]
DATA_LEAST = 10_000_000
"""Bytes. Less than that a month would be used up by joining."""


def _read_data(text: str) -> int:
    if (found := read_bytes_size(text)) < DATA_LEAST:
        raise ValueError(f"{text!r} is less than 10MB, with which a node cannot take part")
    return found


Rate = Annotated[float, BeforeValidator(read_rate)]


class Limits(Options):
    """The limits of a node on its machine. Sizes are in bytes, rates in bytes per second, None stands for no limit."""

    max_upload: Rate | None = option(
        "upload rate of the node, such as 500kB/s or 4Mbit/s, as the system counts it",
        None,
        metavar="RATE",
        shown="no limit",
        has_variable=False,
    )
    max_download: Rate | None = option(
        "download rate of the node, in the same way", None, metavar="RATE", shown="no limit", has_variable=False
    )
    monthly_data: Annotated[int, BeforeValidator(_read_data)] | None = option(
        "bytes that the node may send and receive in a month, such as 50GB; then it rests until the next one",
        None,
        metavar="SIZE",
        shown="no limit",
        has_variable=False,
    )
    monthly_reset_day: int = option(
        "day of the month on which --monthly-data begins anew", 1, metavar="DAY", ge=1, le=28, has_variable=False
    )
    hours: Annotated[Hours, BeforeValidator(read_hours)] | None = option(
        "hours of local time in which the node works, such as 22-07 or 'mon-fri 22-07, sat-sun 0-24'",
        None,
        metavar="HOURS",
        shown="always",
        has_variable=False,
    )
    max_memory: Size | None = option(
        "memory that a run may need, such as 8G; a run that needs more is refused",
        None,
        metavar="SIZE",
        shown="nine tenths of the machine's",
        has_variable=False,
    )
    max_disk: Size | None = option(
        "disk space that a run may need, such as 20G, with the data that the node keeps",
        None,
        metavar="SIZE",
        shown="nine tenths of the free space",
        has_variable=False,
    )
    max_compute: int = option(
        "percentage of the time that the node may spend computing; it rests between micro-batches",
        100,
        metavar="PERCENT",
        ge=1,
        le=100,
        has_variable=False,
    )
    threads: int | None = threads_option("all cores", has_variable=False)
    priority: Literal["idle", "low", "normal"] = option("how the node's work ranks with that of other programs", "idle")
    on_battery: Literal["run", "pause"] = option("what the node does on battery", "run", has_variable=False)
    while_busy: Literal["run", "pause"] = option(
        "what the node does while others use the machine: its keyboard, its whole screen, its card, or more than a "
        "quarter of the processor",
        "run",
        has_variable=False,
    )
    on_metered: Literal["run", "pause"] = option(
        "what the node does while the line costs by its bytes", "run", has_variable=False
    )


def key_of(name: str) -> str:
    """A limit as the file and `set` name it."""
    return name.replace("_", "-")


def check(given: dict[str, str]) -> Limits:
    """The limits of texts by name of the field. Raises ValueError, which names the first wrong key."""
    if unknown := next((name for name in given if name not in Limits.model_fields), None):
        known = ", ".join(key_of(field) for field in Limits.model_fields)
        raise ValueError(f"{key_of(unknown)!r} is no limit; the limits are {known}")
    try:
        return Limits(**given)
    except ValidationError as error:
        problem: Any = error.errors()[0]
        name = str(problem["loc"][0])
        text = str(problem["msg"]).removeprefix("Value error, ")
        if wanted := IN_WORDS.get(problem["type"]):
            text = f"must be {wanted}, not {problem['input']!r}"
        elif problem["type"] != "value_error":
            text = f"{text[0].lower()}{text[1:]}, not {problem['input']!r}"
        raise ValueError(f"{key_of(name)}: {text}") from None


def changed(given: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
    """Texts by field after changes, of which `none` takes a limit away. Raises ValueError."""
    found = {name: text for name, text in (given | changes).items() if text != NONE}
    check(found | {name: text for name, text in changes.items() if name not in Limits.model_fields})
    return found


def read_changes(entries: list[str]) -> dict[str, str]:
    """Texts by field of KEY=VALUE. Raises UsageError."""
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals:
            raise UsageError(f"{entry!r} is not KEY=VALUE, such as max-upload=500kB/s or hours=22-07")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


class LimitsFile:
    """The file with the limits: TOML, a line for each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str]:
        """Texts by field; none if there is no file. Raises ConfigError."""
        try:
            with self.path.open("rb") as stream:
                data = stream.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        try:
            if len(data) > FILE_BYTES_MAX:
                raise ValueError("it is too long to be a file of limits")
            found = tomllib.loads(data.decode("utf-8-sig"))  # editors of Windows begin a file with a mark
            for key, value in found.items():
                if isinstance(value, bool) or not isinstance(value, str | int):
                    raise ValueError(f"{key} must be a text or a whole number, not {value!r}")
            given = {key.replace("-", "_"): str(value) for key, value in found.items()}
            return changed({}, given)
        except ValueError as error:  # TOML's and UTF-8's errors are ValueErrors
            raise ConfigError(f"{self.path}: {error}; correct it, or remove the file") from None
        except RecursionError:
            raise ConfigError(f"{self.path}: it is nested too deeply; correct it, or remove the file") from None

    def write(self, given: dict[str, str]) -> None:
        """Replace the file. Raises ConfigError."""
        lines = [f"{key_of(name)} = {json.dumps(given[name], ensure_ascii=False)}\n" for name in sorted(given)]
        try:
            replace_synced(self.path, (HEAD + "".join(lines)).encode(), of_folder=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None

    def change(self, changes: Mapping[str, str]) -> None:
        """Change some limits. Writes nothing if they are so already. Raises ConfigError, or ValueError as `changed`."""
        before = self.read()
        if (found := changed(before, dict(changes))) != before:
            self.write(found)

    def version(self) -> tuple[int, int, int]:
        """Changes whenever the file is replaced or written."""
        return version_of(self.path)


def version_of(path: Path) -> tuple[int, int, int]:
    """Inode, size and time of a file; zeros if there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
