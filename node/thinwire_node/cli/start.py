"""The command `thinwire-node start`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from thinwire_common.logs import formatter, log_to, log_to_stderr
from thinwire_common.open_files import check_open_files
from thinwire_node import runtime
from thinwire_node.cli.follower import follow
from thinwire_node.cli.keyboard import Keys
from thinwire_node.cli.options import StartOptions
from thinwire_node.cli.site import Launch, devices_of, followers, launch, meeting
from thinwire_node.daemon import Node
from thinwire_node.data_addresses import DataAddresses
from thinwire_node.limits.keeper import LimitsSource
from thinwire_node.limits.limits import Limits, changed, check
from thinwire_node.limits.machine_load import set_priority
from thinwire_node.observe.monitor import Monitor
from thinwire_node.observe.terminal import Terminal, can_show
from thinwire_node.peer_settings import PeerSettings, check_free
from thinwire_node.resources import ResourceLimits
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.storage.base_files import users_folder
from thinwire_node.storage.enrolment import choose, kept_name, read_destination
from thinwire_node.storage.state_slots import free_state_slot
from thinwire_node.training.ranks import Ranks
from thinwire_proto.errors import UsageError

FILES_LEAST = 64
"""Open files; a small node has 24 (measured)."""


def start(options: StartOptions, given: Mapping[str, str]) -> None:
    """Run a node until it leaves. given: the limits on the command line, as texts. Raises ThinwireError."""
    check_open_files(FILES_LEAST)
    peers = options.peers or PeerSettings()
    if peers.port is not None:
        check_free(peers.host, peers.port)
    invite = read_destination(options.invite) if options.invite is not None else None
    launched = launch()
    devices = devices_of(options.device, launched)
    if options.compile and (launched is not None or len(devices) > 1):
        raise UsageError("--compile is for a node on one device")
    if launched is not None and launched.rank:
        _obey(check(changed({}, dict(given))))
        with meeting(launched) as ranks:
            follow(ranks, devices[0])
        return
    with _logging(options) as terminal, _home(options) as (state_dir, default_name):
        destination = choose(state_dir, invite)
        source = LimitsSource(options.limits, given)
        limits = source.read(state_dir)
        _obey(limits)
        name = kept_name(state_dir) if options.name is None else options.name
        settings = NodeSettings(
            address=destination.address,
            invite=destination.invite,
            state_dir=state_dir,
            device=devices[0],
            options=NodeOptions(
                name or default_name,
                options.micro_batch,
                options.rounds,
                options.cache_bytes,
                DataAddresses(options.data_schemes, options.data_networks or ()),
                peers,
                limits.max_compute / 100,
                int(options.base_bits) if options.base_bits else None,
                options.compile,
            ),
            give_up_after_s=options.give_up_after,
            limits=ResourceLimits(limits.max_memory, limits.max_disk),
            own=source,
            bases=users_folder() if options.state_slots is None else options.state_slots / "bases",
        )
        with _ranks(devices, launched) as ranks:
            node = Node(replace(settings, ranks=ranks))
            keys = Keys(state_dir, terminal)
            try:
                runtime.run(Monitor(node, terminal, options.metrics, options.metrics_tls, keys.open).run)
            finally:
                keys.close()


def _obey(limits: Limits) -> None:
    """Take the limits that hold for a whole process. Followers that this one starts have them too."""
    if limits.threads is not None:
        torch.set_num_threads(limits.threads)
    set_priority(limits.priority)


@contextmanager
def _ranks(devices: Sequence[str], launched: Launch | None) -> Iterator[Ranks | None]:
    """The processes of this node, or None if this is the only one."""
    if launched is not None:
        with meeting(launched) as ranks:
            yield ranks
    elif len(devices) == 1:
        yield None
    else:
        threads = max(1, torch.get_num_threads() // len(devices))
        torch.set_num_threads(threads)
        with followers(devices, threads) as ranks:
            yield ranks


@contextmanager
def _home(options: StartOptions) -> Iterator[tuple[Path, str]]:
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
