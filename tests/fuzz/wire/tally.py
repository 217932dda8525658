"""Counts inputs and answers, and collects finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import grpc

from fuzz.wire.calls import messages_in
from fuzz.wire.connection import Answer
from thinwire_proto.wire import service_pb2 as pb

NAMES = {code.value[0]: code.name.lower() for code in grpc.StatusCode}
UNKNOWN = grpc.StatusCode.UNKNOWN.value[0]
OF_PYTHON = ("Traceback", "<class", "Unexpected", "Exception", "object at 0x")
FINDS_MAX = 50
SHOWN_BYTES = 2000
ACCEPTED = "accepted"
RECEIPT = "receipt: "
LATE = f"{RECEIPT}late"


@dataclass
class Tally:
    """answers: by label and outcome, which is ACCEPTED or how it was refused. finds: each kind once."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    finds: dict[str, str] = field(default_factory=dict)
    kept: int = 0

    @property
    def inputs(self) -> int:
        return self.answers.total()

    @property
    def late(self) -> float:
        """Of the contributions that got a receipt, the part whose round was over."""
        receipts = sum(count for (label, outcome), count in self.answers.items() if _is_receipt(label, outcome))
        return sum(count for (_, outcome), count in self.answers.items() if outcome == LATE) / max(1, receipts)

    def answered(self, label: str, answer: Answer, sent: bytes) -> None:
        """Count an answer to a call. One that speaks of Python is a find."""
        self.counted(label, _outcome(label, answer))
        status = NAMES.get(answer.status, str(answer.status)) if answer.status is not None else "none"
        self.check(label, f"{status}: {answer.text}", sent, surely=answer.status == UNKNOWN)

    def counted(self, label: str, outcome: str) -> None:
        self.answers[label, outcome] += 1

    def check(self, label: str, text: str, sent: bytes, *, surely: bool = False) -> None:
        if surely or any(sign in text for sign in OF_PYTHON):
            self.find(f"{label}: {text[:60]}", f"{text[:300]}: from {shown(sent)}")

    def find(self, kind: str, text: str) -> None:
        if len(self.finds) < FINDS_MAX:
            self.finds.setdefault(kind, text)

    def add(self, other: Tally) -> None:
        self.answers += other.answers
        self.kept += other.kept
        for kind, text in other.finds.items():
            self.find(kind, text)

    def __str__(self) -> str:
        rows: dict[str, Counter[str]] = {}
        for (label, outcome), count in self.answers.items():
            rows.setdefault(label, Counter())[outcome] = count
        lines = [_row(label, found) for label, found in sorted(rows.items())]
        return "\n".join([*lines, *(f"FOUND {kind}: {text}" for kind, text in self.finds.items())])


def shown(data: bytes) -> str:
    """An input as hexadecimal digits, cut short."""
    return f"{len(data)} bytes, {data[:SHOWN_BYTES].hex()}{'…' * (len(data) > SHOWN_BYTES)}"


def _row(label: str, found: Counter[str]) -> str:
    refused = ", ".join(f"{outcome} {count:,}" for outcome, count in found.most_common() if outcome != ACCEPTED)
    return f"{label:<12} {found.total():>9,} inputs  {found[ACCEPTED]:>9,} accepted  refused: {refused}"


def _outcome(label: str, answer: Answer) -> str:
    if answer.status is None:
        return answer.text.split(":", maxsplit=1)[0] or "closed"
    if answer.status != OK:
        return answer.reason or NAMES.get(answer.status, str(answer.status))
    received = messages_in(answer.data) if label == "Contribute" else []
    reason = pb.Receipt.FromString(received[0]).reason if received else pb.Receipt.REASON_COUNTED
    if reason in (pb.Receipt.REASON_COUNTED, pb.Receipt.REASON_VOID):
        return ACCEPTED
    return RECEIPT + pb.Receipt.Reason.Name(reason).removeprefix("REASON_").lower()


OK = grpc.StatusCode.OK.value[0]


def _is_receipt(label: str, outcome: str) -> bool:
    return label == "Contribute" and (outcome == ACCEPTED or outcome.startswith(RECEIPT))
