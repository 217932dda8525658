"""The limits of a volunteer: what they may be, and when they let a node rest."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from support.reports import small_report
from thinwire_node.cli import owner
from thinwire_node.daemon import Node
from thinwire_node.limits import limits
from thinwire_node.limits.keeper import LimitsKeeper, LimitsSource
from thinwire_node.limits.limits import Limits, LimitsFile, check
from thinwire_node.limits.quantities import in_words, read_hours, read_rate, read_until
from thinwire_node.limits.resting import Orders, OrdersFile, Surroundings, rest
from thinwire_node.observe import status
from thinwire_node.observe.reporter import Reporter
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_proto.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place whose clock changes twice a year."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


GIVEN = {
    "max_upload": "500kB/s",
    "max_download": "4Mbit/s",
    "monthly_data": "50GB",
    "monthly_reset_day": "15",
    "hours": "mon-fri 22-07, sat-sun 0-24",
    "max_memory": "8GiB",
    "max_disk": "20G",
    "max_compute": "30",
    "threads": "2",
    "priority": "low",
    "on_battery": "pause",
    "while_busy": "pause",
    "on_metered": "pause",
}
WRONG = [
    ("max_upload", "10", "max-upload: '10' is not a rate with its unit, such as 500kB/s or 10Mbit/s"),
    ("max_upload", "1kB/s", "max-upload: '1kB/s' is less than 2 kB/s, with which a node cannot take part"),
    ("max_download", "-4Mbit/s", "max-download: '-4Mbit/s' is not a rate with its unit"),
    ("monthly_data", "much", "monthly-data: 'much' is not a size such as 500M, 8GB or 8GiB"),
    ("monthly_reset_day", "31", "monthly-reset-day: input should be less than or equal to 28, not '31'"),
    ("hours", "22", "hours: '22' is not hours such as 22-07"),
    ("hours", "25-07", "hours: 25:00 is no time of day"),
    ("hours", "24-0", "hours: '24-0' begins when it ends; for the whole day, write 0-24"),
    ("hours", "22-22", "hours: '22-22' begins when it ends; for the whole day, write 0-24"),
    ("hours", "som 22-07", "hours: 'som' is no day: write mon, tue, wed, thu, fri, sat, sun"),
    ("hours", ",".join(["22-07"] * 15), "hours: at most 14 windows, and not 15"),
    ("max_memory", "0", "max-memory: '0' is not a size"),
    ("max_disk", "8 apples", "max-disk: '8 apples' is not a size"),
    ("max_compute", "0", "max-compute: input should be greater than or equal to 1, not '0'"),
    ("threads", "many", "threads: must be a whole number, not 'many'"),
    ("priority", "high", "priority: input should be 'idle', 'low' or 'normal', not 'high'"),
    ("on_battery", "stop", "on-battery: input should be 'run' or 'pause', not 'stop'"),
    ("while_busy", "maybe", "while-busy: input should be 'run' or 'pause', not 'maybe'"),
    ("on_metered", "stop", "on-metered: input should be 'run' or 'pause', not 'stop'"),
    ("max_uplod", "1MB/s", "'max-uplod' is no limit; the limits are max-upload, max-download, "),
]


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("10Mbit/s", 1.25e6),
        ("10 Mbps", 1.25e6),
        ("10mb/s", 1.25e6),
        ("10MB/s", 1e7),
        ("10MBps", 1e7),
        ("80KBIT/S", 1e4),
    ],
)
def test_a_small_b_is_a_bit(text: str, bytes_s: float) -> None:
    assert read_rate(text) == bytes_s


def test_every_limit_has_a_good_and_a_bad_value() -> None:
    assert GIVEN.keys() == set(Limits.model_fields)
    assert GIVEN.keys() <= {name for name, _, _ in WRONG}
    found = check(GIVEN)
    assert (found.max_upload, found.max_download, found.monthly_data) == (500e3, 500e3, 50 * 10**9)
    assert found.max_memory == 8 << 30


@pytest.mark.parametrize(("name", "text", "told"), WRONG)
def test_a_wrong_value_is_told_in_a_sentence_and_changes_nothing(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    file = LimitsFile(tmp_path / "limits.toml")
    file.write(GIVEN)
    before = file.path.read_bytes()
    with pytest.raises(UsageError) as refused:
        owner.set_limits(tmp_path, None, ["max-compute=20", f"{limits.key_of(name)}={text}"])
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)
    assert file.path.read_bytes() == before
    file.path.write_text(f'{limits.key_of(name)} = "{text}"')
    with pytest.raises(ConfigError, match="correct it, or remove the file"):
        file.read()


@pytest.mark.parametrize("text", ["hours = 22-07", "max-compute = true", "\xff" * 3, "#" * 10**6, "[hours]\nx = 1"])
def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="correct it, or remove the file"):
        LimitsFile(path).read()


def test_set_changes_the_file_and_none_takes_a_limit_away(tmp_path: Path) -> None:
    file = LimitsFile(tmp_path / "limits.toml")
    assert owner.set_limits(tmp_path, None, []) == "no limits"
    owner.set_limits(tmp_path, None, ["hours=22-07", "max-upload=1MB/s"])
    assert owner.set_limits(tmp_path, None, ["max-upload=none", "threads=2"]) == "hours = 22-07\nthreads = 2"
    assert file.read() == {"hours": "22-07", "threads": "2"}
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        owner.set_limits(tmp_path, None, ["hours"])
    file.write(GIVEN)
    assert file.read() == GIVEN


@pytest.mark.parametrize(
    ("hours", "now", "begin"),
    [
        ("22-07", "2026-11-28T12:00", "2026-11-28T22:00"),
        ("22-07", "2026-11-28T06:59", None),
        ("22-07", "2026-11-28T07:00", "2026-11-28T22:00"),
        ("22:30-06:15", "2026-11-28T22:29", "2026-11-28T22:30"),
        ("mon-fri 22-07, sat-sun 0-24", "2026-11-29T23:59", None),  # Sunday
        ("mon-fri 22-07, sat-sun 0-24", "2026-11-30T00:00", "2026-11-30T22:00"),
        ("fri 22-07", "2026-11-28T06:00", None),  # Saturday morning
        ("fri 22-07", "2026-11-28T07:00", "2026-12-04T22:00"),
        ("sun 22-07", "2026-11-30T03:00", None),  # over the end of the week
        ("sun-mon 10-11", "2026-11-28T03:00", "2026-11-29T10:00"),
        ("03-04", "2026-10-24T12:00", "2026-10-25T03:00"),  # the night on which summer time ends
        ("02-03", "2026-03-28T12:00", "2026-03-30T02:00"),  # and the one on which it begins, which has no such hour
    ],
)
def test_hours_are_those_of_the_local_clock(hours: str, now: str, begin: str | None) -> None:
    found = read_hours(hours)
    assert found.contain(at(now)) == (begin is None)
    assert found.begin_after(at(now)) == at(begin or now)


def test_hours_agree_with_a_look_at_each_minute() -> None:
    found = read_hours("mon-thu 21:30-06:45, sat 0-24")
    for minute in range(8 * 24 * 60):
        now = at("2026-11-02T00:00") + 60 * minute
        local = datetime.fromtimestamp(now)
        day, clock = local.weekday(), local.hour * 60 + local.minute
        evening = day in (0, 1, 2, 3) and clock >= 21 * 60 + 30
        morning = day in (1, 2, 3, 4) and clock < 6 * 60 + 45
        assert found.contain(now) == (evening or morning or day == 5)


def test_a_pause_has_a_duration_or_an_end() -> None:
    now = at("2026-11-28T21:00")
    assert read_until([], now) is None
    assert read_until(["90m"], now) == now + 5400
    assert read_until(["until", "22:00"], now) == at("2026-11-28T22:00")
    assert read_until(["until", "08:30"], now) == at("2026-11-29T08:30")
    assert read_until(["until", "21:00"], now) == at("2026-11-29T21:00")
    for wrong in (["until"], ["22:00"], ["until", "24:00"], ["until", "8:61"], ["soon"], ["1h", "2h"], ["0s"]):
        with pytest.raises(ValueError, match=r"is not|must be"):
            read_until(wrong, now)


@pytest.mark.parametrize(
    ("now", "then", "ends"),
    [
        ("2027-03-27T23:30", "08:00", "2027-03-28T08:00"),  # the night has an hour less
        ("2026-10-25T00:30", "00:15", "2026-10-26T00:15"),  # the day has 25
        ("2026-10-24T23:30", "08:00", "2026-10-25T08:00"),
    ],
)
def test_a_pause_ends_by_the_local_clock_on_days_on_which_it_changes(now: str, then: str, ends: str) -> None:
    assert read_until(["until", then], at(now)) == at(ends)


NOON = at("2026-11-28T12:00+01:00")


@pytest.mark.parametrize(
    ("given", "orders", "around", "words"),
    [
        ({}, Orders(), Surroundings(NOON, True, 0.9), None),
        ({"hours": "22-07"}, Orders(), Surroundings(NOON), "resting until 22:00 (hours)"),
        ({"hours": "mon 22-07"}, Orders(), Surroundings(NOON), "resting until Monday 22:00 (hours)"),
        ({}, Orders(paused=True), Surroundings(NOON), "paused"),
        ({}, Orders(True, NOON + 9000), Surroundings(NOON), "paused until 14:30"),
        ({}, Orders(True, NOON), Surroundings(NOON), None),
        ({"on_battery": "pause"}, Orders(), Surroundings(NOON, on_battery=True), "resting: on battery"),
        ({"on_battery": "pause"}, Orders(), Surroundings(NOON), None),
        (
            {"while_busy": "pause"},
            Orders(),
            Surroundings(NOON, others_share=0.3),
            "resting: other programs use the processor",
        ),
        ({"while_busy": "pause"}, Orders(), Surroundings(NOON, others_share=0.2), None),
        ({"while_busy": "pause"}, Orders(), Surroundings(NOON), None),
        (
            {"while_busy": "pause"},
            Orders(),
            Surroundings(NOON, is_somebody_here=True),
            "resting: somebody is at this machine",
        ),
        (
            {"while_busy": "pause"},
            Orders(),
            Surroundings(NOON, is_screen_full=True),
            "resting: a program fills the screen",
        ),
        (
            {"while_busy": "pause"},
            Orders(),
            Surroundings(NOON, is_card_used=True),
            "resting: another program uses the card",
        ),
        ({"on_metered": "pause"}, Orders(), Surroundings(NOON, is_metered=True), "resting: the line is metered"),
        ({}, Orders(), Surroundings(NOON, True, 0.9, None, True, True, True, True), None),
    ],
)
def test_a_node_rests_and_says_why(
    given: dict[str, str], orders: Orders, around: Surroundings, words: str | None
) -> None:
    found = rest(check(given), orders, around)
    assert (found.words if found else None) == words


def test_a_busy_machine_counts_as_free_only_well_below() -> None:
    busy = check({"while_busy": "pause"})
    for share, was_busy, rests in ((0.2, True, True), (0.1, True, False), (0.2, False, False)):
        assert (rest(busy, Orders(), Surroundings(NOON, others_share=share), was_busy) is not None) == rests
    assert rest(busy, Orders(), Surroundings(NOON, others_share=0.5)) is not None


def test_a_keeper_follows_clock_file_and_orders(tmp_path: Path) -> None:
    clock = [NOON]
    taken: list[Limits] = []
    stopped: list[str] = []
    source = LimitsSource(given={"hours": "22-07", "max_compute": "50"})
    keeper = LimitsKeeper(source, tmp_path, lambda: clock[0], taken.append, stopped.append)
    assert keeper.resting is not None
    assert keeper.resting.until == at("2026-11-28T22:00")
    assert keeper.limits.max_compute == 50  # of the command line, and in the file
    clock[0] = at("2026-11-28T22:00")
    keeper.look()
    assert keeper.resting is None
    owner.set_limits(tmp_path, None, ["max-compute=10"])
    keeper.look()
    assert [found.max_compute for found in taken] == [10]
    (tmp_path / "limits.toml").write_text("hours = 5")
    keeper.look()
    assert keeper.limits == taken[0]  # a file with a mistake changes nothing
    owner.pause(tmp_path, [])
    keeper.look()
    assert keeper.resting is not None
    assert keeper.resting.until == math.inf
    owner.resume(tmp_path)
    keeper.look()
    assert keeper.resting is None
    assert not stopped


def test_a_start_with_the_same_options_writes_nothing(tmp_path: Path) -> None:
    """A script may give the same options at each start, and the disk may be full."""
    file = LimitsFile(tmp_path / "limits.toml")

    def start(**given: str) -> tuple[int, int, int]:
        LimitsKeeper(LimitsSource(given=given), tmp_path, lambda: NOON, lambda taken: None, lambda stop: None)
        return file.version()

    written = start(hours="22-07")
    assert start(hours="22-07") == start() == written
    assert start(hours="none") != written
    assert file.read() == {}


def test_hours_that_the_local_clock_leaves_out_begin_a_week_later() -> None:
    before, later = at("2026-03-22T02:46"), at("2026-04-05T02:15")  # on March 29, 2:15 does not exist
    assert read_hours("sun 2:15-2:45").begin_after(before) == later


@pytest.mark.parametrize("until", ["1e300", "-1e300", "NaN"])
def test_an_end_of_a_pause_without_a_date_is_told(tmp_path: Path, until: str) -> None:
    (tmp_path / "orders.json").write_text(f'{{"paused": true, "until": {until}}}')
    with pytest.raises(ConfigError, match="it is damaged; `thinwire-node resume` replaces it"):
        OrdersFile(tmp_path / "orders.json").read()


@pytest.mark.parametrize("text", ["1" + 400 * "0", "1" + 300 * "0" + ".5GB"])
def test_a_size_beyond_all_bounds_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        check({"monthly_data": text})


def test_a_file_of_limits_may_begin_with_a_mark_and_not_be_nested(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_bytes(b'\xef\xbb\xbfhours = "22-07"\n')
    assert LimitsFile(path).read() == {"hours": "22-07"}
    path.write_text("hours = " + 60_000 * "[")
    with pytest.raises(ConfigError, match="correct it, or remove the file"):
        LimitsFile(path).read()


def test_a_keeper_follows_the_time_zone_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop travels. The C library keeps the zone that it has seen first, of a variable as of /etc/localtime."""
    clock = [at("2026-11-28T22:30")]
    source = LimitsSource(given={"hours": "22-07"})
    keeper = LimitsKeeper(source, tmp_path, lambda: clock[0], lambda taken: None, lambda stop: None)
    assert keeper.resting is None
    monkeypatch.setenv("TZ", "America/Los_Angeles")  # 13:30
    clock[0] += 60
    keeper.look()
    assert keeper.resting is not None
    assert keeper.resting.words == "resting until 22:00 (hours)"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    owner.pause(tmp_path, ["until", "08:00"])
    assert datetime.fromtimestamp(OrdersFile(tmp_path / "orders.json").read().until or 0.0).hour == 8


