"""`prepare` is killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.file_server import serving
from support.prepared import InterruptedAt, prepared
from thinwire_coordinator.prepare.checkpoint import STATE_FILE
from thinwire_coordinator.prepare.preparation import Settings, prepare
from thinwire_coordinator.prepare.problems import Counts, TooManyProblems
from thinwire_coordinator.prepare.sources import WORK_FOLDER, parse_sources
from thinwire_proto.data.manifest import MANIFEST_FILE

TEXTS = [
    f"{number} is one of the numbers " + "that are counted here, one after another. " * 40 for number in range(4000)
]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
LESS = LINES[: 3 << 20].rpartition(b"\n")[0] + b"\n"
LOOK_EVERY_S = 0.05
TESTS = Path(__file__).parents[1]
PROGRAM = """
import sys
from pathlib import Path
from support.disks import fill, small_disk
from support.prepared import prepared
prepared(Path(sys.argv[1]), *sys.argv[2:], checkpoint_bytes=1 << 20)
"""


def start(out: Path, *sources: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(out), *sources]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(TESTS)})


def checkpointed(out: Path, source: int = 0) -> bool:
    """Whether a part of the source with this number is noted as read."""
    try:
        state = json.loads((out / WORK_FOLDER / STATE_FILE).read_bytes())
    except FileNotFoundError:
        return False
    return len(state["divided"]) == source and bool(state["current"] and state["current"]["total"][0])


def test_a_killed_run_goes_on_and_makes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first source is read, and the second stalls in its middle, when the process is killed."""
    (tmp_path / "first.txt").write_text("one file\n" * 40_000)
    whole = prepared(
        tmp_path / "whole", f"first={tmp_path / 'first.txt'}", f"second={write(tmp_path / 'a.jsonl', LINES)}"
    )
    with serving({"/a.jsonl": LINES}) as server:
        sources = f"first={tmp_path / 'first.txt'}", f"second={server.url}/a.jsonl"
        server.stall_after = len(LINES) - 1000
        process = start(tmp_path / "out", *sources)
        try:
            while not checkpointed(tmp_path / "out", source=1):
                with suppress(subprocess.TimeoutExpired):
                    raise AssertionError(f"ended with {process.wait(LOOK_EVERY_S)}")
        finally:
            process.kill()
            process.communicate()
        assert not (tmp_path / "out" / MANIFEST_FILE).exists()
        server.goes_on.set()
        server.stall_after = None
        capsys.readouterr()
        made = prepared(tmp_path / "out", *sources)
    said = capsys.readouterr().err
    assert "second: going on after " in said
    assert [line for line in said.splitlines() if line.startswith("first")] == ["first: write shards"]
    assert made.manifest_hash == whole.manifest_hash
    assert not (tmp_path / "out" / WORK_FOLDER).exists()


def test_sources_that_are_read_are_not_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command is interrupted when the shards of the first of two sources are written."""
    out = tmp_path / "out"
    content = LESS + b'{"text": null}\n' * 3
    sources = [f"{name}={write(tmp_path / f'{name}.jsonl', content)}" for name in ("first", "second")]
    with pytest.raises(KeyboardInterrupt):
        prepare(Settings(parse_sources(sources), out), InterruptedAt("second: write shards"))
    capsys.readouterr()
    made = prepared(out, *sources)
    assert capsys.readouterr().err.splitlines() == ["second: write shards"]
    assert made.counts == Counts(null_texts=6)
    assert made.manifest_hash == prepared(tmp_path / "whole", *sources).manifest_hash


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("change", ["source", "settings", "damage"])
def test_a_run_of_something_else_begins_anew(tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If the source or a setting changed, or the note is damaged, nothing of the interrupted run is used."""
    source, out = write(tmp_path / "a.jsonl", LESS + b"no JSON\n"), tmp_path / "out"
    with pytest.raises(TooManyProblems):
        prepared(out, source, bad_max=0)
    assert checkpointed(out)
    settings = {"held_out": 0.1} if change == "settings" else {}
    if change == "source":
        write(source, LESS[: len(LESS) // 2].rpartition(b"\n")[0])
    elif change == "damage":
        (out / WORK_FOLDER / STATE_FILE).write_bytes(b"{")
    capsys.readouterr()
    made = prepared(out, source, **settings)
    assert "going on" not in capsys.readouterr().err
    assert made.manifest_hash == prepared(tmp_path / "fresh", source, **settings).manifest_hash
