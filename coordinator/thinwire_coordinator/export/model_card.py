"""The model card: the README.md of an exported folder, filled in from the run's ledger."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from thinwire_coordinator.export.model_files import AUTO
from thinwire_coordinator.export.run_facts import Contributor, Curve, RunFacts
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.clean_text import clean_name, clean_text
from thinwire_proto.task import HuggingFaceModel
from thinwire_proto.version import VERSION

CURVE_ROWS_MAX = 25
"""Rows of the table of held-out losses; the first and the last measurement are always among them."""
PERPLEXITY_LOSS_MAX = 50.0
"""A loss above this, in nats, has no perplexity that is worth a number."""
_MARKS = re.compile(r"([\\`*_\[\]!|~<>$&])")


def model_card(facts: RunFacts, model: HuggingFaceModel, *, text: bool, opener: str = AUTO) -> str:
    """The card, in Markdown. text: whether the model has a tokenizer. opener: the class that opens it."""
    parts = [*_front_matter(model, text), *_opening(facts, model), *_usage(model, text, opener)]
    return "\n".join(
        [
            *parts,
            *_training(facts, text),
            *_curves(facts, text),
            *_results(facts),
            *_contributors(facts),
            *_verification(facts),
            "",
        ]
    )


def _front_matter(model: HuggingFaceModel, text: bool) -> Iterator[str]:
    """The metadata that the Hub reads. JSON strings are YAML strings."""
    yield "---"
    yield f"library_name: {_library(model)}"
    if text or _library(model) == "timm":
        yield f"pipeline_tag: {'text-generation' if text else 'image-classification'}"
    if base := _base(model):
        yield f"base_model: {json.dumps(base)}"
    yield "tags:"
    yield "- thinwire"
    if model.adapter is not None:
        yield "- lora"
    yield "---"


def _library(model: HuggingFaceModel) -> str:
    """The library that opens the folder."""
    if model.adapter is not None:
        return "peft"
    return "timm" if "pretrained_cfg" in model.config else "transformers"


def _base(model: HuggingFaceModel) -> str:
    """The name of an adapter's base; empty if the adapter does not say it."""
    return str((model.adapter or {}).get("base_model_name_or_path") or "")


def _opening(facts: RunFacts, model: HuggingFaceModel) -> Iterator[str]:
    what = "An adapter" if model.adapter is not None else "A model"
    yield "# Model card"
    yield ""
    yield (
        f"{what} of {facts.parameters:,} trained parameters: {_plain(facts.contract.model.in_words())}. "
        f"{_trained_by(facts.nodes)} This is {facts.unit} {facts.step:,} of {facts.contract.schedule.steps:,}."
    )
    yield ""


def _trained_by(nodes: int) -> str:
    if nodes == 0:
        return "It is the first state of a run of thinwire, which nobody has trained yet."
    if nodes == 1:
        return "One machine trained it with thinwire."
    return f"{nodes:,} machines trained it together over the internet, with thinwire."


def _usage(model: HuggingFaceModel, text: bool, opener: str) -> Iterator[str]:
    if _library(model) == "timm":
        yield from ("## Use", "", "```python", "import timm", "")
        yield from ('model = timm.create_model("local-dir:.", pretrained=True).eval()', "```", "")
    if not text:
        return
    yield from ("## Use", "", "```python")
    if model.adapter is None:
        yield from (
            f"from transformers import AutoModelForCausalLM, {opener}",
            "",
            'model = AutoModelForCausalLM.from_pretrained(".")',
        )
    else:
        yield from (
            "from peft import PeftModel",
            f"from transformers import AutoModelForCausalLM, {opener}",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(_base(model) or 'BASE')})",
            'model = PeftModel.from_pretrained(base, ".")',
        )
    yield from (
        f'tokenizer = {opener}.from_pretrained(".")',
        'prompt = tokenizer("Once", return_tensors="pt").input_ids',
        "print(tokenizer.decode(model.generate(input_ids=prompt, max_new_tokens=50)[0]))",
        "```",
        "",
    )


def _training(facts: RunFacts, text: bool) -> Iterator[str]:
    contract = facts.contract
    tokens = f"{facts.tokens:,} tokens, in samples of {contract.model.context:,}"
    yield from ("## Training", "")
    yield from _table(
        ("", ""),
        (
            ("data", _plain(facts.data)),
            ("trained on", tokens if text else f"{facts.samples:,} samples"),
            *kind_of(contract).in_card(contract, facts.step, facts.contributions),
            ("rule", f"{_plain(contract.rule.kind)}, learning rate {contract.schedule.learning_rate:g}"),
            *((f"amended from {facts.unit} {one.step:,}", _plain(one.in_words)) for one in contract.amendments),
        ),
    )


