"""Commands of the coordinator leave the state directory of a node as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.ledger.state_directory import lock_state, open_state
from thinwire_proto.errors import ConfigError


@pytest.mark.parametrize("opens", [lock_state, open_state, open_existing_identity])
@pytest.mark.parametrize("file", ["enrolment.json", "head.json"])
def test_a_nodes_directory_is_refused_and_not_written_to(
    tmp_path: Path, file: str, opens: Callable[[Path], object]
) -> None:
    kept = {"contract.json", "identity.key", "lock", file}
    for name in kept:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="is the state directory of a node; give the coordinator's --state-dir"):
        opens(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    "names",
    [(), ("lost+found", ".hidden"), ("run.toml", "server.pem"), ("lock", "a.txt"), ("contract.json", "a.txt")],
)
def test_an_empty_folder_and_one_in_which_a_run_has_begun_are_taken(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).touch()
    lock_state(tmp_path).release()
