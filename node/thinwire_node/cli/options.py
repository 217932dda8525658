"""What `thinwire-node` can be told, by options or by environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from thinwire_common.options import Options, RemoteAddress, host_and_port, option

DEFAULT_STATE_DIR = Path.home() / ".thinwire" / "node"
METRICS_HOST = "127.0.0.1"


def _metrics(text: str) -> str:
    host_and_port(text, METRICS_HOST)
    return text


class StateOptions(Options):
    state_dir: Path = option("the state directory", DEFAULT_STATE_DIR, metavar="DIR", shown="~/.thinwire/node")


class StartOptions(StateOptions):
    coordinator: RemoteAddress = option("where the coordinator listens", metavar="HOST:PORT", positional=True)
    device: str = option("auto, cuda, cuda:N, mps or cpu; auto takes a free card", "auto", metavar="DEVICE")
    name: str | None = option(
        "for people to read", None, metavar="NAME", shown="the machine's, or node-N in state slot N"
    )
    rounds: int | None = option("leave after N counted contributions", None, metavar="N", ge=1)
    micro_batch: int = option("samples at a time", 8, metavar="SAMPLES", ge=1)
    threads: int | None = option("CPU threads", None, metavar="N", shown="all cores", ge=1)
    give_up_after: float | None = option("without a coordinator", None, metavar="SECONDS", shown="never")
    metrics: Annotated[str, AfterValidator(_metrics)] | None = option(
        f"serve /metrics, /livez and /readyz there, on {METRICS_HOST} unless a HOST is given",
        None,
        metavar="[HOST:]PORT",
        shown="not at all",
    )
    log_level: Literal["debug", "info", "warning"] = option("the least important lines that are logged", "info")
    log_format: Literal["text", "json"] = option("text, or one JSON object a line", "text")
    ready_file: Path | None = option(
        "JSON with the addresses, written when the node has joined",
        None,
        metavar="FILE",
        shown="ready.json in the state directory",
    )
    state_slots: Path | None = option(
        "for several nodes on one machine: a free folder DIR/0, DIR/1, … is the state directory", None, metavar="DIR"
    )
