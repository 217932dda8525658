"""The version of thinwire, and the comparison of versions. A test checks that `pyproject.toml` has the same version."""

from __future__ import annotations

VERSION = "0.3.0"
PATTERN = r"[0-9]{1,6}(\.[0-9]{1,6}){1,2}"


def is_newer(version: str, than: str) -> bool:
    """Whether `version`, such as 0.2.0, is newer than `than`. Both must match `PATTERN`."""
    return _numbers(version) > _numbers(than)


def newest(versions: list[str]) -> str:
    return max(versions, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return (*numbers, *[0] * (3 - len(numbers)))