def test_a_point_in_another_year_is_told_with_it() -> None:
    assert in_words(at("2026-12-20T00:00"), NOON) == "20 December"
    assert in_words(at("2070-02-01T00:00"), NOON) == "1 February 2070"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone gives files away")
def test_what_root_orders_can_be_read_by_the_user_of_a_service(tmp_path: Path) -> None:
    user, roots = 12345, tmp_path / "of root"
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, user, user)
    roots.write_text("precious")
    (folder / "orders.json.part").symlink_to(roots)
    before = os.umask(0o077)
    try:
        owner.set_limits(folder, None, ["max-upload=1MB/s", "threads=2"])
        owner.pause(folder, [])
        with pytest.raises(ConfigError, match="no node runs here"):
            owner.stop(folder, after_round=False)
    finally:
        os.umask(before)
    found = {path.name: path.lstat() for path in folder.iterdir()}
    assert {name: (stat.st_uid, stat.st_gid) for name, stat in found.items()} == {
        "limits.toml": (user, user),
        "orders.json": (user, user),
    }
    assert roots.read_text() == "precious"
    assert roots.stat().st_uid == 0


def test_set_does_not_change_a_file_that_the_node_does_not_read(tmp_path: Path) -> None:
    mine, kept = tmp_path / "mine.toml", tmp_path / "limits.toml"
    options = NodeOptions("n", None, None)
    node = Node(NodeSettings("127.0.0.1:1", tmp_path, "cpu", options, None, own=LimitsSource(mine)))
    named = Reporter(node).report().limits_file
    status.write(tmp_path, replace(small_report(), limits_file=named))
    with pytest.raises(UsageError, match=f"last started with --limits {mine}; give the same, or --limits {kept} for"):
        owner.set_limits(tmp_path, None, ["threads=2"])
    assert not kept.exists()
    assert owner.set_limits(tmp_path, mine, ["threads=2"]) == "threads = 2"
    assert owner.set_limits(tmp_path, kept, []) == "no limits"
    status.write(tmp_path, small_report())
    assert owner.set_limits(tmp_path, None, ["threads=3"]) == "threads = 3"


def test_a_node_rests_until_the_next_month_once_its_data_are_used() -> None:
    now = 1e9
    around = Surroundings(now, month_ends_s=now + 3600)
    found = rest(check({"monthly_data": "50GB"}), Orders(), around)
    assert found is not None
    assert found.until == now + 3600
    assert "monthly data used" in found.words
    assert rest(check({}), Orders(), around) is None
    assert rest(check({"monthly_data": "50GB"}), Orders(), Surroundings(now)) is None
