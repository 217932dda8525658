"""The command `thinwire-node start`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from thinwire_common.logs import formatter, log_to, log_to_stderr
from thinwire_common.open_files import check_open_files
from thinwire_node import runtime
from thinwire_node.bind_host import check_free
from thinwire_node.cli.options import StartOptions
from thinwire_node.daemon import Node
from thinwire_node.data_addresses import DataAddresses
from thinwire_node.observe.monitor import Monitor
from thinwire_node.observe.terminal import Terminal, can_show
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.resources import ResourceLimits
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.storage.enrolment import choose, kept_name, read_destination
from thinwire_node.storage.state_slots import free_state_slot

FILES_LEAST = 64
"""Open files; a small node has 24 (measured)."""


def start(options: StartOptions) -> None:
    """Run a node until it leaves. Raises ThinwireError."""
    check_open_files(FILES_LEAST)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    peers = options.peers or PeerSettings()
    if peers.port is not None:
        check_free(peers.host, peers.port)
    given = read_destination(options.invite) if options.invite is not None else None
    with _logging(options) as terminal, _home(options) as (state_dir, default_name):
        destination = choose(state_dir, given)
        name = kept_name(state_dir) if options.name is None else options.name
        settings = NodeSettings(
            address=destination.address,
            invite=destination.invite,
            state_dir=state_dir,
            device=options.device,
            options=NodeOptions(
                name or default_name,
                options.micro_batch,
                options.rounds,
                options.cache_bytes,
                DataAddresses(options.data_schemes, options.data_networks or ()),
                peers,
                options.compute_max / 100,
            ),
            give_up_after_s=options.give_up_after,
            limits=ResourceLimits(options.memory_max, options.disk_max),
        )
        runtime.run(Monitor(Node(settings), terminal, options.metrics, options.metrics_tls).run)


@contextmanager
def _home(options: StartOptions) -> Iterator[tuple[Path, str]]:
    """The node's state directory and its default name."""
    if options.state_slots is None:
        yield options.state_dir, ""  # and not the machine's name, which may tell whose it is
        return
    with free_state_slot(options.state_slots) as slot:
        yield slot.folder, f"node-{slot.number}"


@contextmanager
def _logging(options: StartOptions) -> Iterator[Terminal | None]:
    """Log to stderr. If stderr is a terminal, open the live view below the log lines and return it."""
    if options.log_format != "text" or not can_show(sys.stderr):
        log_to_stderr(options.log_level, options.log_format)
        yield None
        return
    terminal = Terminal(sys.stderr)
    terminal.setFormatter(formatter("text", sys.stderr))
    log_to(terminal, options.log_level)
    try:
        terminal.open()
        yield terminal
    finally:
        terminal.close()
