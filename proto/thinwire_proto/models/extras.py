"""Imports libraries that only some commands and kinds of model need, when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from thinwire_proto.errors import ConfigError


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional dependency. Raises ConfigError, with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"this needs the package {module.split('.', maxsplit=1)[0]}: pip install 'thinwire[{extra}]' ({error})"
        ) from None
