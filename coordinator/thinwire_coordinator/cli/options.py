"""What `thinwire-coordinator` can be told, by options or by environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from thinwire_common.options import Address, Options, RemoteAddress, host_and_port, option

DEFAULT_ADDRESS = "127.0.0.1:7700"
DEFAULT_HTTP = "127.0.0.1:7701"
NO_HTTP = "off"
KEEP_MIN = 2
"""Snapshots: one to go on from, and one to fall back on."""


def _http(text: str) -> str:
    if text != NO_HTTP:
        host_and_port(text)
    return text


class CommonOptions(Options):
    """Of every command."""

    log_level: Literal["debug", "info", "warning"] = option("the least important lines that are logged", "info")


class StateOptions(CommonOptions):
    """Of the commands that work on a state directory."""

    state_dir: Path = option("the state directory", metavar="DIR")


class ReplayOptions(StateOptions):
    threads: int | None = option(
        "CPU threads", None, metavar="N", ge=1, shown="one for a model below 8M parameters, else all cores"
    )


class ServeOptions(StateOptions):
    run: Path | None = option("the run; without it, the byte model", None, metavar="RUN.toml")
    listen: Address = option("where nodes join; port 0 is a free one", DEFAULT_ADDRESS, metavar="HOST:PORT")
    wait_for: int = option("nodes before the first round", 1, metavar="N", ge=1)
    evaluate_every: int = option("steps from one held-out loss to the next", 20, metavar="STEPS", ge=1)
    keep: int | None = option(
        "keep the newest N snapshots (2 or more) and every update since the oldest of them; without it, everything "
        "from the first state on",
        None,
        metavar="N",
        ge=KEEP_MIN,
    )
    bodies: str | None = option(
        "where a new run's updates are kept: a folder, s3://BUCKET/PREFIX, …",
        None,
        metavar="URL",
        shown="in the state directory",
    )
    http: Annotated[str, AfterValidator(_http)] | None = option(
        "the page, and the metrics; 'off' for none",
        None,
        metavar="HOST:PORT",
        shown=f"{DEFAULT_HTTP}, or a free port",
    )
    log_format: Literal["text", "json"] = option("text, or one JSON object a line", "text")
    ready_file: Path | None = option(
        "JSON with the addresses, written when nodes can join",
        None,
        metavar="FILE",
        shown="ready.json in the state directory",
    )


class StatusOptions(CommonOptions):
    coordinator: RemoteAddress = option(
        "where the coordinator listens", DEFAULT_ADDRESS, metavar="HOST:PORT", positional=True
    )
