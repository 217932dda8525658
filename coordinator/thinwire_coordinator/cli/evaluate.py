"""The command `thinwire-coordinator evaluate`: a step's model on held-out sets, on other text, or on tasks."""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thinwire_coordinator.export.export import export_folder
from thinwire_coordinator.hall.ledger.results import NAME_MAX, Result, add_results
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.generation import tokenizer_of
from thinwire_proto.models.extras import import_extra
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

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
    """The tasks that were asked for, opened with their data sets. Raises ConfigError if there are none such.

    Tasks and data sets come from outside: what goes wrong in them may be any exception, and becomes one sentence.
    """

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


LOSS_MAX = 700
"""The perplexity of a larger loss is no float64."""


@dataclass(frozen=True)
class Evaluated:
    """name: of the held-out set or of the file. loss: in nats per token, or per pair of preferences. tokens: that were
    predicted, or pairs. bits_per_byte: of text; None if it is not text. Of preferences, by the margin of
    `thinwire_proto.task.LearnsPreferences`: margin: the mean; preferred: the share of pairs where it is above 0."""

    name: str
    step: int
    loss: float
    tokens: int
    bits_per_byte: float | None
    margin: float | None = None
    preferred: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are kept, by name."""
        found = {"loss": self.loss, "margin": self.margin, "preferred": self.preferred}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def in_words(self) -> str:
        if self.margin is not None:
            by = f"margin {self.margin:.4f}, the chosen response ahead in {self.preferred:.1%}"
            return f"{self.loss:.4f} nats per pair, {by}; {self.tokens:,} pairs"
        found = f"{self.loss:.4f} nats per token, perplexity {math.exp(min(self.loss, LOSS_MAX)):,.2f}"
        found += "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits per byte"
        return f"{found}; {self.tokens:,} tokens"


@dataclass(frozen=True)
class OfTask(TaskFigure):
    step: int

    @property
    def in_words(self) -> str:
        error = "" if self.stderr is None else f" ± {self.stderr:.4f}"
        return f"{self.metric} {self.value:.4f}{error}; {self.samples:,} samples"


def evaluate(
    state_dir: Path,
    step: int | None,
    sets: Sequence[str],
    files: Sequence[Path],
    samples: int,
    *,
    as_json: bool,
    tasks: AskedTasks | None = None,
) -> None:
    """Print the loss on each of these held-out sets and files, and the metrics of the tasks; on all held-out sets, if
    nothing is named. Keep them in the state directory. Raises ThinwireError."""
    with closing(open_state(state_dir, read_only=True)) as state:
        names = [found.name for found in state.data.held_out_sets()]
        if unknown := [name for name in sets if name not in names]:
            raise ConfigError(f"there is no held-out set {unknown[0]!r}; there are {', '.join(names) or 'none'}")
        texts = [(str(file), read_text(file)) for file in files]
        if tasks is not None and state.data.tokenizer is None:
            raise ConfigError(f"--tasks: a model of kind {state.contract.model.kind!r} does not read text")
        harness = Harness(tasks) if tasks is not None else None
        replica = kind_of(state.contract).model_at(state, step)
        at = kind_of(state.contract).trained(state.contract, replica)
        on_sets = list(_on_sets(state, replica, at, sets or ([] if files or tasks else names), samples))
        on_texts = [_on_text(state, replica, at, *text) for text in texts]
        on_tasks = _on_tasks(state, replica, at, harness) if harness is not None else []
        _keep(state_dir, f"{replica.model_fingerprint():016x}", on_sets, on_texts, on_tasks)
    found: list[Evaluated | OfTask] = [*on_sets, *on_texts, *on_tasks]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        print(f"{kind_of(state.contract).unit} {one.step}, {one.name}: {one.in_words}")


def _keep(
    folder: Path, fingerprint: str, sets: Sequence[Evaluated], texts: Sequence[Evaluated], tasks: Sequence[OfTask]
) -> None:
    """Add what was found to the state directory, but for what is not finite. A text is kept by the name of its file
    alone: the page shows it to everybody."""

    def result(kind: Any, one: Evaluated | OfTask, name: str, metric: str, value: float, **more: Any) -> Result:
        kept = {"kind": kind, "name": name[:NAME_MAX], "metric": metric[:NAME_MAX], "value": value}
        return Result(**kept, step=one.step, fingerprint=fingerprint, **more)

    found = [
        result(kind, one, name, metric, value, count=one.tokens)
        for kind, all_of_kind in (("set", sets), ("text", texts))
        for one in all_of_kind
        for name in (one.name if kind == "set" else Path(one.name).name,)
        for metric, value in one.figures.items()
        if math.isfinite(value)
    ]
    for one in tasks:
        stderr = one.stderr if one.stderr is not None and math.isfinite(one.stderr) else None
        if math.isfinite(one.value):
            found.append(result("task", one, one.name, one.metric, one.value, stderr=stderr, count=one.samples))
    try:
        add_results(folder, found)
    except OSError as error:  # such as of another user, who may only read
        print(f"the results are not kept in {folder}: {error.strerror or error}", file=sys.stderr)


def read_text(file: Path) -> str:
    """The text of a file, as `prepare` reads it. Raises ConfigError."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not text in UTF-8") from None
    if not text:
        raise ConfigError(f"{file}: is empty")
    return text


def _on_sets(state: RunState, replica: Replica, at: int, names: Sequence[str], samples: int) -> Iterator[Evaluated]:
    context, held_out = state.contract.model.context, HeldOut(state.contract, state.data, state.blobs, samples)
    for found in (one for one in state.data.held_out_sets() if one.name in names and one.samples):
        loss, bits_per_nat = held_out.measure(replica, found), found.bits_per_nat(context)
        if found.unit == "pair":
            margins = held_out.margins(replica, found)
            margin, preferred = float(margins.mean()), float((margins > 0).float().mean())
            yield Evaluated(found.name, at, loss, len(margins), None, margin, preferred)
            continue
        numbers = found.spread(samples)
        weight = state.data.held_out_weight(found.name, numbers)
        tokens = weight if found.counted else len(numbers) * context
        yield Evaluated(found.name, at, loss, tokens, loss * bits_per_nat if bits_per_nat else None)


def _on_tasks(state: RunState, replica: Replica, at: int, harness: Harness) -> list[OfTask]:
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        model = Path(folder) / "model"
        opener = export_folder(state, replica, model, merge=True)
        return [OfTask(**asdict(one), step=at) for one in harness.run(model, opener, chat=state.data.has_conversations)]


@torch.no_grad()
def _on_text(state: RunState, replica: Replica, at: int, name: str, text: str) -> Evaluated:
    """The loss on all tokens of a text, in windows of the model's context that follow each other."""
    model = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    tokenizer, context = tokenizer_of(model, state.data), state.contract.model.context
    if tokenizer is None:
        raise ConfigError(f"a model of kind {state.contract.model.kind!r} does not read text")
    tokens = tokenizer.encode(text)
    if tokenizer.end is not None:  # it begins a document, so that the first token is predicted too
        tokens = torch.cat([torch.tensor([tokenizer.end]), tokens])
    if len(tokens) < 2:
        raise ConfigError(f"{name}: has one token, and a prediction needs two")
    nats, predicted = 0.0, len(tokens) - 1
    for start in range(0, predicted, context):
        window = tokens[start : start + context + 1].unsqueeze(0)
        nats += float(model.loss(replica.tensors, (window,))) * (window.shape[1] - 1)
    return Evaluated(name, at, nats / predicted, predicted, nats / math.log(2) / len(text.encode()))
