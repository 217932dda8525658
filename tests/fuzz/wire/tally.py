"""Counts inputs and answers, and collects finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import grpc

from thinwire_proto.wire import service_pb2 as pb

OF_PYTHON = ("Traceback", "<class", "Unexpected", "Exception", "object at 0x")
UNFORESEEN = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED})
FINDS_MAX = 50
SHOWN_BYTES = 2000
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Answer:
    """code: None if the call was cancelled from this side. data: the first message. reason: the word of a refusal."""

    code: grpc.StatusCode | None
    text: str = ""
    data: bytes = b""
    reason: str = ""

    def outcome(self, call: str) -> str:
        """ACCEPTED, or how it was refused."""
        if self.code is None:
            return self.text
        if self.code is not grpc.StatusCode.OK:
            return self.reason or self.code.name.lower()
        reason = pb.Receipt.FromString(self.data).reason if call == "Contribute" else pb.Receipt.REASON_COUNTED
        if reason in (pb.Receipt.REASON_COUNTED, pb.Receipt.REASON_VOID):
            return ACCEPTED
        return f"receipt: {pb.Receipt.Reason.Name(reason).removeprefix('REASON_').lower()}"


@dataclass
class Tally:
    """answers: by label and outcome. finds: each kind once."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    finds: dict[str, str] = field(default_factory=dict)
    kept: int = 0

    @property
    def inputs(self) -> int:
        return self.answers.total()

    def answered(self, call: str, answer: Answer, sent: bytes) -> None:
        """Count an answer to a call. One that speaks of Python is a find, and so is none."""
        self.counted(call, answer.outcome(call))
        name = answer.code.name if answer.code is not None else "none"
        self.check(call, f"{name}: {answer.text}", sent, surely=answer.code in UNFORESEEN)

    def counted(self, label: str, outcome: str) -> None:
        self.answers[label, outcome] += 1

    def check(self, label: str, text: str, sent: bytes, *, surely: bool = False) -> None:
        if (surely or any(sign in text for sign in OF_PYTHON)) and len(self.finds) < FINDS_MAX:
            shown = f"{len(sent)} bytes, {sent[:SHOWN_BYTES].hex()}{'…' * (len(sent) > SHOWN_BYTES)}"
            self.finds.setdefault(f"{label}: {text[:60]}", f"{text[:300]}: from {shown}")

    def __str__(self) -> str:
        rows: dict[str, Counter[str]] = {}
        for (label, outcome), count in self.answers.items():
            rows.setdefault(label, Counter())[outcome] = count
        lines = [_row(label, found) for label, found in sorted(rows.items())]
        return "\n".join([*lines, *(f"FOUND {kind}: {text}" for kind, text in self.finds.items())])


def _row(label: str, found: Counter[str]) -> str:
    refused = ", ".join(f"{outcome} {count:,}" for outcome, count in found.most_common() if outcome != ACCEPTED)
    return f"{label:<12} {found.total():>9,} inputs  {found[ACCEPTED]:>9,} accepted  refused: {refused}"
