"""Tests that a process sees the bound on its memory wherever the system has put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire_common.memory_limit import memory_limit_bytes

SERVICE = "0::/system.slice/thinwire-node.service\n"
FIRST_VERSION = "8:pids:/\n4:cpu,memory:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        pytest.param(SERVICE, {"system.slice/thinwire-node.service/memory.max": "800"}, 800, id="MemoryMax="),
        pytest.param(SERVICE, {"system.slice/memory.max": "700", "memory.max": "max"}, 700, id="of the slice"),
        pytest.param(
            SERVICE,
            {"system.slice/memory.max": "900", "system.slice/thinwire-node.service/memory.max": "800"},
            800,
            id="the smallest",
        ),
        pytest.param("0::/\n", {"memory.max": "500"}, 500, id="a container"),
        pytest.param("0::/../..\n", {"memory.max": "500"}, 500, id="a container that sees where it is"),
        pytest.param(FIRST_VERSION, {"memory/docker/abc/memory.limit_in_bytes": "600"}, 600, id="first version"),
        pytest.param(FIRST_VERSION, {"memory/memory.limit_in_bytes": "600"}, 600, id="its container"),
        pytest.param("0::/other\n", {"system.slice/memory.max": "700"}, None, id="another group"),
        pytest.param(SERVICE, {"system.slice/memory.max": "max"}, None, id="no bound"),
        pytest.param("", {}, None, id="no groups"),
    ],
)
def test_the_smallest_bound_from_the_own_group_to_the_root_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"{text}\n")
    assert memory_limit_bytes(tmp_path / "groups", tmp_path / "root") == limit


def test_a_system_without_control_groups_has_no_bound(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "nowhere", tmp_path / "nowhere") is None
