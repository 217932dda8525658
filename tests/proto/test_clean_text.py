"""Cleaned names and texts are one short line of visible letters, whatever was sent."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from thinwire_proto.clean_text import (
    CUT,
    MARKS_MAX,
    NAME_BYTES_MAX,
    NAME_GRAPHEMES_MAX,
    TEXT_BYTES_MAX,
    clean_name,
    clean_text,
)

ZALGO = "a" + "\u0301" * 1000
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("ann", "ann"),
        ("  Ann \t of\u00a0Rome\n", "Ann of Rome"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07ann", "ann"),
        ("\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x9b2Jann", "ann"),
        ("\x1bcann", "ann"),
        ("ann\r\n12:00:00 joined as root", "ann 12:00:00 joined as root"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("\u202egpj.exe\u202c", "gpj.exe"),
        ("\u2066a\u2067b\u2068c\u2069d\u061ce\u200ef\u200f", "abcdef"),
        ("a\u200bd\u200cm\u200di\ufeffn\u2060", "admin"),
        ("ad\u00admin", "admin"),
        ("a\u3164\u2800\uffa0\u115f", "a"),
        ("a\ufe0f\U000e0100\U000e0041", "a"),
        (FAMILY, FAMILY.replace("\u200d", "")),
        ("Zoe\u0308", "Zo\u00eb"),
        ("Ти́ша 李小龍 ‎محمد", "Ти́ша 李小龍 محمد"),
        ("\ud800x", "x"),
        ("\x00\x07\x08\x7f", ""),
        ("\u0301x", "x"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_removed(sent: str, shown: str) -> None:
    assert clean_name(sent) == shown


def test_accents_cannot_bury_the_line_above() -> None:
    assert len(clean_name(ZALGO)) <= 1 + MARKS_MAX
    assert clean_name("\u0301" * 100) == ""


def test_a_megabyte_becomes_a_name_of_the_allowed_length() -> None:
    long = clean_name("x" * 1_000_000)
    assert (len(long), long[-1]) == (NAME_GRAPHEMES_MAX, CUT)
    assert len(clean_name("\U0001f600" * 1_000_000).encode()) <= NAME_BYTES_MAX
    assert clean_name("x" * NAME_GRAPHEMES_MAX) == "x" * NAME_GRAPHEMES_MAX
    assert clean_name("\u200b" * 1_000_000 + "ann") == ""  # what comes after a megabyte of nothing is not looked at


@given(st.text(st.characters(codec=None), max_size=400))
@example(ZALGO)
@example("\x1b]" * 50)
def test_any_text_becomes_one_visible_line_within_its_bounds(sent: str) -> None:
    for shown, bytes_max in ((clean_name(sent), NAME_BYTES_MAX), (clean_text(sent), TEXT_BYTES_MAX)):
        assert shown.isprintable()
        assert len(shown.encode()) <= bytes_max
        assert shown == shown.strip()
        assert not any(unicodedata.category(letter) in ("Cf", "Cc", "Cs", "Zl", "Zp") for letter in shown)
    assert sum(not unicodedata.category(letter).startswith("M") for letter in clean_name(sent)) <= NAME_GRAPHEMES_MAX
