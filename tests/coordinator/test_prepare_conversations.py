"""`prepare` with conversations: layouts, what counts, packing, bad data, and the preview."""

from __future__ import annotations

import json
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.planning import run_init
from support.prepared import InterruptedAt, prepared
from thinwire_coordinator.prepare.chat_template import find_template
from thinwire_coordinator.prepare.conversations import Conversation, conversation_of
from thinwire_coordinator.prepare.preparation import Prepared, Settings, prepare
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.sources import parse_sources
from thinwire_coordinator.prepare.summary import BRACKETS, COLOUR, preview, summary
from thinwire_coordinator.prepare.tokenizer_choice import find_tokenizer
from thinwire_coordinator.prepare.tokenizer_training import train_tokenizer
from thinwire_coordinator.prepare.tokenizing import JsonEncoder
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.conversations import BEGINS, COUNTS
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import BLOBS_FOLDER, CHAT_TEMPLATE_FILE
from thinwire_proto.data.token_shards import row_type
from thinwire_proto.errors import ConfigError

TURN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}{% for message in messages %}"
    + TURN
    + "{% endfor %}"
)
PLAIN = CHATML + PROMPT
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ message.content }}<|im_end|>\n{% endgeneration %}{% else %}" + TURN + "{% endif %}{% endfor %}"
)
FORGETFUL = PLAIN.replace("message.content }}", "message.content if loop.last else '…' }}")
"""Writes all but the last turn in another way."""
PICKY = "{% if messages[0].content == 'hello 3' %}{{ raise_exception('no hello') }}{% endif %}" + PLAIN
CONTEXT = 127


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tokenizer with special tokens and a template, as transformers has it."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["hello there, what is the capital of France? Paris. " * 4], 300, folder / "tokenizer.json")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    library.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": PLAIN, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def chat(number: int, turns: int = 1, length: int = 1) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{text} {number}" + "." * length}
        for _ in range(turns)
        for role, text in (("user", "hello"), ("assistant", "there"))
    ]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(out: Path, shards: tuple[Shard, ...]) -> Any:
    kind = row_type(CONTEXT, np.dtype("<u2"))
    return np.concatenate([np.fromfile(out / BLOBS_FOLDER / shard.hash, kind) for shard in shards])


def conversations_of(out: Path, made: Prepared, tokenizer: Path) -> list[tuple[str, str]]:
    """The text of each conversation in the shards, and of what counts in it."""
    words, found = JsonTokenizer(tokenizer / "tokenizer.json", None).library, []
    (source,) = made.manifest.sources
    for row in rows_of(out, source.train + source.held_out):
        bounds = [*np.flatnonzero(row["marks"] & BEGINS), CONTEXT + 1]
        for begin, end in pairwise(bounds):
            tokens, counts = row["tokens"][begin:end], (row["marks"][begin:end] & COUNTS) > 0
            if counts.any():
                texts = (words.decode(each.tolist(), skip_special_tokens=False) for each in (tokens, tokens[counts]))
                found.append(tuple(texts))
    return sorted(found)


def run(out: Path, source: Path, tokenizer: Path, **settings: Any) -> Prepared:
    return prepared(out, source, tokenizer=str(tokenizer), context=CONTEXT, **settings)


def written(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)


@pytest.mark.parametrize("packed", [True, False])
def test_every_conversation_is_in_a_row_once_and_responses_count(tmp_path: Path, tokenizer: Path, packed: bool) -> None:
    chats = [chat(number, 1 + number % 2, 1 + number % 5) for number in range(60)]
    out, source = tmp_path / "out", lines(tmp_path / "chats.jsonl", [{"messages": one} for one in chats])
    made = run(out, source, tokenizer, packed=packed, shard_bytes=2048)
    found = conversations_of(out, made, tokenizer)
    assert [text for text, _ in found] == sorted(map(written, chats))
    for text, counts in found:
        responses = text.split("<|im_start|>assistant\n")[1:]
        assert counts == "".join(turn.split("<|im_start|>")[0] for turn in responses)
    (packed_,) = [each.packed for each in made.sources]
    assert packed_.conversations == 60
    assert (packed_.rows == 60) is not packed
    (of_source,) = made.manifest.sources
    shards = of_source.train + of_source.held_out
    assert sum(shard.counted for shard in shards) == packed_.counted
    assert sum(shard.text_bytes for shard in shards) == sum(len(counts) for _, counts in found)
    assert made.manifest.conversations is not None
    assert made.manifest.conversations.packed is packed
    kept = made.manifest.files[CHAT_TEMPLATE_FILE]
    assert (out / BLOBS_FOLDER / kept.hash).read_text() == PLAIN


