"""`prepare` with preferences: layouts, what counts, pairs in one row, bad data, and the preview."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.prepared import prepared
from thinwire_coordinator.prepare.preparation import Prepared, Settings
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.sources import parse_sources
from thinwire_coordinator.prepare.summary import preview, summary
from thinwire_proto.data.conversations import BEGINS, CHOSEN, COUNTS, counted_of
from thinwire_proto.data.manifest import BLOBS_FOLDER
from thinwire_proto.data.token_shards import row_type
from thinwire_proto.errors import ConfigError

TEMPLATE = (
    "{% for message in messages %}<{{ message.role[0] }}>{{ message.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
MARKED = (
    "{% for message in messages %}<{{ message.role[0] }}>{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}</>{% endgeneration %}{% else %}{{ message.content }}</>{% endif %}"
    "{% endfor %}"
)
CONTEXT = 127
COUNT = 40


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def texts(number: int) -> tuple[str, str, str]:
    return f"hello {number}", "yes" + "!" * (number % 4), f"no {number}"


def of_texts(number: int) -> dict[str, Any]:
    prompt, chosen, rejected = texts(number)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "score": 1.5}


def explicit(number: int) -> dict[str, Any]:
    prompt, chosen, rejected = texts(number)
    return {"prompt": [user(prompt)], "chosen": [assistant(chosen)], "rejected": [assistant(rejected)]}


def implicit(number: int) -> dict[str, Any]:
    prompt, chosen, rejected = texts(number)
    return {"chosen": [user(prompt), assistant(chosen)], "rejected": [user(prompt), assistant(rejected)]}


def with_messages(number: int) -> dict[str, Any]:
    """Of UltraFeedback."""
    row = implicit(number)
    return row | {"prompt": texts(number)[0], "messages": row["chosen"]}


def of_share_gpt(number: int) -> dict[str, Any]:
    """Of LLaMA-Factory."""
    prompt, chosen, rejected = texts(number)
    row = {"conversations": [{"from": "human", "value": prompt}]}
    return row | {"chosen": {"from": "gpt", "value": chosen}, "rejected": {"from": "gpt", "value": rejected}}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(folder: Path, rows: list[Any], template: str = TEMPLATE, **settings: Any) -> Prepared:
    folder.mkdir(exist_ok=True)
    (folder / "template.jinja").write_text(template)
    source = lines(folder / "pairs.jsonl", rows)
    return prepared(folder / "out", source, chat_template=folder / "template.jinja", **{"context": CONTEXT, **settings})


def rows_of(made: Prepared, out: Path, context: int = CONTEXT) -> Any:
    (source,) = made.manifest.sources
    kind = row_type(context, np.dtype("u1"))
    shards = [shard.hash for shard in source.train + source.held_out]
    return np.concatenate([np.fromfile(out / BLOBS_FOLDER / name, kind) for name in shards])


def pairs_of(made: Prepared, out: Path) -> list[tuple[str, ...]]:
    """Of each pair in the shards: both texts, and what counts in each."""
    found = []
    for row in rows_of(made, out):
        begins = np.flatnonzero(row["marks"] & BEGINS)[1:]
        parts = list(zip(np.split(row["tokens"], begins), np.split(row["marks"], begins), strict=True))
        for (tokens, marks), (others, of_others) in zip(parts[::2], parts[1::2], strict=False):
            assert marks[0] == BEGINS | CHOSEN
            assert of_others[0] == BEGINS
            whole = [bytes(each).decode() for each in (tokens, others)]
            counts = [bytes(each[bits & COUNTS > 0]).decode() for each, bits in ((tokens, marks), (others, of_others))]
            found.append((*(text.rstrip("\0") for text in whole), *counts))
    return sorted(found)


def due(number: int) -> tuple[str, ...]:
    prompt, *responses = texts(number)
    begin = f"<u>{prompt}</><a>"
    return (*(f"{begin}{response}</>" for response in responses), *(f"{response}</>" for response in responses))


@pytest.mark.parametrize("layout", [of_texts, explicit, implicit, with_messages, of_share_gpt])
@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_each_layout_gives_whole_pairs_of_which_the_responses_count(tmp_path: Path, layout: Any, template: str) -> None:
    made = run(tmp_path, [layout(number) for number in range(COUNT)], template)
    assert pairs_of(made, tmp_path / "out") == sorted(map(due, range(COUNT)))
    form = made.manifest.conversations
    assert form is not None
    assert form.preferences
    marks = rows_of(made, tmp_path / "out")["marks"]
    (of_source,) = made.manifest.sources
    assert counted_of(marks, form) == sum(shard.counted for shard in of_source.train + of_source.held_out)
    (source,) = made.sources
    assert source.packed.conversations == COUNT
    assert source.packed.rows < COUNT
    assert f"pairs: {COUNT} preferences in {source.packed.rows} rows" in (text := summary(tmp_path / "out", made))
    assert f"model.context {CONTEXT}, with model.kind lora:" in text


def test_apart_each_pair_has_a_row(tmp_path: Path) -> None:
    made = run(tmp_path, [of_texts(number) for number in range(COUNT)], packed=False)
    assert made.sources[0].packed.rows == COUNT
    assert ((rows_of(made, tmp_path / "out")["marks"] & CHOSEN) > 0).sum(1).tolist() == [1] * COUNT


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_turns_before_the_responses_do_not_count(tmp_path: Path, template: str) -> None:
    def row(number: int) -> dict[str, Any]:
        begin = [user("hello"), assistant(f"hello {number}"), user("and?")]
        return {
            "chosen": [*begin, assistant("yes"), user("so?"), assistant("so")],
            "rejected": [*begin, assistant("no")],
        }

    made = run(tmp_path, [row(number) for number in range(5)], template)
    for chosen, rejected, *counts in pairs_of(made, tmp_path / "out"):
        assert counts == ["yes</>so</>", "no</>"]
        assert chosen.startswith("<u>hello</><a>hello ")
        assert rejected.endswith("<u>and?</><a>no</>")


def test_what_cannot_be_learned_from_is_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [of_texts(number) for number in range(10, 40)]
    bad = [
        {"prompt": "hello", "chosen": "yes", "rejected": "yes"},
        {"prompt": "hello", "chosen": [assistant("yes")], "rejected": [assistant("yes")]},
        {"prompt": "hello", "chosen": "yes", "rejected": " "},
        {"prompt": "hello", "chosen": None, "rejected": "no"},
        {"chosen": [user("hello"), assistant("yes")], "rejected": [user("hello"), assistant("yes"), user("no")]},
        {"chosen": "yes", "rejected": "no"},
        {"prompt": "hello", "chosen": 3, "rejected": "no"},
        {"prompt": 5, "chosen": "yes", "rejected": "no"},
        {"prompt": "hello", "chosen": "yes", "rejected": "no" * CONTEXT},
    ]
    made = run(tmp_path, good + bad)
    assert made.counts._asdict() | {"bad": 3, "no_response": 3, "equal": 2} == made.counts._asdict()
    assert made.sources[0].packed.too_long == 1
    assert made.sources[0].packed.conversations == len(good)
    said = capsys.readouterr().err
    assert "left out: pairs.jsonl:31: has the same response twice" in said
    assert "pairs.jsonl:35: `chosen` has no response of its own" in said
    assert "pairs.jsonl:36: `chosen` is one response, and there is no prompt (prompt, " in said
    assert "pairs.jsonl:37: `chosen` is neither text nor messages but int" in said
    text = summary(tmp_path / "out", made)
    assert "left out, both responses are the same: 2 preferences" in text
    assert "left out, longer than 128 tokens (--context): 1 preferences" in text


def test_responses_that_the_template_writes_alike_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = TEMPLATE.replace("message.content", "message.content | lower")
    rows = [of_texts(number) for number in range(9)] + [{"prompt": "hello", "chosen": "Yes", "rejected": "yes"}]
    assert run(tmp_path, rows, template).counts.equal == 1
    assert "the chat template writes both responses in the same way" in capsys.readouterr().err


def test_preferences_are_not_mixed_with_other_data(tmp_path: Path) -> None:
    pairs, chats = [of_texts(n) for n in range(9)], [{"messages": [user("hello"), assistant(f"{n}")]} for n in range(9)]
    with pytest.raises(ConfigError, match="source pairs: preferences cannot be mixed with text or conversations"):
        run(tmp_path / "one", pairs + chats)
    sources = [f"a={lines(tmp_path / 'a.jsonl', pairs)}", f"b={lines(tmp_path / 'b.jsonl', chats)}"]
    settings: dict[str, Any] = {"chat_template": tmp_path / "one" / "template.jinja", "context": CONTEXT}
    for order in (sources, sources[::-1]):
        with pytest.raises(ConfigError, match="preferences cannot be mixed with text or conversations"):
            prepared(tmp_path / "two", *order, **settings)
    as_chats = run(tmp_path / "three", [with_messages(n) for n in range(9)], text_key="messages")
    assert as_chats.manifest.conversations is not None
    assert not as_chats.manifest.conversations.preferences


def test_the_preview_shows_both_conversations(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    source = lines(tmp_path / "pairs.jsonl", [of_texts(n) for n in range(9)])
    settings = Settings(
        parse_sources([str(source)]), tmp_path, chat_template=tmp_path / "template.jinja", context=CONTEXT
    )
    (text,) = preview(settings, 1, Shown(), coloured=False)
    chosen, rejected = text.split("\n── ")
    assert chosen == "── pairs 1 chosen: 22 tokens, 6 count\n<u>hello 0</><a>⟦yes</>⟧"
    assert rejected == "pairs 1 rejected: 23 tokens, 7 count\n<u>hello 0</><a>⟦no 0</>⟧"
