"""The commands of docs/organizer.md, run as they stand there: from a folder of text to a model that transformers opens.

What differs is only what makes the run small: the vocabulary, the number of steps, the length of a round. Ports are
free ones, and each node has its own state directory, because both are on one machine.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from support.fork_server import run
from support.real import END_S, PATIENCE_S, RealSwarm, ended
from thinwire_coordinator.cli.parser import parser

PAGE = Path(__file__).parents[2] / "docs" / "organizer.md"
BLOCK = re.compile(
    r"^(?P<quote>(?:> )?)```(?P<role>sh [a-z ]+|python)\n(?P<text>.*?)^(?P=quote)```", re.DOTALL | re.MULTILINE
)
STEPS = 6
SMALLER = {"--train-tokenizer 4096": "--train-tokenizer 320", "init ": f"init --steps {STEPS} "}
LISTEN, INVITE = "0.0.0.0:7700", "INVITE"


def blocks() -> list[tuple[str, str]]:
    """(role, text) of the blocks to run, in the order of the page."""
    found = []
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        lines = [line.removeprefix(match["quote"].rstrip()).lstrip() for line in match["text"].splitlines()]
        found.append((match["role"], match["text"] if match["role"] == "python" else "\n".join(lines)))
    return found


def write_texts(folder: Path) -> None:
    """Sixty small files of an invented language, in two folders."""
    words = (
        "once",
        "upon",
        "a",
        "time",
        "there",
        "was",
        "a",
        "wire",
        "thin",
        "and",
        "long",
        "that",
        "carried",
        "votes",
    )
    for number in range(60):
        text = " ".join(words[(number * 7 + place * place) % len(words)] for place in range(900))
        path = folder / ("old" if number % 2 else "new") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Reader:
    """Someone who types what stands on the page."""

    def __init__(self, swarm: RealSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
        self._swarm = swarm
        self._monkeypatch = monkeypatch
        self._nodes = 0
        self.said: dict[str, str] = {}
        """The output of each command of the coordinator."""
        monkeypatch.chdir(swarm.folder)

    def type(self, role: str, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "mkdir":
            Path(words[1]).mkdir()
        elif words[0] == "cd":
            self._monkeypatch.chdir(words[1])
            write_texts(Path("my-texts"))
        elif words[0] == "thinwire-node":
            self._nodes += 1
            self._start_node(words, f"volunteer-{self._nodes}")
        elif role == "sh organizer background":
            at = words.index("--state-dir") + 1
            process = self._swarm.start("coordinator", *[word.replace(LISTEN, "127.0.0.1:0") for word in words])
            self._swarm.address = process.wait_until_ready(Path(words[at]), PATIENCE_S)["address"]
        else:
            self._run(line)

    def _start_node(self, words: list[str], name: str) -> None:
        own = ("--state-dir", str(self._swarm.folder / name), "--name", name, "--threads", "1")
        invite = self.said["invite"].splitlines()[-1]
        self._swarm.start(name, *[word.replace(INVITE, invite) for word in words], *own)

    def _run(self, line: str) -> None:
        for long, short in SMALLER.items():
            line = line.replace(long, short)
        words = shlex.split(line)
        if words[1] == "status":
            words.append(self._swarm.address)
        if words[1] == "sample":  # the reader waits for the end of the run
            for process in self._swarm.processes[1:]:
                assert ended(process) == 0, process.tail(20)
        done = run(words, self._swarm.folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.said[words[1]] = done.stdout
        if words[1] == "init":
            path = Path("run.toml")
            path.write_text(re.sub("length_ms = .*", "length_ms = 500", path.read_text()))


@pytest.mark.timeout(240)
def test_the_guide_leads_to_a_model_that_transformers_opens(swarm: RealSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, printed = Reader(swarm, monkeypatch), io.StringIO()
    for role, text in blocks():
        if role == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(PAGE), "exec"), {})  # the page is ours
        else:
            for line in text.splitlines():
                reader.type(role, line)
    assert list(reader.said) == ["prepare", "init", "check", "invite", "status", "sample", "export", "verify"]
    assert "no errors" in reader.said["check"]
    assert reader.said["sample"].startswith("Once upon a time")
    assert "Once upon a time" in printed.getvalue()
    assert f"step {STEPS}: head" in reader.said["verify"]
    coordinator, *nodes = swarm.processes
    assert len(nodes) == 2
    coordinator.end(END_S)
    assert coordinator.popen.returncode == 0


def test_the_reference_has_every_command_and_no_other() -> None:
    reference = re.findall(
        r"^thinwire-coordinator (\w+)", PAGE.read_text(encoding="utf-8").partition("# Reference")[2], re.M
    )
    actions = [action for action in parser()._actions if isinstance(action.choices, dict)]
    assert sorted(reference) == sorted(actions[0].choices or ())
