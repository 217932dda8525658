"""The bytes of a month are bounded, whatever ends the process."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path

import pytest

from thinwire_node.limits.month import MARGIN_BYTES, MONTH_FILE, PORTION_BYTES_MAX, PORTION_BYTES_MIN, MonthlyBudget
from thinwire_proto.errors import ConfigError

BOUND = 100_000_000
PIECE_BYTES = 1 << 16


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


NOW = at("2026-11-28T12:00")


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_not_passed_over_any_number_of_deaths(tmp_path: Path, seed: int) -> None:
    draw, passed, deaths = random.Random(seed), 0, 0
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    while not budget.is_used(NOW):
        piece = draw.randrange(1, PIECE_BYTES)
        passed += piece  # and the process may die before it counts them
        if draw.random() < 0.002:
            deaths += 1
            budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
            assert budget.used >= passed or budget.is_used(NOW)
            continue
        budget.charge(piece, NOW)
    assert passed <= BOUND
    assert passed >= BOUND - MARGIN_BYTES - PIECE_BYTES - deaths * 2 * PORTION_BYTES_MIN
    assert MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW).is_used(NOW)


def test_more_is_reserved_on_disk_than_may_pass_before_the_next_charge(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    for _ in range(100):
        budget.charge(PIECE_BYTES, NOW)
        after_a_death = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
        assert after_a_death.used >= budget.used + PORTION_BYTES_MIN // 2


def test_an_end_in_order_loses_nothing(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, 10 * PORTION_BYTES_MAX, 1, NOW)
    budget.charge(1000, NOW)
    budget.close()
    assert MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW).used == 1000


def test_a_bound_that_is_taken_away_gives_back_what_it_had_reserved(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.charge(1000, NOW)
    budget.bind(None, 1)
    budget.charge(10**6, NOW)
    assert MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW).used == 1000
    budget.bind(BOUND, 1)
    budget.charge(1000, NOW)
    assert budget.used == 2000
    (tmp_path / MONTH_FILE).unlink()
    tmp_path.rmdir()
    budget.bind(None, 1)  # the disk fails, and the owner's other wishes must not wait for it
    assert not budget.is_used(NOW)


def test_a_used_month_stays_used_when_its_connections_have_ended(tmp_path: Path) -> None:
    """Otherwise the node would connect again, and its connection would use up the month before a byte has passed."""
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.charge(BOUND - 2 * MARGIN_BYTES, NOW)
    assert not budget.is_used(NOW)
    budget.hold(MARGIN_BYTES, NOW)
    assert budget.is_used(NOW)
    budget.release(MARGIN_BYTES)
    assert budget.is_used(NOW)
    budget.bind(2 * BOUND, 1)
    assert not budget.is_used(NOW)
    budget.bind(BOUND // 2, 1)
    assert budget.is_used(NOW)
    assert not budget.is_used(at("2026-12-01T00:00"))


def test_another_day_of_reset_is_told_at_once(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, at("2026-11-05T12:00"))
    budget.charge(BOUND, at("2026-11-05T12:00"))
    budget.bind(BOUND, 10)
    assert budget.is_used(at("2026-11-05T12:00"))
    assert budget.ends_s(at("2026-11-05T12:00")) == at("2026-11-10T00:00")
    assert budget.is_used(at("2026-11-09T23:59"))
    assert not budget.is_used(at("2026-11-10T00:00"))


@pytest.mark.parametrize(
    ("day", "now", "ends"),
    [
        (1, "2026-11-28T12:00", "2026-12-01T00:00"),
        (1, "2026-12-01T00:00", "2027-01-01T00:00"),
        (15, "2026-11-14T23:59", "2026-11-15T00:00"),
        (15, "2026-12-20T10:00", "2027-01-15T00:00"),
        (28, "2027-01-05T10:00", "2027-01-28T00:00"),
    ],
)
def test_a_month_ends_on_its_day(tmp_path: Path, day: int, now: str, ends: str) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, day, at(now))
    budget.charge(BOUND, at(now))
    assert budget.is_used(at(now))
    assert budget.ends_s(at(now)) == at(ends)
    assert budget.is_used(at(ends) - 1)
    assert not budget.is_used(at(ends))
    assert budget.used == 0


def test_what_an_open_connection_may_pass_is_reserved(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.hold(BOUND // 2, NOW)
    assert MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW).used >= BOUND // 2  # after a death
    budget.release(BOUND // 2)
    budget.charge(1000, NOW)
    budget.close()
    assert MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW).used == 1000


def test_a_clock_that_is_set_back_begins_no_month(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.charge(BOUND, NOW)
    assert budget.is_used(at("2026-10-01T12:00"))


def test_without_a_bound_nothing_is_written(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, None, 1, NOW)
    budget.charge(10**12, NOW)
    assert not budget.is_used(NOW)
    budget.close()
    assert not (tmp_path / MONTH_FILE).exists()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / MONTH_FILE).write_text('{"begins": 5')
    with pytest.raises(ConfigError, match="it is damaged; remove it"):
        MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)


@pytest.mark.parametrize("text", ['{"begins": "zzz", "reserved": 5}', '{"begins": "2026-11-01", "reserved": -5}'])
def test_a_month_that_cannot_be_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / MONTH_FILE).write_text(text)
    with pytest.raises(ConfigError, match="it is damaged; remove it"):
        MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("day", "ends"), [(10, "2026-12-10"), (28, "2026-12-28")])
def test_another_day_of_reset_begins_no_month(tmp_path: Path, restarts: bool, day: int, ends: str) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.charge(BOUND // 2, NOW)
    budget.close()
    if restarts:
        budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, day, NOW)
    budget.bind(BOUND, day)
    budget.charge(1, NOW)
    assert budget.used == BOUND // 2 + 1
    assert budget.ends_s(NOW) == at(ends)
    budget.charge(1, at(ends))
    assert budget.used == 1


def test_the_end_is_told_that_holds_after_a_clock_was_ahead(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, at("2026-12-15"))
    budget.charge(BOUND, at("2026-12-15"))
    assert budget.is_used(NOW)
    assert budget.ends_s(NOW) == at("2027-01-01")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_decades_ahead_does_not_stop_the_month(tmp_path: Path, restarts: bool) -> None:
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    budget.charge(1000, at("2070-01-01T00:01"))  # a wrong clock at the start, until it has asked the network
    budget.charge(BOUND // 2, NOW)
    budget.close()
    if restarts:
        budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, NOW)
    assert budget.used == BOUND // 2 + 1000
    budget.charge(BOUND, NOW)
    assert budget.is_used(NOW)
    assert budget.ends_s(NOW) == at("2026-12-01")
    assert not budget.is_used(at("2026-12-01"))
    assert budget.used == 0


def test_a_machine_without_a_battery_for_its_clock_keeps_its_month(tmp_path: Path) -> None:
    """It starts in 1970, before it has asked the network, each time."""
    for begun in range(1, 4):
        budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, at("1970-01-05"))
        budget.charge(1000, at("1970-01-05"))
        budget.charge(1000, NOW)
        budget.close()
        assert budget.used == 2000 * begun - 1000  # of the first start, which nobody had told the time
    budget = MonthlyBudget(tmp_path / MONTH_FILE, BOUND, 1, at("1970-01-05"))
    assert not budget.is_used(at("2026-12-01"))
    assert budget.used == 0


def test_bytes_that_cannot_be_reserved_are_told_and_not_taken_for_reserved(tmp_path: Path) -> None:
    budget = MonthlyBudget(tmp_path / "state" / MONTH_FILE, None, 1, NOW)  # its folder is missing
    budget.bound = BOUND
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be counted"):
            budget.charge(1000, NOW)
    assert budget.used == 2000
    (tmp_path / "state").mkdir()
    budget.charge(1000, NOW)
    assert MonthlyBudget(tmp_path / "state" / MONTH_FILE, BOUND, 1, NOW).used >= 3000
