"""The options of `thinwire-node`, from the command line or from environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from thinwire_common.options import LogFormat, Options, host_and_port, log_format_option, option
from thinwire_node.data_addresses import DEFAULT_SCHEMES, SCHEMES, IpNetwork, read_networks
from thinwire_node.limits.limits import Limits
from thinwire_node.peer_settings import PeerSettings, read_peers
from thinwire_node.storage.blob_cache import CACHE_BYTES

DEFAULT_STATE_DIR = Path("~/.thinwire/node")
METRICS_HOST = "127.0.0.1"
DEVICE = re.compile(r"(auto|(?:cuda|xpu)(?::\d+)?|mps|cpu)(?:\*(\d{1,2}))?")
ALL_CARDS = "all"


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
    if text != ALL_CARDS:
        devices_named(text)
    return text


def _one_device(text: str) -> str:
    if text == ALL_CARDS or devices_named(text) != [text]:
        raise ValueError("must be one device; of several, each is examined by itself")
    return text


def devices_named(text: str) -> list[str]:
    """The devices of a list such as cuda:0,cuda:1 or cpu*2, each as often as it is named. Raises ValueError."""
    found: list[str] = []
    for entry in text.split(","):
        if (match := DEVICE.fullmatch(entry)) is None or match[2] == "0":
            raise ValueError(
                f"{entry!r} is not auto, cuda, cuda:N, xpu, xpu:N, mps or cpu; several, such as cuda:0,cuda:1, cpu*2 "
                "or all (the cards of this machine), make a node of several processes"
            )
        found += [match[1]] * int(match[2] or 1)
    return found


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
    return [name for entry in text.split(",") if (name := entry.strip())]


class NodeStateOptions(Options):
    PREFIX = "THINWIRE_NODE_"
    state_dir: Annotated[Path, AfterValidator(_below_home)] = option(
        "the state directory", DEFAULT_STATE_DIR, metavar="DIR", shown="~/.thinwire/node"
    )


class LimitsOptions(NodeStateOptions):
    limits: Path | None = option(
        "the file with the limits", None, metavar="FILE", shown="limits.toml in the state directory"
    )


class StatusOptions(NodeStateOptions):
    state_slots: Path | None = option("show every node that has a folder DIR/0, DIR/1, …", None, metavar="DIR")


class DoctorOptions(NodeStateOptions):
    invite: str | None = option(
        "the invite of a run, whose coordinator is asked who it is",
        None,
        metavar="INVITE",
        positional=True,
        shown="the one that this state directory has joined with, if any",
        has_variable=False,
    )
    device: Annotated[str, AfterValidator(_one_device)] = option(
        "auto, cuda, cuda:N, xpu, xpu:N, mps or cpu", "auto", metavar="DEVICE", has_variable=False
    )
    threads: int | None = option("CPU threads", None, metavar="N", ge=1, has_variable=False)


class CertificateOptions(NodeStateOptions):
    invite: str | None = option(
        "with --check: an invite of the run, whose coordinator must have signed the certificate",
        None,
        metavar="INVITE",
        positional=True,
        has_variable=False,
    )
    check: Path | None = option("check the certificate in this file", None, metavar="FILE", has_variable=False)
    out: Path = option(
        "write the certificate to this file", Path("thinwire-certificate.json"), metavar="FILE", has_variable=False
    )
    badge: Path | None = option("also draw a badge, in SVG", None, metavar="FILE", has_variable=False)


class PageOptions(LimitsOptions):
    port: int = option(
        "serve the page on this port of 127.0.0.1",
        0,
        metavar="PORT",
        shown="any free one",
        has_variable=False,
        ge=0,
        le=65535,
    )


class SampleOptions(NodeStateOptions):
    prompt: str | None = option(
        "the text to continue", None, metavar="TEXT", positional=True, has_variable=False, shown="nothing, or `def `"
    )
    length: int = option("tokens to write", 200, metavar="N", has_variable=False, ge=1, le=100_000)
    temperature: float = option("0 takes the most likely token", 0.8, has_variable=False, ge=0, allow_inf_nan=False)
    seed: int = option("of the draws", 1, has_variable=False, ge=0, lt=1 << 63)


class StartOptions(LimitsOptions, Limits):
    invite: str | None = option(
        "the invite from the organizer, @FILE with it, or HOST:PORT of a coordinator on this machine",
        None,
        metavar="INVITE",
        positional=True,
        shown="the one that this state directory has joined with",
    )
    device: Annotated[str, AfterValidator(_device)] = option(
        "auto, cuda, cuda:N, xpu, xpu:N, mps or cpu; auto takes a free card. Several, such as cuda:0,cuda:1 or "
        "cpu*2, or all the cards of this machine: one node of several processes",
        "auto",
        metavar="DEVICE,…",
    )
    name: Annotated[str, AfterValidator(_name)] | None = option(
        "the node's name, shown to people",
        None,
        metavar="NAME",
        shown="the last one in this state directory, else the first digits of its id, or node-N in state slot N",
    )
    rounds: int | None = option("leave after N counted contributions", None, metavar="N", ge=1, has_variable=False)
    micro_batch: int | None = option(
        "maximum samples in a micro-batch; the node takes fewer if more do not fit into its memory",
        None,
        metavar="SAMPLES",
        shown="8, or 64 on a card",
        ge=1,
    )
    base_bits: Literal["16", "8", "4"] | None = option(
        "bits a parameter of a frozen base in memory, in a run of adapters",
        None,
        metavar="16|8|4",
        shown="those of its files, or as many as fit into the memory",
        has_variable=False,
    )
    compile: bool = option(
        "compile the model with torch.compile; it takes a C++ compiler, and minutes at the first start",
        False,
        has_variable=False,
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
    give_up_after: float | None = option(
        "exit after this long without a coordinator", None, metavar="SECONDS", shown="never", ge=0, allow_inf_nan=False
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
