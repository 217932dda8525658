"""Settings of `thinwire-coordinator`, from options or environment variables."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from thinwire_common.options import (
    Address,
    LogFormat,
    Options,
    host_and_port,
    log_format_option,
    option,
    threads_option,
)
from thinwire_coordinator.hall.access.addresses import checked_address
from thinwire_proto.identity.invite import PREFIX

DEFAULT_ADDRESS = "127.0.0.1:7700"
DEFAULT_HTTP = "127.0.0.1:7701"
NO_HTTP = "off"
THREADS_BY_MODEL = "one for a model below 8M parameters, otherwise all cores"
AUDIT_EVERY = 4
"""Rounds from one audit to the next, by default."""
KEEP_MIN = 2
"""Minimum number of snapshots to keep: one to continue from, and one to fall back to."""


def _http(text: str) -> str:
    if text != NO_HTTP:
        host_and_port(text)
    return text


def _network(text: object) -> object:
    try:
        return ip_network(text) if isinstance(text, str) else text
    except ValueError:
        raise ValueError(f"{text!r} is no network, as in 127.0.0.1 or 10.0.0.0/24") from None


def _coordinator(text: str | None) -> str | None:
    if text is not None and not text.startswith((PREFIX, "@")):
        host_and_port(text, port_min=1)
    return text


class CommonOptions(Options):
    """Options of every command."""

    PREFIX = "THINWIRE_COORDINATOR_"
    log_level: Literal["debug", "info", "warning"] = option("lowest level that is logged", "info")


class RunStateOptions(CommonOptions):
    """Options of the commands that work on a state directory."""

    state_dir: Path = option("the state directory", metavar="DIR")


class ReplayOptions(RunStateOptions):
    threads: int | None = threads_option(THREADS_BY_MODEL)


class ServeOptions(RunStateOptions):
    run: Path | None = option("the run file; without it, the byte model is trained", None, metavar="RUN.toml")
    listen: Address = option(
        "address on which nodes join; port 0 picks a free port", DEFAULT_ADDRESS, metavar="HOST:PORT"
    )
    address: Annotated[str, AfterValidator(checked_address)] | None = option(
        "where nodes find the coordinator, for its invites: the router's or the tunnel's address, if there is one",
        None,
        metavar="HOST:PORT",
        shown="as --listen; for 0.0.0.0 and [::], this machine's address",
    )
    invite_file: Path | None = option(
        "keep an invite for any number of nodes in this file, for programs that start nodes",
        None,
        metavar="FILE",
    )
    insecure: bool = option("plain text, and nodes without an invite; for this machine alone", False)
    tls_certificate: Path | None = option(
        "the organizer's own certificate, PEM with its chain, instead of one that the coordinator makes; it is read "
        "again when it changes",
        None,
        metavar="FILE",
    )
    tls_key: Path | None = option("the key of --tls-certificate, PEM", None, metavar="FILE")
    tls_proxy: Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)] | None = option(
        "a proxy in this network terminates TLS, as in 127.0.0.1 or 10.0.0.0/24; the ports speak plain text to it, and "
        "to nobody else",
        None,
        metavar="NETWORK",
    )
    tls_proxy_forwards: bool = option(
        "the proxy adds its client's address to X-Forwarded-For, so limits by address hold for each client",
        False,
    )
    tls_ca_file: Path | None = option(
        "also write the certificate of the coordinator's TLS authority to this file, for browsers and Prometheus",
        None,
        metavar="FILE",
        shown="tls/ca.pem in the state directory",
    )
    threads: int | None = threads_option(THREADS_BY_MODEL)
    wait_for: int = option("number of nodes to wait for before the first round", 1, metavar="N", ge=1)
    evaluate_every: int = option("measure the held-out loss every STEPS steps", 20, metavar="STEPS", ge=1)
    evaluate: Literal["coordinator", "nodes", "auto"] = option(
        "who measures the held-out loss: coordinator, nodes (two for each part, and compared), or auto (nodes if the "
        "model is large)",
        "coordinator",
    )
    audit_every: int = option(
        "audit two contributions in one of N rounds, as far as 2% of the coordinator's time allows; 0: never",
        AUDIT_EVERY,
        metavar="N",
        ge=0,
    )
    keep: int | None = option(
        "keep the newest N snapshots (2 or more) and every update since the oldest of them; without it, keep "
        "everything since the initial state",
        None,
        metavar="N",
        ge=KEEP_MIN,
    )
    bodies: str | None = option(
        "where a new run stores its updates: a folder, s3://BUCKET/PREFIX, …",
        None,
        metavar="URL",
        shown="in the state directory",
    )
    http: Annotated[str, AfterValidator(_http)] | None = option(
        "address of the page and the metrics; 'off' disables both",
        None,
        metavar="HOST:PORT",
        shown=f"{DEFAULT_HTTP}, or a free port",
    )
    follow: Address | None = option(
        "be the standby of the coordinator at this address, until `promote`; the state directory comes from `restore`",
        None,
        metavar="HOST:PORT",
    )
    seal_after_standby: bool = option("a step is sealed only when the standby has it, too", False)
    log_format: LogFormat = log_format_option()
    tensorboard: Path | None = option(
        "also write the curves for TensorBoard into a folder of this run; needs thinwire[tensorboard]",
        None,
        metavar="DIR",
    )
    wandb: str | None = option(
        "also log the curves to this project of Weights & Biases; needs thinwire[wandb]",
        None,
        metavar="PROJECT",
    )


class StatusOptions(CommonOptions):
    coordinator: Annotated[str | None, AfterValidator(_coordinator)] = option(
        "the coordinator: an invite, @FILE with one, or HOST:PORT on this machine",
        None,
        metavar="COORDINATOR",
        shown=f"the one that runs on --state-dir, or {DEFAULT_ADDRESS}",
        positional=True,
        has_variable=False,
    )
    state_dir: Path | None = option(
        "the coordinator's state directory: shows the organizer more of each node", None, metavar="DIR"
    )