def _curves(facts: RunFacts, text: bool) -> Iterator[str]:
    if not facts.curves:
        return
    unit = f"nats per {facts.curves[0].unit}" if text else "nats"
    text = text and facts.curves[0].unit == "token"
    yield from ("## Held-out loss", "", f"Mean on samples that no machine trained on, in {unit}.", "")
    if about := kind_of(facts.contract).about_losses:
        yield from (about, "")
    for curve in facts.curves:
        if len(facts.curves) > 1:
            yield from (f"### {_plain(curve.name)}", "")
        titles = (
            facts.unit,
            "loss",
            *(["perplexity"] if text else []),
            *(["bits per byte"] if curve.bits_per_nat else []),
        )
        yield from _table(titles, (_measured(step, loss, curve, text) for step, loss in _thinned(curve.losses)))


def _measured(step: int, loss: float, curve: Curve, text: bool) -> Iterator[str]:
    yield from (f"{step:,}", f"{loss:.4f}")
    if text:
        yield f"{math.exp(loss):.2f}" if loss < PERPLEXITY_LOSS_MAX else "–"
    if curve.bits_per_nat:
        yield f"{loss * curve.bits_per_nat:.4f}"


def _thinned(curve: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    count = min(len(curve), CURVE_ROWS_MAX)
    for number in range(count):
        yield curve[number * (len(curve) - 1) // max(1, count - 1)]


def _results(facts: RunFacts) -> Iterator[str]:
    if not facts.results:
        return
    yield from ("## Evaluation", "", "By `thinwire-coordinator evaluate`. The ledger does not have it.", "")
    rows = (
        (
            _plain(one.name),
            _plain(one.metric),
            f"{one.value:.4f}" if one.stderr is None else f"{one.value:.4f} ± {one.stderr:.4f}",
            f"{one.count:,}" if one.count else "–",
        )
        for one in facts.results
    )
    yield from _table(("of", "metric", "value", "mean of"), rows)


def _contributors(facts: RunFacts) -> Iterator[str]:
    if not facts.contributors:
        return
    yield from ("## Contributors", "", "Names are as their owners chose them.", "")
    rows = ((_name(one), f"{one.contributions:,}", f"{one.samples:,}") for one in facts.contributors)
    counted = kind_of(facts.contract).counted
    yield from _table(("node", counted, "samples"), rows)
    if facts.nodes > len(facts.contributors):
        yield from (f"And {facts.nodes - len(facts.contributors):,} more.", "")


def _name(contributor: Contributor) -> str:
    """The name that a stranger chose, as code: Markdown makes no link of it."""
    name = clean_name(contributor.name).replace("`", "'").replace("|", r"\|")
    return f"`{name}` ({contributor.node[:8]})" if name else f"({contributor.node[:8]})"


def _verification(facts: RunFacts) -> Iterator[str]:
    yield from (
        "## Verify",
        "",
        *kind_of(facts.contract).origin,
        "",
        "```",
        "thinwire-coordinator verify --state-dir DIR",
        f"thinwire-coordinator export --state-dir DIR --step {facts.step} --out FOLDER",
        "```",
        "",
        "`verify` replays the ledger, and checks every hash and fingerprint. `export` writes the files of this folder",
        f"again, with the same bytes{', but for the evaluation above' if facts.results else ''}.",
        "",
    )
    yield from _table(
        ("", ""),
        (
            ("contract", f"`{facts.contract.hash.hex()}`"),
            (facts.unit, f"{facts.step}"),
            ("head of the ledger", f"`{facts.head}`"),
            ("fingerprint", f"`{facts.fingerprint}`"),
            ("thinwire", VERSION),
            *_lineage(facts),
        ),
    )


def _lineage(facts: RunFacts) -> Iterator[tuple[str, str]]:
    if (lineage := facts.contract.lineage) is not None:
        yield "goes on from", f"step {lineage.step:,} of the run with contract `{lineage.contract}`"


def _table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _plain(text: str) -> str:
    """Text such that Markdown shows it as it is, on one line."""
    return _MARKS.sub(r"\\\1", clean_text(text))
