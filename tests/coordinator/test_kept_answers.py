"""Tests how often answers to readers are made anew. Time and processor time are virtual."""

from __future__ import annotations

from thinwire_coordinator.hall.observe.cpu_budget import ANSWERS_BURST_S, ANSWERS_SHARE, NETWORKS_MAX, KeptAnswers

KEPT_S = 0.5
COST_S = 0.01


class Readers:
    """Readers of answers that take COST_S each."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self.made = 0
        self._cpu_s = 0.0
        self._answers = KeptAnswers(kept_s, lambda: self._cpu_s)

    def ask(self, question: str, now: float, network: str | None = None) -> bytes | None:
        return self._answers.answer(question, now, self._make, network)

    def _make(self) -> bytes:
        self.made += 1
        self._cpu_s += COST_S
        return str(self.made).encode()


def test_an_answer_is_made_once_for_all_who_ask_at_the_same_time() -> None:
    readers = Readers()
    assert {readers.ask("a", KEPT_S * number / 1000) for number in range(1001)} == {b"1"}
    assert readers.ask("a", KEPT_S * 1.01) == b"2"


def test_ever_new_questions_get_their_share_of_a_core_and_no_more() -> None:
    readers, seconds = Readers(), 100
    answers = [readers.ask(f"{number}", number / 1000) for number in range(1000 * seconds)]
    refused = answers.count(None)
    assert readers.made == len(answers) - refused
    assert abs(readers.made * COST_S - (ANSWERS_BURST_S + ANSWERS_SHARE * seconds)) < 2 * COST_S
    assert readers.ask("later", 2.0 * seconds) is not None


def test_who_asks_the_same_without_a_pause_gets_an_older_answer() -> None:
    """As /metrics does: it is never refused, and made anew if nobody asks too much."""
    readers = Readers(kept_s=0.0)
    assert [readers.ask("", float(second)) for second in range(3)] == [b"1", b"2", b"3"]
    answers = [readers.ask("", 3 + number / 1000) for number in range(10_000)]
    assert None not in answers
    assert (readers.made - 3) * COST_S < ANSWERS_BURST_S + ANSWERS_SHARE * 10 + 2 * COST_S


def test_a_network_that_asks_ever_new_questions_leaves_half_to_others() -> None:
    readers, seconds = Readers(), 100
    got = {"flood": 0, "visitor": 0}
    for number in range(1000 * seconds):
        got["flood"] += readers.ask(f"{number}", number / 1000, "flood") is not None
        if number % 1000 == 999:  # once a second, one question of its own
            got["visitor"] += readers.ask(f"mine {number}", number / 1000, "visitor") is not None
    assert got["visitor"] == seconds
    assert abs(got["flood"] * COST_S - (ANSWERS_BURST_S + ANSWERS_SHARE * seconds) / 2) < 2 * COST_S
    for number in range(2 * NETWORKS_MAX):
        readers.ask(f"{number}", 1000.0 + number, f"network {number}")
    assert len(readers._answers._of_networks) <= NETWORKS_MAX
