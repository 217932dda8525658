"""Runs named tasks of EleutherAI's lm-eval on an exported model.

The tasks and the data sets come from outside: what goes wrong in them may be any exception, and becomes one sentence.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra

EXTRA = "tasks"


@dataclass(frozen=True)
class AskedTasks:
    """names: of tasks, groups or tags of lm-eval. folder: has more tasks, as YAML files. limit: samples of each."""

    names: Sequence[str]
    folder: Path | None = None
    limit: int | None = None


@dataclass(frozen=True)
class TaskFigure:
    """A metric of a task. metric: with the filter of the answers, unless that is `none`. stderr: None if lm-eval has
    none. samples: that it is the mean of; 0 if lm-eval does not say it."""

    name: str
    metric: str
    value: float
    stderr: float | None
    samples: int


class Harness:
    """The tasks that were asked for, opened with their data sets. Raises ConfigError if there are none such."""

    def __init__(self, asked: AskedTasks) -> None:
        self._limit = asked.limit
        if asked.folder is not None and not asked.folder.is_dir():
            raise ConfigError(f"--tasks-from: {asked.folder} is no folder")
        self._lm_eval: Any = import_extra("lm_eval", EXTRA)
        tasks = import_extra("lm_eval.tasks", EXTRA)
        logging.getLogger("lm_eval").setLevel(logging.WARNING)
        with _in_a_sentence("--tasks"):
            self._manager = tasks.TaskManager(include_path=str(asked.folder) if asked.folder is not None else None)
        if unknown := [name for name in asked.names if name not in self._manager.all_tasks]:
            raise ConfigError(
                f"--tasks: lm-eval has no task {unknown[0]!r}; `lm-eval ls tasks` lists those that it has, and "
                "--tasks-from takes a folder with more"
            )
        self._tasks: list[Any] = []
        for name in dict.fromkeys(asked.names):
            with _in_a_sentence(f"--tasks: {name} cannot be opened; its data set may need internet access"):
                opened = self._manager.load([name])
                is_group = name in opened["groups"]
                self._tasks += [opened["groups"][name]] if is_group else opened["tasks"].values()

    def run(self, folder: Path, opener: str, *, chat: bool) -> list[TaskFigure]:
        """The metrics of the model in a folder of transformers. opener: the class that opens its tokenizer. chat: put
        questions as messages in its chat template. Raises ConfigError."""
        transformers, models = import_extra("transformers", EXTRA), import_extra("lm_eval.models.huggingface", EXTRA)
        on_card = torch.cuda.is_available()
        tokenizer = getattr(transformers, opener).from_pretrained(folder)
        hint = "" if tokenizer.eos_token_id is not None else " (tasks that generate need a token that ends a text)"
        with _in_a_sentence(f"--tasks: lm-eval ends{hint}"):
            begins = next((one for one in (tokenizer.bos_token_id, tokenizer.eos_token_id) if one is not None), None)
            model = models.HFLM(
                pretrained=str(folder),
                tokenizer=tokenizer,
                # a tokenizer of bytes has no token that begins a text; lm-eval wants one
                prefix_token_id=begins if begins is not None else tokenizer.encode("\n")[0],
                batch_size="auto" if on_card else 1,  # which is tried out by running out of memory
                device="cuda" if on_card else "cpu",
            )
            reply = self._lm_eval.simple_evaluate(
                model,
                tasks=self._tasks,
                task_manager=self._manager,
                limit=self._limit,
                apply_chat_template=chat,
                log_samples=False,
            )
        return list(figures_of(reply))


def figures_of(reply: Mapping[str, Any]) -> Iterator[TaskFigure]:
    """The figures in a reply of lm-eval. Of a group that has figures of its own, its members are left out."""
    found = {name: list(_figures(name, values, reply)) for name, values in reply["results"].items()}
    members = reply.get("group_subtasks", {})
    for name, figures in found.items():
        if not any(name in members[group] and found.get(group) for group in members if group != name):
            yield from figures


def _figures(name: str, values: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterator[TaskFigure]:
    samples = reply.get("n-samples", {}).get(name, {}).get("effective", 0)
    for key, value in values.items():
        metric, comma, answers = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        stderr = values.get(f"{metric}_stderr,{answers}")
        label = metric if answers == "none" else f"{metric} ({answers})"
        yield TaskFigure(name, label, float(value), stderr if isinstance(stderr, float) else None, int(samples))


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Make a ConfigError of any error, and keep the standard output for what was found."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # noqa: BLE001 - tasks are code of others
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{what}: {reason}") from None