LAYOUTS: list[Any] = [
    {"messages": chat(7)},
    {"conversations": [{"from": "human", "value": "hello 7."}, {"from": "gpt", "value": "there 7."}]},
    {"prompt": "hello 7.", "response": "there 7."},
    {"prompt": "hello 7.", "completion": "there 7.", "id": 3},
    {"instruction": "hello 7.", "input": "", "output": "there 7."},
    {"question": "hello 7.", "answer": "there 7."},
    {"prompt": chat(7)[:1], "completion": chat(7)[1:]},
    {"messages": json.dumps(chat(7))},
]


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_layouts_and_formats_give_the_same_shards(tmp_path: Path, tokenizer: Path, layout: int, form: str) -> None:
    import pyarrow as arrow  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    rows = [json.loads(json.dumps(LAYOUTS[layout]).replace(" 7.", f" {number}.")) for number in range(30)]
    source = tmp_path / f"chats.{form}"
    if form == "parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), source)
    else:
        lines(source, rows)
    made = run(tmp_path / "out", source, tokenizer)
    expected = run(
        tmp_path / "other", lines(tmp_path / "chats.jsonl", [{"messages": chat(n)} for n in range(30)]), tokenizer
    )
    assert made.manifest_hash == expected.manifest_hash


def test_system_and_tool_turns_are_written_and_do_not_count(tmp_path: Path, tokenizer: Path) -> None:
    turns = [
        {"from": "system", "value": "be kind"},
        {"from": "human", "value": "hello"},
        {"from": "function_call", "value": "weather()"},
        {"from": "observation", "value": "rain"},
        {"from": "gpt", "value": "it rains"},
    ]
    tools = json.dumps([{"name": "weather"}])
    rows = [{"conversations": turns, "tools": tools}, {"system": "be kind", "prompt": "hello", "response": "yes"}]
    out = tmp_path / "out"
    source = lines(tmp_path / "chats.jsonl", rows + [{"messages": chat(n)} for n in range(9)])
    made = prepared(out, source, tokenizer=str(tokenizer), context=255)
    kind, found = row_type(255, np.dtype("<u2")), {}
    words = JsonTokenizer(tokenizer / "tokenizer.json", None).library
    for shard in (*made.manifest.sources[0].train, *made.manifest.sources[0].held_out):
        for row in np.fromfile(out / BLOBS_FOLDER / shard.hash, kind):
            bounds = [*np.flatnonzero(row["marks"] & BEGINS), 256]
            for begin, end in pairwise(bounds):
                tokens, counts = row["tokens"][begin:end], (row["marks"][begin:end] & COUNTS) > 0
                found[words.decode(tokens.tolist(), skip_special_tokens=False)] = words.decode(tokens[counts].tolist())
    (with_tools,) = [text for text in found if text.startswith("<tools>")]
    assert '[{"name": "weather"}]' in with_tools
    assert "<|im_start|>system\nbe kind<|im_end|>" in with_tools
    assert "<|im_start|>tool\nrain<|im_end|>" in with_tools
    assert found[with_tools] == "weather()\nit rains\n"  # without special tokens
    assert found[written([{"role": "system", "content": "be kind"}, *PAIR])] == "yes\n"


PAIR = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]


def test_a_template_that_marks_responses_itself_counts_the_same(tmp_path: Path, tokenizer: Path) -> None:
    source = lines(tmp_path / "chats.jsonl", [{"messages": chat(n, 2)} for n in range(30)])
    (tmp_path / "marked.jinja").write_text(MARKED)
    made = run(tmp_path / "a", source, tokenizer, chat_template=tmp_path / "marked.jinja")
    other = run(tmp_path / "b", source, tokenizer)
    assert made.manifest.sources == other.manifest.sources
    assert made.manifest_hash != other.manifest_hash  # the template is part of it


