"""The definitions of a node's service are what their managers take, whatever the paths are called."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path, PureWindowsPath
from xml.etree import ElementTree

import pytest

from thinwire_node.cli import service as command
from thinwire_node.cli.parser import parser, start_options
from thinwire_node.service.definition import TASK_NAMESPACE, Service, launchd_plist, systemd_unit, windows_task
from thinwire_node.service.managers import Systemd
from thinwire_proto.errors import LocalError, UsageError
from thinwire_proto.identity.invite import Invite

INVITE = str(Invite("swarm.example.org:7700", b"f" * 32, b"t" * 16))
WORDS = ["-m", "thinwire_node", "start", "--name", 'a "b" 100% $HOME \\ <&> ü', "--state-dir", "/tmp/my node"]


def test_systemd_reads_the_command_back(tmp_path: Path) -> None:
    """Checks the unit with systemd itself, which warns of whatever it does not take literally."""
    unit = tmp_path / "thinwire-node.service"
    unit.write_text(systemd_unit(Service([sys.executable, *WORDS], tmp_path)), encoding="utf-8")
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    read = shlex.split(line.removeprefix("ExecStart="))
    assert [word.replace("%%", "%").replace("$$", "$") for word in read] == [sys.executable, *WORDS]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    about_unit = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, about_unit) == (0, []), done.stderr


def test_launchd_gets_the_command_and_starts_it_again_after_a_failure_only() -> None:
    found = plistlib.loads(launchd_plist(Service(["/usr/bin/python3", *WORDS], Path("/tmp/my node"))).encode())
    assert found["ProgramArguments"] == ["/usr/bin/python3", *WORDS]
    assert (found["KeepAlive"], found["ThrottleInterval"]) == ({"SuccessfulExit": False}, 30)
    assert found["StandardErrorPath"] == "/tmp/my node/service.log"


def test_windows_gets_the_command_as_its_programs_split_it() -> None:
    program, folder = r"C:\Program Files\Python\pythonw.exe", PureWindowsPath(r"C:\Users\Åsa B\.thinwire\node")
    text = windows_task(Service([program, *WORDS], folder, r"HOME\Åsa B"))
    task = ElementTree.fromstring(text.encode("utf-16"))  # as the file has it
    names = {"t": TASK_NAMESPACE}
    assert task.findtext("t:Actions/t:Exec/t:Command", namespaces=names) == program
    arguments = task.findtext("t:Actions/t:Exec/t:Arguments", namespaces=names)
    assert arguments == subprocess.list2cmdline(WORDS)
    assert task.findtext("t:Settings/t:ExecutionTimeLimit", namespaces=names) == "PT0S"  # by default three days
    assert task.findtext("t:Triggers/t:LogonTrigger/t:UserId", namespaces=names) == r"HOME\Åsa B"


def asked(*words: str) -> str:
    arguments = parser().parse_args(["install-service", *words])
    return command.install(start_options(arguments), arguments, only_print=arguments.only_print)


def test_print_shows_the_options_and_not_the_invite_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shown = asked("--print", INVITE, "--state-dir", str(folder), "--name=-x", "--metrics-tls", "tls")
    tls = Path("tls").absolute()  # a service runs in another folder
    assert f'"@{folder}/invite" "--state-dir" "{folder}"' in shown
    assert '"--name=-x"' in shown
    assert f'"--metrics-tls={tls}"' in shown
    assert INVITE not in shown
    assert not folder.exists()


def test_a_service_without_an_invite_wants_a_node_that_has_enrolled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has not enrolled"):
        asked("--state-dir", str(tmp_path))


def test_without_a_manager_the_invite_is_private_and_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(command, "manager", Systemd)
    with pytest.raises(LocalError, match=r"has no systemctl; .* --print"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    kept = tmp_path / "node" / "invite"
    assert kept.read_text().strip() == INVITE
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def _systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A machine whose systemctl does what the script says. Returns the place of the definition."""
    program = folder / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr(command, "manager", Systemd)
    return folder / "config" / "systemd" / "user" / "thinwire-node.service"


NO_BUS = "echo 'Failed to connect to bus: No medium found' >&2; exit 1"


def test_a_login_without_systemd_is_told_and_keeps_no_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = _systemctl(tmp_path, monkeypatch, NO_BUS)
    with pytest.raises(LocalError, match=r"No medium found; systemd serves this user only in a login .* --print"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert not definition.exists()
    definition.write_text("of a service that runs")
    with pytest.raises(LocalError, match="No medium found"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert definition.read_text() == "of a service that runs"
    with pytest.raises(LocalError, match="No medium found; systemd serves this user only"):
        command.uninstall(tmp_path / "node")
    assert definition.read_text() == "of a service that runs"


def test_a_service_that_does_not_start_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = tmp_path / "asked-for"
    script = f'echo "$*" >> {asked_for}; case "$*" in *able\\ --now*) [ "$2" = disable ];; esac'
    definition = _systemctl(tmp_path, monkeypatch, script)
    with pytest.raises(LocalError, match="enable --now"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))
    assert not definition.exists()
    assert asked_for.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now thinwire-node.service",
        "--user daemon-reload",
        "--user disable --now thinwire-node.service",
        "--user daemon-reload",
    ]


def test_a_thinwire_in_a_cache_is_not_made_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/a/.cache/uv/archive-v0/x")
    with pytest.raises(LocalError, match="uv tool install"):
        asked(INVITE, "--state-dir", str(tmp_path / "node"))


def test_there_is_nothing_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="no service to remove"):
        command.uninstall(tmp_path)
