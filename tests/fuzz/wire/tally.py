"""Counts inputs and answers, and collects finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import grpc

NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
UNKNOWN = grpc.StatusCode.UNKNOWN.value[0]
OF_PYTHON = ("Traceback", "<class", "Unexpected", "Exception", "object at 0x")
FINDS_MAX = 50


@dataclass
class Tally:
    """answers: by label and outcome. finds: what must not be, each kind once."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    finds: dict[str, str] = field(default_factory=dict)
    kept: int = 0

    @property
    def inputs(self) -> int:
        return self.answers.total()

    def answered(self, label: str, status: int | None, text: str, sent: bytes) -> None:
        outcome = NAMES.get(status, str(status)) if status is not None else text.split(":", maxsplit=1)[0] or "closed"
        self.answers[label, outcome] += 1
        if status == UNKNOWN or any(sign in text for sign in OF_PYTHON):
            self.find(f"{label}: {outcome}: {text[:60]}", f"{text[:300]}: from {sent[:2000].hex()}")

    def counted(self, label: str, outcome: str) -> None:
        self.answers[label, outcome] += 1

    def find(self, kind: str, text: str) -> None:
        if len(self.finds) < FINDS_MAX:
            self.finds.setdefault(kind, text)

    def __str__(self) -> str:
        rows: dict[str, list[str]] = {}
        for (label, outcome), count in self.answers.most_common():
            rows.setdefault(label, []).append(f"{outcome} {count:,}")
        lines = [f"{label:<12} {', '.join(found)}" for label, found in sorted(rows.items())]
        return "\n".join([*lines, *(f"FOUND {kind}: {text}" for kind, text in self.finds.items())])
