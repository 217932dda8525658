"""The service managers of Linux, macOS and Windows: where a definition goes, and which commands take it up."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from thinwire_node.service.definition import LABEL, NAME, Service, launchd_plist, systemd_unit, windows_task
from thinwire_proto.errors import LocalError
from thinwire_proto.limits import SERVICE_MANAGER_S

BY_HAND = "`thinwire-node install-service --print` shows the definition, for a manager of your own"
NO_SESSION = (
    "systemd serves this user only in a login of its own, which `su`, `sudo` and containers are not: log in as this "
    f"user, or start the node without a service; {BY_HAND}"
)


class CommandFailedError(LocalError):
    """A command of a service manager has ended with a failure."""


class ServiceManager(ABC):
    """One service of this user."""

    encoding = "utf-8"

    @abstractmethod
    def file(self) -> Path:
        """The path of the definition."""

    @abstractmethod
    def render(self, service: Service) -> str: ...

    @abstractmethod
    def take_up(self, file: Path) -> str:
        """Have a definition taken up and started, also in place of one that runs. Returns in words how to look at it.
        Raises LocalError."""

    @abstractmethod
    def is_known(self) -> bool:
        """Whether the manager has the service. Raises LocalError if it does not answer."""

    @abstractmethod
    def give_up(self, file: Path) -> None:
        """Stop the service and forget it. Raises LocalError, but not if the manager has forgotten it already."""

    def install(self, service: Service) -> str:
        """Write the definition and start the service. Returns in words how to look at it.

        Raises LocalError; then the definition is as it was before."""
        file = self.file()
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.render(service), encoding=self.encoding)
        try:
            how = self.take_up(file)
        except LocalError:
            if before is not None:
                file.write_bytes(before)
                with suppress(LocalError):  # that service may be stopped already
                    self.take_up(file)
            else:
                with suppress(LocalError):  # it may be half taken up
                    self.give_up(file)
                file.unlink(missing_ok=True)
            raise
        return f"{file} is written, and the service is started; {how}"

    def uninstall(self) -> str:
        """Stop the service and remove the definition. Returns what was done. Raises LocalError if there is none."""
        file = self.file()
        if not file.exists() and not self.is_known():
            raise LocalError(f"there is no service to remove: {file} does not exist")
        self.give_up(file)
        file.unlink(missing_ok=True)
        return "the service is stopped and removed; the state directory stays"


class Systemd(ServiceManager):
    """systemd's manager of a user."""

    def file(self) -> Path:
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(home) / "systemd" / "user" / f"{NAME}.service"

    def render(self, service: Service) -> str:
        return systemd_unit(service)

    def take_up(self, file: Path) -> str:
        _reload()
        _run("systemctl", "--user", "enable", file.name)
        _run("systemctl", "--user", "restart", file.name)  # `enable --now` leaves a service that runs as it is
        look = f"look at it with: journalctl --user -u {NAME} -o cat"
        if "Linger=yes" in _said("loginctl", "show-user", "--property=Linger"):
            return look
        return f"{look}; it ends when you log out, unless you run: loginctl enable-linger"

    def is_known(self) -> bool:
        return self.file().exists()  # it reads the definition where it is

    def give_up(self, file: Path) -> None:
        _reload()
        _run("systemctl", "--user", "disable", "--now", file.name)
        file.unlink()
        _reload()


class Launchd(ServiceManager):
    """launchd's agents of a user."""

    def file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def render(self, service: Service) -> str:
        return launchd_plist(service)

    def take_up(self, file: Path) -> str:
        _said("launchctl", "bootout", f"{_domain()}/{LABEL}")  # one that was installed before
        _run("launchctl", "bootstrap", _domain(), str(file))
        return "look at it with: thinwire-node status; its log is service.log in the state directory"

    def is_known(self) -> bool:
        return _succeeds("launchctl", "print", f"{_domain()}/{LABEL}")

    def give_up(self, file: Path) -> None:
        try:
            _run("launchctl", "bootout", f"{_domain()}/{LABEL}")
        except CommandFailedError:
            if self.is_known():
                raise


class TaskScheduler(ServiceManager):
    """Windows' Task Scheduler."""

    encoding = "utf-16"  # with the mark that schtasks wants

    def file(self) -> Path:
        return Path.home() / ".thinwire" / f"{NAME}.xml"

    def render(self, service: Service) -> str:
        return windows_task(service)

    def take_up(self, file: Path) -> str:
        _said("schtasks", "/End", "/TN", NAME)  # one that runs would go on; it fails if none does
        _run("schtasks", "/Create", "/TN", NAME, "/XML", str(file), "/F")
        _run("schtasks", "/Run", "/TN", NAME)
        return "look at it with: thinwire-node status"

    def is_known(self) -> bool:
        return _succeeds("schtasks", "/Query", "/TN", NAME)

    def give_up(self, file: Path) -> None:
        _said("schtasks", "/End", "/TN", NAME)  # fails if it does not run
        try:
            _run("schtasks", "/Delete", "/TN", NAME, "/F")
        except CommandFailedError:
            if self.is_known():
                raise


def manager() -> ServiceManager:
    return {"darwin": Launchd, "win32": TaskScheduler}.get(sys.platform, Systemd)()


def _reload() -> None:
    """Have systemd read the definitions anew. Raises LocalError."""
    _run("systemctl", "--user", "daemon-reload", advice=f"; {NO_SESSION}")


def _domain() -> str:
    """launchd's name of this user's session."""
    return f"gui/{os.getuid()}" if sys.platform != "win32" else ""


def _run(*command: str, advice: str = "") -> str:
    """The output of a command. Raises CommandFailedError if it fails, and LocalError if it is missing or hangs. advice:
    ends the error of one that fails."""
    words = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SERVICE_MANAGER_S, check=False
        )
    except FileNotFoundError:
        raise LocalError(f"this machine has no {command[0]}; {BY_HAND}") from None
    except subprocess.TimeoutExpired:
        raise LocalError(f"`{words}` has not answered for {SERVICE_MANAGER_S:g} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"it ended with status {done.returncode}"
        raise CommandFailedError(f"`{words}` failed: {said}{advice}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    """Whether a command succeeds. Raises LocalError if it is missing or hangs."""
    try:
        _run(*command)
    except CommandFailedError:
        return False
    return True


def _said(*command: str) -> str:
    """The output of a command; empty if it fails."""
    try:
        return _run(*command)
    except LocalError:
        return ""
