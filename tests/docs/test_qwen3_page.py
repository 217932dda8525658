"""The run file for Qwen3-8B lacks only the base's weights and the data, and its page shows what the forecast prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from examples.fine_tune.qwen3_8b.forecast import HERE, tables, with_forecast
from examples.running.figures import PAGE
from support.planning import prepared
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.prepare.chat_template import ChatTemplate
from thinwire_coordinator.prepare.conversations import Conversation

TURNS = [("user", "Hi"), ("assistant", "Hello."), ("user", "2+2?"), ("assistant", "4.")]


def test_the_page_shows_the_forecast() -> None:
    page = (HERE / PAGE).read_text(encoding="utf-8")
    assert with_forecast(page, tables()) == page


def test_a_start_lacks_only_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(HERE, folder)
    prepared(folder / "data", vocabulary=151_669)
    with pytest.raises(SystemExit):
        check(parser().parse_args(["check", str(folder / "run.toml"), "--machine", "rtx-3060"]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "no safetensors yet" in shown
    assert "1 error, no warnings" in shown
    assert "a card of 12 GB a base of 4 bits, 1 sample of 1,024 tokens at once, with checkpoints" in shown


def test_the_template_keeps_the_turns_of_a_conversation() -> None:
    messages = [{"role": role, "content": content} for role, content in TURNS]
    template = ChatTemplate((HERE / "template.jinja").read_text(encoding="utf-8"), {})
    found = template.render(Conversation(messages))
    assert [found.text[begin:end] for begin, end in found.counts] == ["Hello.<|im_end|>\n", "4.<|im_end|>\n"]
