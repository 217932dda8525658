"""`prepare` keeps what it did not make, and keeps out of the way of another run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.file_server import serving
from support.prepared import prepared
from thinwire_coordinator.prepare.images import ImageSettings, prepare_images
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.sources import CLAIM_FILE, WORK_FOLDER
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE
from thinwire_proto.errors import ConfigError

PROGRAM = """
import sys
from pathlib import Path
from support.prepared import prepared
prepared(Path(sys.argv[1]), sys.argv[2])
"""


def texts(folder: Path, count: int = 20) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"Document {number} is about the number {number * 7919}. " * 20)
    return folder


@pytest.mark.parametrize("name", [f"{WORK_FOLDER}/novel.txt", f"{BLOBS_FOLDER}/{'0' * 64}", BLOBS_FOLDER])
def test_files_that_prepare_did_not_make_are_kept(tmp_path: Path, name: str) -> None:
    """Such as a novel in a folder of the same name, or the shards of a run, in its state directory."""
    out = tmp_path / "out"
    mine = out / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match="is not of an interrupted prepare, and prepare would delete what is in it"):
        prepared(out, texts(tmp_path / "in"))
    with pytest.raises(ConfigError, match="is not of an interrupted prepare"):
        prepare_images(ImageSettings(str(tmp_path / "in"), out, 8), Shown())
    assert mine.read_text() == "mine"


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    """It would delete the work of the first, which can still go on, and makes what it makes alone."""
    lines = "".join(json.dumps({"text": f"Text {number} " * 50}) + "\n" for number in range(4000)).encode()
    out = tmp_path / "out"
    with serving({"/a.jsonl": lines}) as server:
        server.stall_after = len(lines) - 1000
        command = [sys.executable, "-c", PROGRAM, str(out), f"a={server.url}/a.jsonl"]
        first = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        try:
            assert first.stderr is not None
            assert first.stderr.readline().startswith("a")  # it has begun with the source
            with pytest.raises(ConfigError, match="another prepare works in it; wait for its end"):
                prepared(out, f"a={server.url}/a.jsonl")
        finally:
            server.goes_on.set()
            said = first.communicate()[1]
        assert "start the command again to go on" in said
        server.stall_after = None
        prepared(out, f"a={server.url}/a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(lines)
    prepared(tmp_path / "alone", tmp_path / "a.jsonl")
    assert (out / MANIFEST_FILE).read_bytes() == (tmp_path / "alone" / MANIFEST_FILE).read_bytes()
    assert not (out / CLAIM_FILE).exists()
