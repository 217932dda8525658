"""The archive's file follows the journal: nothing is lost, doubled, or left out without a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from thinwire_node.gossip.journal import JournalEntry
from thinwire_node.gossip.message_archive import open_archive
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.archive import ARCHIVE_FILE, ArchiveHeader, pack_mixed, read_archive
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.member_state import MemberState

HEADER = ArchiveHeader(b"c" * 32, "a node")
JOURNAL = JournalEntry(MemberState(b"", {}), {}, 0, 0, None, 0)


def turns_in(path: Path) -> list[object]:
    with path.open("rb") as file:
        header, entries = read_archive(file, 1000)
        assert header == HEADER
        return [*entries]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ARCHIVE_FILE


def test_what_the_journal_does_not_name_is_written_again(path: Path) -> None:
    archive = open_archive(path, HEADER, None)
    archive.add(pack_mixed(Turn(1, 0, 2)))
    archived = archive.sync()
    archive.add(pack_mixed(Turn(1, 1, 2)))
    archive.sync()
    archive.close()  # killed before the journal
    archive = open_archive(path, HEADER, replace(JOURNAL, archived=archived))
    archive.add(pack_mixed(Turn(1, 1, 3)))
    archive.sync()
    archive.close()
    assert turns_in(path) == [Turn(1, 0, 2), Turn(1, 1, 3)]


def test_a_node_that_has_taken_part_without_an_archive_cannot_begin_one(path: Path) -> None:
    with pytest.raises(ConfigError, match="leave --archive-messages out, or give another --state-dir"):
        open_archive(path, HEADER, JOURNAL)
    assert not path.exists()


def test_an_archive_that_is_shorter_than_the_journal_says_is_refused_and_kept(path: Path) -> None:
    path.write_bytes(b"12345")
    with pytest.raises(ConfigError, match="has 5 bytes, and the journal names 6"):
        open_archive(path, HEADER, replace(JOURNAL, archived=6))
    assert path.read_bytes() == b"12345"


def test_a_node_that_begins_anew_keeps_its_older_archives(path: Path) -> None:
    for _ in range(3):
        archive = open_archive(path, HEADER, None)
        archive.add(pack_mixed(Turn(1, 0, 2)))
        archive.sync()
        archive.close()
    older = sorted(path.parent.glob(f"{ARCHIVE_FILE}.*"))
    assert [each.name for each in older] == [f"{ARCHIVE_FILE}.1", f"{ARCHIVE_FILE}.2"]
    assert all(turns_in(each) == [Turn(1, 0, 2)] for each in [path, *older])