def test_tokens_and_what_counts_are_those_of_transformers(tmp_path: Path, tokenizer: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds

    chats = [chat(n, 1 + n % 3, n) for n in range(8)]
    turns = [{"role": "system", "content": "né 日本"}, *chat(3, 2), {"role": "assistant", "content": " a  b\n"}]
    chats.append(turns)
    (tmp_path / "marked.jinja").write_text(MARKED)
    template = find_template(tmp_path / "marked.jinja", files := find_tokenizer(tokenizer, None))
    assert template is not None
    theirs = AutoTokenizer.from_pretrained(tokenizer)
    for messages in chats:
        (ours,) = JsonEncoder(files, read_special=False).encode([template.render(Conversation(messages))])
        expected = theirs.apply_chat_template(
            messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ours.tokens.tolist() == expected["input_ids"]
        assert ours.marks is not None
        assert ((ours.marks & COUNTS) > 0).tolist() == [bool(mask) for mask in expected["assistant_masks"]]


def test_what_cannot_be_learned_from_is_counted_and_said(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [{"messages": chat(n)} for n in range(10, 40)]
    bad = [
        {"messages": [{"content": "hello"}, {"role": "assistant", "content": "yes"}]},  # no role
        {"messages": [{"role": "narrator", "content": "hello"}, {"role": "assistant", "content": "yes"}]},
        {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " "}]},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": []},
        {"prompt": "hello", "response": None},
        {"messages": None},
        {"prompt": None, "response": "yes"},
        {"messages": [{"role": "user", "content": "half \ud800"}, {"role": "assistant", "content": "yes"}]},
        {"messages": [{"role": "user", "content": "hello 3"}, {"role": "assistant", "content": "yes"}]},  # raises
        {"messages": chat(8, 1, 200)},  # too long
    ]
    (tmp_path / "picky.jinja").write_text(PICKY)
    source = lines(tmp_path / "chats.jsonl", good + bad)
    made = run(tmp_path / "out", source, tokenizer, chat_template=tmp_path / "picky.jinja")
    assert made.counts._asdict() | {"bad": 3, "no_response": 6, "unrendered": 1} == made.counts._asdict()
    assert made.sources[0].packed.too_long == 1
    assert made.sources[0].packed.conversations == len(good)  # with the others, all lines
    said = capsys.readouterr().err
    assert "chats.jsonl:31: message 1 has no role" in said
    assert "chats.jsonl:32: message 1 has the role 'narrator'" in said
    assert "left out: chats.jsonl:33: has an empty response" in said
    assert "chats.jsonl:39: its conversation has half a character (a lone surrogate)" in said
    assert "left out: chats.jsonl:40: the chat template raises: no hello" in said
    text = summary(tmp_path / "out", made)
    assert "chats: 30 conversations in " in text
    assert "left out, longer than 128 tokens (--context): 1 conversations" in text
    assert "left out, without a response or with an empty one: 6 conversations" in text
    assert "left out, the chat template cannot write them: 1 conversations" in text
    assert f"model.context {CONTEXT}" in text


def test_keys_that_arrow_fills_in_hide_none_of_the_others() -> None:
    turns = [{"role": None, "from": "human", "content": None, "value": "hello"}, {"from": "gpt", "value": "there"}]
    assert [one["content"] for one in conversation_of({"messages": turns}).messages] == ["hello", "there"]


def test_a_template_with_a_byte_order_mark_writes_none(tmp_path: Path, tokenizer: Path) -> None:
    marked = tmp_path / "marked"
    shutil.copytree(tokenizer, marked)
    (marked / CHAT_TEMPLATE_FILE).write_text(PLAIN, encoding="utf-8-sig")
    source = lines(tmp_path / "chats.jsonl", [{"messages": chat(n)} for n in range(9)])
    found = [
        conversations_of(tmp_path / str(one), run(tmp_path / str(one), source, one), one) for one in (tokenizer, marked)
    ]
    assert found[0] == found[1]
    (marked / CHAT_TEMPLATE_FILE).write_bytes(PLAIN.encode("utf-16"))
    with pytest.raises(ConfigError, match=f"{CHAT_TEMPLATE_FILE} is not text in UTF-8"):
        run(tmp_path / "out", source, marked)


def test_a_template_that_rewrites_earlier_turns_needs_the_mark(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "forgetful.jinja").write_text(FORGETFUL)
    source = lines(tmp_path / "chats.jsonl", [{"messages": chat(n, 2)} for n in range(5)])
    with pytest.raises(ConfigError, match="has no documents"):
        run(tmp_path / "out", source, tokenizer, chat_template=tmp_path / "forgetful.jinja")
    assert "writes message 2 in another way when others follow" in capsys.readouterr().err


def test_text_and_conversations_are_sources_of_one_mixture(tmp_path: Path, tokenizer: Path) -> None:
    text = lines(tmp_path / "texts.jsonl", [{"text": f"hello {n} " * 30} for n in range(20)])
    chats = lines(tmp_path / "chats.jsonl", [{"messages": chat(n)} for n in range(40)])
    made = prepared(tmp_path / "out", f"texts={text}", f"chats={chats}", tokenizer=str(tokenizer), context=CONTEXT)
    texts, of_chats = made.manifest.sources
    assert not any(shard.counted for shard in texts.train + texts.held_out)
    assert all(shard.counted for shard in of_chats.train + of_chats.held_out)
    mixed = lines(tmp_path / "mixed.jsonl", [{"text": "hello"}, *({"messages": chat(n)} for n in range(5))])
    with pytest.raises(ConfigError, match=r"mixed\.jsonl: has conversations, and what was read .* before has text"):
        run(tmp_path / "mixed", mixed, tokenizer)


def test_a_file_of_text_among_conversations_is_named(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "folder").mkdir()
    lines(tmp_path / "folder" / "chats.jsonl", [{"messages": chat(n)} for n in range(5)])
    (tmp_path / "folder" / "readme.txt").write_text("My chats.")
    with pytest.raises(ConfigError, match=r"readme\.txt: has text, .* leave the file out, or give two sources"):
        run(tmp_path / "out", tmp_path / "folder", tokenizer)


def test_conversations_need_a_template(tmp_path: Path) -> None:
    source = lines(tmp_path / "chats.jsonl", [{"messages": chat(n)} for n in range(5)])
    with pytest.raises(ConfigError, match=r"there is no chat template .* --chat-template FILE"):
        prepared(tmp_path / "out", source)
    (tmp_path / "broken.jinja").write_text("{% for %}")
    with pytest.raises(ConfigError, match="the chat template is not one"):
        prepared(tmp_path / "out", source, chat_template=tmp_path / "broken.jinja")
    (tmp_path / "plain.jinja").write_text(PLAIN)
    made = prepared(tmp_path / "out", source, chat_template=tmp_path / "plain.jinja", context=127)
    assert made.manifest.vocabulary == 256  # bytes


def test_the_date_of_a_template_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%d %b %Y') }}\n" + PLAIN)
    source = lines(tmp_path / "chats.jsonl", [{"messages": chat(1)}])
    (text,) = preview(
        Settings(parse_sources([str(source)]), tmp_path, chat_template=tmp_path / "dated.jinja"),
        1,
        Shown(),
        coloured=False,
    )
    assert "26 Jul 2024\n" in text


@pytest.mark.parametrize("coloured", [True, False])
def test_the_preview_marks_what_counts(tmp_path: Path, tokenizer: Path, coloured: bool) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "hel\x1blo"}, {"role": "assistant", "content": "né 日本 " * n}]}
        for n in range(1, 9)
    ]
    settings = Settings(
        parse_sources([str(lines(tmp_path / "chats.jsonl", rows))]), tmp_path, str(tokenizer), context=CONTEXT
    )
    texts = list(preview(settings, 3, Shown(), coloured=coloured))
    assert len(texts) == 3
    before, after = COLOUR if coloured else BRACKETS
    shown = "<|im_start|>user\nhel\N{REPLACEMENT CHARACTER}lo<|im_end|>\n<|im_start|>assistant\n"
    assert texts[0].splitlines()[0].startswith("── chats 1: ")
    assert texts[0].split("\n", 1)[1] == f"{shown}{before}né 日本 <|im_end|>\n{after}"


