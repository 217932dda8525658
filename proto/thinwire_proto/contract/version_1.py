"""Contract format 1, which thinwire 0.1.0 wrote. This definition never changes, and the format stays readable.

Run files may use its keys too.
"""

from __future__ import annotations

from typing import Any

from thinwire_proto.errors import ContractError

REQUIRES = "0.1.0"
KEYS = {
    "data": {"corpus_bytes", "corpus_hash", "seed", "tokenizer", "train_bytes"},
    "demo": {
        *("alpha", "beta", "k", "k_down", "k_policy", "magnitude"),
        *("precondition", "precondition_beta", "transform"),
    },
    "model": {"context", "family", "heads", "hidden", "layers", "tied", "vocabulary", "width"},
    "round": {
        *("base_age_max", "length_ms", "min_contributions", "momentum_age_max"),
        *("nodes_max", "pace", "samples", "weight_max"),
    },
    "rule": {"beta1", "beta2", "micro_batch", "name", "outer_rate", "weight_decay"},
    "schedule": {"floor", "learning_rate", "steps", "warmup_steps", "weight_decay"},
}
"""All keys of each section. A contract of version 1 has every one of them."""
RENAMED = {("demo", "k_down"): "update_topk", ("model", "family"): "kind", ("rule", "name"): "kind"}
RENAMED_VALUES = {("round", "pace", "quorum"): "barrier"}
UNUSED_BY_DEMO = {"beta1": 0.9, "beta2": 0.95, "micro_batch": 8, "weight_decay": 0.0}
"""Keys of the rule `demo` in format 1, which always had these values."""
MEANT: dict[str, dict[str, Any]] = {
    "data": {"kind": "corpus", "order": "argsort"},
    "exchange": {"kind": "star"},
    "aggregation": {"kind": "vote"},
}
"""The meaning of keys that contracts of version 1 do not have."""

Document = dict[str, Any]


def upgrade(document: Document) -> Document:
    """Convert a contract of version 1 to the current keys. Raises ContractError if it is not one."""
    _check_keys(document)
    renamed, _ = with_new_names(document)
    for section, meant in MEANT.items():
        renamed[section] = renamed.get(section, {}) | meant
    return renamed | {"requires": REQUIRES}


def with_new_names(document: Document) -> tuple[Document, list[str]]:
    """Copy a contract or a run file and rename its old keys. Also return one sentence for each renamed key.

    If a key exists under both names, both stay, so that the old one is refused as unknown.
    """
    renamed = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    hints = []
    for (section, old), new in RENAMED.items():
        table = renamed.get(section)
        if isinstance(table, dict) and old in table and new not in table:
            table[new] = table.pop(old)
            hints.append(f"{section}.{old} is now called {section}.{new}")
    for (section, key, old), new in RENAMED_VALUES.items():
        table = renamed.get(section)
        if isinstance(table, dict) and table.get(key) == old:
            table[key] = new
            hints.append(f'{section}.{key} = "{old}" is now called "{new}"')
    rule = renamed.get("rule")
    if isinstance(rule, dict) and rule.get("kind", "demo") == "demo":
        for key, value in UNUSED_BY_DEMO.items():
            if key in rule and rule[key] == value:
                del rule[key]
                hints.append(f'rule.{key} has no effect with rule.kind = "demo": remove it')
    return renamed, hints


def _check_keys(document: Document) -> None:
    wrong = [f"{key}: version 1 has no such key" for key in document.keys() - KEYS.keys() - {"parameters", "version"}]
    for section, keys in KEYS.items():
        table = document.get(section)
        if not isinstance(table, dict):
            wrong.append(f"{section}: version 1 must have this section")
            continue
        wrong += [f"{section}.{key}: version 1 has no such key" for key in table.keys() - keys]
        wrong += [f"{section}.{key} is missing: a thinwire before 0.1.0 wrote it" for key in keys - table.keys()]
    if wrong:
        raise ContractError(f"this is not a contract of version 1: {'; '.join(sorted(wrong))}")
