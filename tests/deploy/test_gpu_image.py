"""The image for nodes on GPUs fits its Dockerfile and the volumes of the swarm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def node_of(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["services"]["node"]
    return found


def test_the_dockerfile_takes_each_argument_and_the_image_has_a_compiler() -> None:
    given = node_of(ROOT / "deploy" / "compose.gpu.yml")["build"]["args"]
    assert given.keys() <= set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(), re.MULTILINE))
    assert "gcc" in given["PACKAGES"].split()


def test_what_a_node_on_a_gpu_writes_is_on_a_volume() -> None:
    """The rest of its file system is read-only."""
    mounted = [volume.split(":")[1] for volume in node_of(ROOT / "docker-compose.yml")["volumes"]]
    environment = node_of(ROOT / "deploy" / "compose.gpu.yml")["environment"]
    for name in ("THINWIRE_NODE_RUNTIME_DIR", "TRITON_CACHE_DIR"):
        assert any(environment[name].startswith(f"{folder}/") for folder in mounted), name
