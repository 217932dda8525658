"""An adapter that learns to answer: conversations on the frozen model of the example hugging_face."""

from __future__ import annotations

import builtins
import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.local_swarm.processes import SwarmError
from examples.lora.__main__ import copy_base
from examples.running.example import Example, main, prepare
from examples.running.opened import GREEDY_TOKENS, compare_adapter, compare_with_transformers
from examples.running.swarm import Swarm

HERE = Path(__file__).parent
TEMPLATE = HERE / "template.jinja"
MODULES = (
    "os",
    "os.path",
    "math",
    "random",
    "json",
    "shutil",
    "statistics",
    "socket",
    "time",
    "itertools",
    "functools",
)
OWNERS = (builtins, str, bytes, list, dict, set, int, float, Path)
QUESTIONS = ("What does {} do?", "What is {} for?", "Explain {}.")
ASKED = ("What does str.join do?", "What is math.sqrt for?", "Explain os.path.exists.")
CONTEXT = 128


def conversations() -> Iterator[dict[str, object]]:
    """Questions about the library, with the first sentence of its own documentation as answer."""
    owners: tuple[Any, ...] = (*OWNERS, *map(import_module, MODULES))
    for owner in owners:
        for name, member in inspect.getmembers(owner):
            sentence = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0]
            if name.startswith("_") or not callable(member) or not sentence:
                continue
            for question in QUESTIONS:
                asked = question.format(f"{owner.__name__}.{name}")
                turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": sentence}]
                yield {"messages": turns}


def make_shards(folder: Path, console: Console) -> None:
    copy_base(folder, console)
    lines = "".join(json.dumps(one) + "\n" for one in conversations())
    (folder / "answers.jsonl").write_text(lines, encoding="utf-8")
    given = (
        f"answers={folder / 'answers.jsonl'}",
        "--tokenizer",
        str(folder / "base"),
        "--chat-template",
        str(TEMPLATE),
    )
    prepare(console, *given, "--context", str(CONTEXT), "--held-out", "10%", "--out", str(folder / "data"))


def after(swarm: Swarm, folder: Path) -> dict[str, str]:
    swarm.command("export", "--out", str(folder / "adapter"))
    swarm.command("export", "--merge", "--out", str(folder / "merged"))
    template = TEMPLATE.read_text(encoding="utf-8")
    if (folder / "merged" / "chat_template.jinja").read_text(encoding="utf-8") != template:
        raise SwarmError("the merged model has another chat template")
    prompts = [f"Question: {question}\nAnswer: " for question in ASKED]
    merged = compare_with_transformers(swarm, folder / "merged", prompts)
    said = {}
    for question in ASKED:
        answer = swarm.command("sample", "--temperature", "0", "--length", str(GREEDY_TOKENS), "--chat", question)
        said[question] = " ".join(answer.split())
    return compare_adapter(swarm, folder / "base", folder / "adapter", prompts) | {
        **{f"merged: {name}": result for name, result in merged.items()},
        **said,
    }


if __name__ == "__main__":
    main(Example(HERE, make_shards, after))
