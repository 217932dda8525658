"""The commands `thinwire-node install-service` and `uninstall-service`."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from thinwire_common.options import flag
from thinwire_node.cli.options import StartOptions
from thinwire_node.limits.keeper import LimitsSource
from thinwire_node.limits.limits import Limits
from thinwire_node.service.definition import Service
from thinwire_node.service.managers import manager
from thinwire_node.storage.enrolment import INVITE_FILE, choose, read_destination, write_invite
from thinwire_proto.errors import LocalError, UsageError
from thinwire_proto.identity.invite import Invite

CACHES = frozenset({".cache", "cache", "caches"})
OF_SERVICE = frozenset({"invite", "state_dir", "state_slots"}) | Limits.model_fields.keys()
"""Options of `start` that the service sets itself, and limits, which at each start would undo the owner's `set`."""


def install(options: StartOptions, arguments: argparse.Namespace, *, only_print: bool) -> str:
    """Install a service that runs `start` with the options on the command line, and write the limits among them into
    their file. Returns what to tell its owner: with `only_print`, the definition, of which nothing is installed, and
    no file is written. Raises UsageError or LocalError."""
    folder = options.state_dir.absolute()
    has_invite = options.invite is not None
    if options.invite is not None:
        choose(folder, read_destination(options.invite))
    elif not only_print:
        choose(folder, None)
    file = folder / INVITE_FILE
    own = [f"@{file}"] if has_invite or file.exists() else []
    service = Service(_command(own, folder, options, arguments), folder, _user())
    if only_print:
        return manager().render(service)
    if CACHES & {part.lower() for part in Path(sys.prefix).parts}:
        raise LocalError(
            "this thinwire is in a cache, which may be emptied (uvx and `pipx run` do so); install it with `uv tool "
            "install` or `pipx install` first"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if options.invite is not None:
        write_invite(folder, _invite_of(options.invite))
    given = {name: getattr(arguments, name) for name in Limits.model_fields if name in arguments}
    LimitsSource(options.limits).file(folder).change(given)
    return manager().install(service)


def uninstall() -> str:
    """Remove the service. Returns what was done. Raises LocalError."""
    return manager().uninstall()


def _invite_of(given: str) -> Invite:
    """The invite, whether it was given as itself or in a file. Raises UsageError."""
    invite = read_destination(given).invite
    if invite is None:
        raise UsageError("give an invite: a service does not run beside a coordinator that is named by its address")
    return invite


def _command(own: list[str], folder: Path, options: StartOptions, arguments: argparse.Namespace) -> list[str]:
    """The service's command: this Python, so that it is the thinwire that was asked."""
    python = Path(sys.executable)
    if sys.platform == "win32":
        python = python.with_name("pythonw.exe")  # without a window
    words = [str(python), "-m", "thinwire_node", "start", *own, "--state-dir", str(folder)]
    for name in StartOptions.model_fields:
        if name not in OF_SERVICE and name in arguments:
            words.append(_word(name, getattr(options, name), getattr(arguments, name)))
    return words


def _word(name: str, value: object, given: object) -> str:
    """An option as one word, as `start` reads it in whatever folder the service runs."""
    if value is True:
        return flag(StartOptions, name)
    return f"{flag(StartOptions, name)}={value.absolute() if isinstance(value, Path) else given}"


def _user() -> str:
    domain = os.environ.get("USERDOMAIN", "")
    try:
        return f"{domain}\\{getpass.getuser()}" if domain else getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""