def test_an_interrupted_command_goes_on_and_counts_the_same(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"messages": chat(n)} for n in range(30)] + [{"prompt": "hello", "response": ""}, {"messages": chat(1, 9)}]
    sources = [f"{name}={lines(tmp_path / f'{name}.jsonl', rows)}" for name in ("first", "second")]
    settings: dict[str, Any] = {"tokenizer": str(tokenizer), "context": CONTEXT}
    with pytest.raises(KeyboardInterrupt):
        prepare(Settings(parse_sources(sources), tmp_path / "out", **settings), InterruptedAt("second: write shards"))
    made = prepared(tmp_path / "out", *sources, **settings)
    whole = prepared(tmp_path / "whole", *sources, **settings)
    assert made.manifest_hash == whole.manifest_hash
    assert [one.packed for one in made.sources] == [one.packed for one in whole.sources]
    assert made.sources[0].packed.too_long == 1
    assert made.counts == whole.counts
    assert made.counts.no_response == 2


def test_the_run_file_has_the_context_that_rows_have(tmp_path: Path, tokenizer: Path) -> None:
    source, folder = lines(tmp_path / "chats.jsonl", [{"messages": chat(n)} for n in range(60)]), tmp_path / "out"
    run(folder, source, tokenizer)
    run_init("--data", str(folder), "--model", "llama-1m", "--out", str(tmp_path / "run.toml"))
    assert f"\ncontext = {CONTEXT} " in (tmp_path / "run.toml").read_text()


def test_order_of_files_changes_nothing(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"messages": chat(n, 1 + n % 2, n % 9)} for n in range(80)]
    first = run(tmp_path / "a", lines(tmp_path / "chats.jsonl", rows), tokenizer)
    random.Random(1).shuffle(rows)
    second = run(tmp_path / "b", lines(tmp_path / "chats.jsonl", rows), tokenizer)
    assert first.manifest_hash == second.manifest_hash
