"""The definition of a node's service for systemd, launchd and Windows' Task Scheduler. Pure: text in, text out.

All three start the node when its owner logs in, start it again after a failure, and rank it below other programs. They
start it in a folder in which no file of the owner lies: Python takes modules from there before its own.
"""

from __future__ import annotations

import plistlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from xml.etree import ElementTree

from thinwire_proto.errors import LocalError
from thinwire_proto.limits import SERVICE_RESTART_S, SERVICE_STOP_S

NAME = "thinwire-node"
LABEL = "thinwire.node"
"""launchd's name of it."""
WRONG_USAGE = 2
"""The exit status after which a start would fail again."""
UNSTARTABLE = re.compile(r"[\x00-\x1f\x7f\\\"']")
"""Characters that systemd refuses in the path of a program."""
UNIT = """\
[Unit]
Description=thinwire node

[Service]
ExecStart={command}
WorkingDirectory=/
Restart=on-failure
RestartSec={restart_s}
RestartPreventExitStatus={wrong_usage}
TimeoutStopSec={stop_s}
UMask=0077
NoNewPrivileges=yes
MemoryMax=80%
CPUWeight=20
IOWeight=20
OOMScoreAdjust=500

[Install]
WantedBy=default.target
"""
TASK_NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
TASK_MINUTES = 1
"""Windows starts a task that failed again after a minute at the earliest."""


@dataclass(frozen=True)
class Service:
    """command: the program and its arguments. folder: the state directory. user: who runs it, as Windows names them."""

    command: Sequence[str]
    folder: PurePath
    user: str = ""


def systemd_unit(service: Service) -> str:
    """A unit for `systemctl --user`, whose log is in the journal. It sets no niceness, above which the node could not
    rise. Raises LocalError if systemd cannot start a program with this path."""
    program, *arguments = service.command
    if found := UNSTARTABLE.search(program):
        raise LocalError(
            f"systemd starts no program whose path has the character {found[0]!r}: {program}; install thinwire in "
            "another folder"
        )
    command = " ".join([_quoted(program), *(_quoted(word).replace("$", "$$") for word in arguments)])
    return UNIT.format(
        command=command, restart_s=round(SERVICE_RESTART_S), stop_s=round(SERVICE_STOP_S), wrong_usage=WRONG_USAGE
    )


def _quoted(word: str) -> str:
    """A word of ExecStart= (systemd.syntax(7)). In arguments alone, systemd also replaces variables
    (systemd.service(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def launchd_plist(service: Service) -> str:
    """An agent for `launchctl bootstrap`. Its log is service.log in the state directory."""
    log = str(service.folder / "service.log")
    agent = {
        "Label": LABEL,
        "ProgramArguments": list(service.command),
        "WorkingDirectory": "/",
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": round(SERVICE_RESTART_S),
        "ExitTimeOut": round(SERVICE_STOP_S),
        "ProcessType": "Background",
        "LowPriorityIO": True,
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(agent).decode()


def windows_task(service: Service) -> str:
    """A task for `schtasks /Create /XML`, which ends when its owner logs out. It has no log."""
    program, *arguments = service.command
    task = ElementTree.Element("Task", {"version": "1.2", "xmlns": TASK_NAMESPACE})
    _add(task, "RegistrationInfo", {"Description": "thinwire node"})
    triggers = ElementTree.SubElement(task, "Triggers")
    _add(triggers, "LogonTrigger", {"Enabled": "true", "UserId": service.user})
    principals = ElementTree.SubElement(task, "Principals")
    principal = {"UserId": service.user, "LogonType": "InteractiveToken", "RunLevel": "LeastPrivilege"}
    _add(principals, "Principal", principal).set("id", "Owner")
    settings = {
        "MultipleInstancesPolicy": "IgnoreNew",
        "DisallowStartIfOnBatteries": "false",  # the node's own limits decide
        "StopIfGoingOnBatteries": "false",
        "ExecutionTimeLimit": "PT0S",
        "Priority": "7",
    }
    found = _add(task, "Settings", settings)
    _add(found, "RestartOnFailure", {"Interval": f"PT{TASK_MINUTES}M", "Count": "999"})
    actions = ElementTree.SubElement(task, "Actions", {"Context": "Owner"})
    run = {"Command": program, "Arguments": subprocess.list2cmdline(arguments), "WorkingDirectory": str(service.folder)}
    _add(actions, "Exec", run)
    ElementTree.indent(task)
    return f'<?xml version="1.0" encoding="UTF-16"?>\n{ElementTree.tostring(task, encoding="unicode")}\n'


def _add(parent: ElementTree.Element, name: str, texts: dict[str, str]) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, name)
    for child, text in texts.items():
        ElementTree.SubElement(element, child).text = text
    return element
