"""Tests of a node's ready file: it exists only while the node takes part."""

from __future__ import annotations

import asyncio
from pathlib import Path

from thinwire_common.ready_file import READY_FILE, write_ready
from thinwire_node.daemon import Node
from thinwire_node.observe.monitor import Monitor
from thinwire_node.options import NodeOptions
from thinwire_node.settings import NodeSettings


def settings(folder: Path) -> NodeSettings:
    """The settings of a node without a coordinator."""
    return NodeSettings("127.0.0.1:1", folder / "node", "cpu", NodeOptions("a", 4, None), None)


class BriefNode(Node):
    """Joins, and leaves while the monitor writes the ready file."""

    async def run(self, stop: asyncio.Event) -> None:
        self.has_joined.set()
        for _ in range(2):  # wakes the monitor's task, which starts the write
            await asyncio.sleep(0)


async def test_a_node_that_leaves_at_once_leaves_no_ready_file(tmp_path: Path) -> None:
    told = settings(tmp_path)
    told.state_dir.mkdir()
    await Monitor(BriefNode(told), None, None).run(asyncio.Event())
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(told.state_dir.iterdir()) == []


async def test_the_ready_file_of_a_killed_process_is_removed_before_the_node_joins(tmp_path: Path) -> None:
    told, stop = settings(tmp_path), asyncio.Event()
    told.state_dir.mkdir()
    write_ready(told.state_dir / READY_FILE)
    stop.set()
    node = Node(told)
    await Monitor(node, None, None).run(stop)
    assert not node.has_joined.is_set()
    assert not (told.state_dir / READY_FILE).exists()
