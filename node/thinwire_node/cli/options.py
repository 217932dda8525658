"""The options of `thinwire-node`, from the command line or from environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from thinwire_common.options import (
    LogFormat,
    Options,
    host_and_port,
    log_format_option,
    option,
    threads_option,
)
from thinwire_common.units import read_bytes_size
from thinwire_node.data_addresses import DEFAULT_SCHEMES, SCHEMES, IpNetwork, read_networks
from thinwire_node.peer_settings import PeerSettings, read_peers
from thinwire_node.storage.blob_cache import CACHE_BYTES

DEFAULT_STATE_DIR = Path("~/.thinwire/node")
METRICS_HOST = "127.0.0.1"
DEVICE = re.compile(r"auto|cuda(:\d+)?|mps|cpu")


def _below_home(path: Path) -> Path:
    """The path with `~` replaced, or as it is if that is nobody's home folder; see `home_problem`."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def home_problem(path: Path) -> str:
    """What to do if a path leads to a home folder that does not exist; empty if it does not."""
    if not path.parts or not path.parts[0].startswith("~"):
        return ""
    return f"{path}: there is no such home folder; give --state-dir, or set THINWIRE_NODE_STATE_DIR"


def _name(text: str) -> str:
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise ValueError("it is not UTF-8, which this terminal or file should use")
    return text


def _device(text: str) -> str:
    if not DEVICE.fullmatch(text):
        raise ValueError(f"{text!r} is not auto, cuda, cuda:N, mps or cpu")
    return text


def _metrics(text: str) -> tuple[str, int]:
    return host_and_port(text, METRICS_HOST)


def _schemes(text: str) -> frozenset[str]:
    found = names(text)
    for scheme in found:
        if scheme not in SCHEMES:
            raise ValueError(f"{scheme!r} is none of {', '.join(SCHEMES)}")
    return frozenset(found)


def _networks(text: str) -> tuple[IpNetwork, ...]:
    return read_networks(names(text))


def names(text: str) -> list[str]:
    """The entries of a list with commas."""
    return [name for entry in text.split(",") if (name := entry.strip())]


class NodeStateOptions(Options):
    PREFIX = "THINWIRE_NODE_"
    state_dir: Annotated[Path, AfterValidator(_below_home)] = option(
        "the state directory", DEFAULT_STATE_DIR, metavar="DIR", shown="~/.thinwire/node"
    )


class StatusOptions(NodeStateOptions):
    state_slots: Path | None = option("show every node that has a folder DIR/0, DIR/1, …", None, metavar="DIR")


class StartOptions(NodeStateOptions):
    invite: str | None = option(
        "the invite from the organizer, @FILE with it, or HOST:PORT of a coordinator on this machine",
        None,
        metavar="INVITE",
        positional=True,
        shown="the one that this state directory has joined with",
    )
    device: Annotated[str, AfterValidator(_device)] = option(
        "auto, cuda, cuda:N, mps or cpu; auto takes a free card", "auto", metavar="DEVICE"
    )
    name: Annotated[str, AfterValidator(_name)] | None = option(
        "the node's name, shown to people",
        None,
        metavar="NAME",
        shown="the last one in this state directory, else the first digits of its id, or node-N in state slot N",
    )
    rounds: int | None = option("leave after N counted contributions", None, metavar="N", ge=1, has_variable=False)
    micro_batch: int = option("maximum samples in a micro-batch", 8, metavar="SAMPLES", ge=1)
    compute_max: int = option(
        "percentage of the time that the node may spend computing; it rests between micro-batches",
        100,
        metavar="PERCENT",
        ge=1,
        le=100,
    )
    cache_bytes: int = option(
        "maximum size of the training data and base weights that the node keeps on disk",
        CACHE_BYTES,
        metavar="BYTES",
        shown="4294967296 (4 GiB)",
        ge=0,
    )
    data_schemes: Annotated[frozenset[str], BeforeValidator(_schemes)] = option(
        f"schemes of addresses in a contract that the node reads data from, of {', '.join(SCHEMES)}",
        ",".join(DEFAULT_SCHEMES),
        metavar="SCHEME,…",
    )
    data_networks: Annotated[tuple[IpNetwork, ...], BeforeValidator(_networks)] | None = option(
        "networks beside the public internet that these addresses may lead to: loopback, private, or such as "
        "192.168.1.0/24",
        None,
        metavar="NETWORK,…",
        shown="none",
    )
    peers: Annotated[PeerSettings, BeforeValidator(read_peers)] | None = option(
        "in a gossip run, listen on this port for other nodes, who reach it at HOST, so that the coordinator "
        "does not hand on the messages; or relay: have no direct line to any node",
        None,
        metavar="[HOST:]PORT",
        shown="listen on no port, and connect to nodes that do",
    )
    memory_max: Annotated[int, BeforeValidator(read_bytes_size)] | None = option(
        "memory that a run may need, such as 8G; a run that needs more is refused",
        None,
        metavar="SIZE",
        shown="nine tenths of the machine's",
    )
    disk_max: Annotated[int, BeforeValidator(read_bytes_size)] | None = option(
        "disk space that a run may need, such as 20G, with the data that the node keeps",
        None,
        metavar="SIZE",
        shown="nine tenths of the free space",
    )
    threads: int | None = threads_option("all cores")
    give_up_after: float | None = option(
        "exit after this long without a coordinator",
        None,
        metavar="SECONDS",
        shown="never",
        ge=0,
        allow_inf_nan=False,
    )
    metrics: Annotated[tuple[str, int], BeforeValidator(_metrics)] | None = option(
        f"serve /metrics, /livez and /readyz on this port; HOST is {METRICS_HOST} by default, and beyond this machine "
        "needs --metrics-tls",
        None,
        metavar="[HOST:]PORT",
        shown="not at all",
    )
    metrics_tls: Path | None = option(
        "serve the metrics over HTTPS, to other machines too; the node makes a certificate in this folder, whose "
        "node.pem the scraper needs",
        None,
        metavar="DIR",
    )
    log_level: Literal["debug", "info", "warning"] = option("the lowest level that is logged", "info")
    log_format: LogFormat = log_format_option()
    state_slots: Path | None = option(
        "for several nodes on one machine: use a free folder DIR/0, DIR/1, … as the state directory",
        None,
        metavar="DIR",
    )
