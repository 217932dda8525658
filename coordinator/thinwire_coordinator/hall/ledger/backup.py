"""Copies a run to another folder or store while its coordinator runs, and brings it back.

The problem: a state directory changes while it is copied. A ledger that is newer than the snapshots and updates beside
it is harmless, but one that names files which are not in the copy is useless.

The sketch: the two databases come first, each by SQLite's own backup, which sees one moment and blocks no writer. All
other files never change once they have their name: bodies and blobs are named by their hash, snapshots by their step.
So what the ledger names is copied after it, and what the backup has already is not copied again. The list of files
comes last, in `backup.json`: until it is replaced, the backup is the one before. If retention deletes a file meanwhile
that the copied ledger needs, the copy starts over.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from fsspec.implementations.local import LocalFileSystem
from pydantic import TypeAdapter, ValidationError

from thinwire_common.files import rename_synced, replace_synced, sync_folder
from thinwire_coordinator.hall.access.database import FILE as ACCESS
from thinwire_coordinator.hall.access.organizer import FILE as ORGANIZER_SECRET
from thinwire_coordinator.hall.ledger.bodies import NAME, failing_store, open_location
from thinwire_coordinator.hall.ledger.identity import check_begun_or_empty
from thinwire_coordinator.hall.ledger.results import FILE as RESULTS
from thinwire_proto.errors import ConfigError, Damaged, LedgerError, LocalError
from thinwire_proto.identity.keys import KEY_FILE

FORMAT = 1
LIST = "backup.json"
LEDGER = "ledger.sqlite"
CONTRACT = "contract.json"
DATABASES = (LEDGER, ACCESS)
MAY_CHANGE = (KEY_FILE, ORGANIZER_SECRET, "bodies.url", RESULTS, "tls/authority.pem", "tls/server.pem", "tls/ca.pem")
"""Small files that are kept by their hash, as the databases are."""
NEVER_CHANGE = (CONTRACT, "corpus.zst")
PRIVATE = 0o600
SCRATCH = ".backup-"
"""How the names of folders for copied databases begin."""
ATTEMPTS_MAX = 5
HASH_BEGINS = re.compile(r"[0-9a-f]{16}")
PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
"""A path in a list: nothing that leads out of the folder."""


@dataclass(frozen=True)
class Kept:
    """A file of the run in a backup. name: its name there. hash: SHA-256 in hexadecimal; empty for files that say
    themselves whether they are whole."""

    path: str
    name: str
    size: int
    hash: str = ""


@dataclass(frozen=True)
class Listed:
    """The contents of a backup. run: tells runs apart. step: rows sealed. head: the hash of the last one, in
    hexadecimal; empty without rows, and in a backup that was made before it was kept."""

    run: str
    step: int
    files: tuple[Kept, ...]
    head: str = ""


@dataclass(frozen=True)
class Done:
    """A backup that was made. copied, copied_bytes: of the files that were not there yet."""

    step: int
    files: int
    copied: int
    copied_bytes: int


_KEPT = TypeAdapter(Kept)


class Gone(Exception):
    """Retention has deleted a file that the copied ledger needs."""


class Store:
    """A backup's folder, or any address that fsspec can open. Raises ConfigError, OSError or StoreFails."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = open_location(url)
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def check_apart_from(self, folder: Path) -> None:
        """Raise ConfigError if the backup would be a part of the state directory."""
        if self._is_local and Path(self._root).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"{self.url} is in {folder} itself, and a backup there is lost with it; give another address"
            )

    def listed(self) -> Listed | None:
        """The contents of the backup; None if there is none. Raises Damaged."""
        try:
            found = json.loads(self._do(lambda: self._fs.cat_file(self._path(LIST))))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Damaged(f"{self.url}/{LIST}: {error}", restore="the backup") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ConfigError(f"{self.url}/{LIST} has another format than {FORMAT}; update thinwire")
        try:
            files = tuple(_KEPT.validate_json(json.dumps(kept), strict=True) for kept in found["files"])
            listed = Listed(str(found["run"]), int(found["step"]), files, str(found.get("head", "")))
        except ValidationError:
            raise Damaged(f"{self.url}/{LIST}: what it says of a file is malformed", restore="the backup") from None
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{self.url}/{LIST}: {error!r}", restore="the backup") from None
        if strange := [kept.path for kept in files if not (PATH.fullmatch(kept.path) and PATH.fullmatch(kept.name))]:
            raise Damaged(f"{self.url}/{LIST}: {strange[0]!r} is no file of a run", restore="the backup")
        return listed

    def put(self, source: Path, name: str) -> None:
        """Copy a file into the backup. It has its name there once it is complete."""
        if not self._is_local:
            self._do(lambda: self._fs.put_file(str(source), self._path(name)))
            return
        target = Path(self._path(name))
        self._make_folders(target.parent)
        temporary = target.with_name(target.name + ".part")
        temporary.unlink(missing_ok=True)
        temporary.touch(PRIVATE)
        with source.open("rb") as read, temporary.open("wb") as write:
            while data := read.read(1 << 20):
                write.write(data)
        rename_synced(temporary, target)

    def write_list(self, listed: Listed) -> None:
        about = {"format": FORMAT, "run": listed.run, "step": listed.step, "head": listed.head}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / LIST
            path.write_text(json.dumps(about | {"files": [asdict(kept) for kept in listed.files]}))
            self.put(path, LIST)

    def get(self, kept: Kept, target: Path) -> None:
        """Bring a file back. Raises Damaged if it is not what the list says."""
        temporary = target.with_name(target.name + ".part")
        temporary.unlink(missing_ok=True)
        temporary.touch(PRIVATE)
        try:
            self._do(lambda: self._fs.get_file(self._path(kept.name), str(temporary)))
        except FileNotFoundError:
            raise Damaged(f"{self.url}: {kept.name} is missing", restore="the backup") from None
        size = temporary.stat().st_size
        if size != kept.size or (kept.hash and _hash_of(temporary) != kept.hash):
            raise Damaged(f"{self.url}: {kept.name} is not what it was when it was copied", restore="the backup")
        rename_synced(temporary, target)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._do(lambda: self._fs.rm_file(self._path(name)))

    def remove_unlisted(self, listed: Listed) -> None:
        """Remove what backups that were interrupted have left of the files that change."""
        listed_names = {kept.name for kept in listed.files}
        for folder in ("", "tls/"):
            try:
                paths = self._do(partial(self._fs.ls, self._path(folder).rstrip("/"), detail=False, refresh=True))
            except FileNotFoundError:
                continue
            for name in (folder + path.rstrip("/").rpartition("/")[2] for path in paths):
                begins, _, digest = name.rpartition(".")
                if begins in (*DATABASES, *MAY_CHANGE) and HASH_BEGINS.fullmatch(digest) and name not in listed_names:
                    self.remove(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folders(self, folder: Path) -> None:
        """Folders that nobody else can read: the backup has the keys of the run."""
        for one in (*reversed(folder.parents), folder):
            if not one.exists():
                one.mkdir(0o700)
                sync_folder(one.parent)

    def _do(self, call: Callable[[], Any]) -> Any:
        with failing_store(self.url, is_folder=self._is_local, may_be_missing=True):
            return call()


def back_up(folder: Path, url: str, say: Callable[[str], None] = lambda line: None) -> Done:
    """Copy the run in a state directory to `url`, or what has come since the last copy. Raises ThinwireError, OSError.

    say: is told in words what takes long."""
    if not all((folder / name).exists() for name in (CONTRACT, LEDGER, KEY_FILE)):
        raise ConfigError(f"{folder} is not a coordinator's state directory, or nothing was begun there")
    store = Store(url)
    store.check_apart_from(folder)
    run = _run_of(folder)
    with _only_one(folder):
        before = store.listed()
        if before is not None and before.run != run:
            raise ConfigError(f"{url} has the backup of another run; give another address")
        if before is not None:
            _check_continues(before, folder / LEDGER, url)
        for _ in range(ATTEMPTS_MAX):
            try:
                return _copy(folder, store, run, before, say)
            except Gone as error:
                say(f"{error} was deleted meanwhile; copying what is there now")
    raise LocalError(f"{folder}: files are deleted faster than they can be copied to {url}; keep more, by --keep")


def _check_continues(before: Listed, ledger: Path, url: str) -> None:
    """Raise ConfigError if the ledger lacks rows that the backup has: it would take the place of what is lost here."""
    found = _head_of(ledger, before.step)
    if before.step and (not found or found != (before.head or found)):
        how = "are other ones than" if found else "are not in"
        raise ConfigError(
            f"{url} has the run up to step {before.step}, and its last rows {how} {ledger}; give another address, or "
            "`restore` that one"
        )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Back up one at a time, and remove what a backup that was killed has left. Raises ConfigError."""
    lock = FileLock(folder / ".backup.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError(f"another backup of {folder} is under way: wait until it has ended, or end it") from None
    try:
        for scratch in folder.glob(f"{SCRATCH}*"):
            shutil.rmtree(scratch)
        yield
    finally:
        lock.release()


def _copy(folder: Path, store: Store, run: str, before: Listed | None, say: Callable[[str], None]) -> Done:
    there = {kept.name: kept for kept in before.files} if before is not None else {}
    files: list[Kept] = []
    copied: list[Kept] = []

    def keep(source: Path, path: str, name: str, hash_: str = "") -> None:
        kept = Kept(path, name, source.stat().st_size, hash_)
        if there.get(name) != kept:
            store.put(source, name)
            copied.append(kept)
            if len(copied) % 1000 == 0:
                say(f"{len(copied):,} files copied")
        files.append(kept)

    written = {path.name for path in (folder / "updates").glob("*")}
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:  # as private as the state directory
        for name in (one for one in DATABASES if (folder / one).exists()):
            copy = Path(scratch) / name
            copy_database(folder / name, copy)
            digest = _hash_of(copy)
            keep(copy, name, f"{name}.{digest[:16]}", digest)
        step, bodies = _named_by(Path(scratch) / LEDGER)
        head = _head_of(Path(scratch) / LEDGER, step)
        for name in (one for one in MAY_CHANGE if (folder / one).exists()):
            copy = Path(scratch) / Path(name).name
            shutil.copyfile(folder / name, copy)  # it may grow while it is hashed
            digest = _hash_of(copy)
            keep(copy, name, f"{name}.{digest[:16]}", digest)
    for name in NEVER_CHANGE:
        if (source := folder / name).exists():
            keep(source, name, name)
    oldest = _keep_the_rest(folder, step, written | {name for _, name in bodies}, keep)
    if not (folder / "bodies.url").exists():
        kept_names = {kept.path for kept in files}
        if lacking := [name for at, name in bodies if at >= oldest and f"updates/{name}" not in kept_names]:
            raise Gone(f"updates/{lacking[0]}")
    listed = Listed(run, step, tuple(files), head)
    store.write_list(listed)
    for name in there.keys() - {kept.name for kept in files}:
        store.remove(name)
    store.remove_unlisted(listed)
    return Done(step, len(files), len(copied), sum(kept.size for kept in copied))


def _keep_the_rest(folder: Path, step: int, bodies: set[str], keep: Callable[[Path, str, str], None]) -> int:
    """Keep snapshots up to a step, these bodies, and blobs. Returns the step of the oldest snapshot. Raises Gone.

    bodies: a body that is sealed after the ledger was copied belongs to no row of the copy."""
    snapshots = sorted(int(path.stem) for path in (folder / "snapshots").glob("*.safetensors") if path.stem.isdigit())
    usable = [at for at in snapshots if at <= step]
    if not usable:
        raise Gone("the last snapshot of the copied ledger")
    paths = [f"snapshots/{at}.safetensors" for at in usable]
    blobs = {path.name for path in (folder / "blobs").glob("*")}
    for part, names in (("blobs", blobs), ("updates", bodies)):
        paths += sorted(f"{part}/{name}" for name in names if NAME.fullmatch(name) and (folder / part / name).exists())
    for path in paths:
        try:
            keep(folder / path, path, path)
        except FileNotFoundError:
            if path.startswith("updates/"):
                continue  # the rows say whether it is needed
            raise Gone(path) from None
    return usable[0]


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database as it is at one moment, while others write. Raises LedgerError."""
    try:
        read = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        with closing(read), closing(sqlite3.connect(target)) as write:
            read.backup(write)
    except sqlite3.Error as error:
        raise LedgerError(f"{source}: cannot be copied: {error}", mend="try again") from None


def _named_by(ledger: Path) -> tuple[int, list[tuple[int, str]]]:
    """The number of rows in a copied ledger, and the step and the body of each."""
    try:
        with closing(sqlite3.connect(ledger)) as db:
            rows = db.execute("SELECT step, body_hash FROM rows ORDER BY step").fetchall()
    except sqlite3.Error as error:
        raise Damaged(f"{ledger.name}: {error}", restore="it") from None
    return len(rows), [(step, bytes(body).hex()) for step, body in rows]


def _head_of(ledger: Path, step: int) -> str:
    """The hash of the row before a step, in hexadecimal; empty without one."""
    try:
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT hash FROM rows WHERE step = ?", (step - 1,)).fetchone()
    except sqlite3.Error as error:
        raise LedgerError(f"{ledger}: cannot be read: {error}", mend="try again") from None
    return bytes(found[0]).hex() if found else ""


def restore(url: str, folder: Path, say: Callable[[str], None] = lambda line: None) -> Listed:
    """Bring the run of a backup back into an empty state directory. Returns what it has. Raises ThinwireError, OSError.

    `contract.json` comes last, so that what an interrupted call has left is no run; a later call goes on."""
    store = Store(url)
    listed = store.listed()
    if listed is None:
        raise ConfigError(f"{url} has no {LIST}, so it is no backup of a run")
    if (folder / CONTRACT).exists():
        raise ConfigError(f"{folder} has a run already; give --state-dir an empty folder")
    restoring = folder / "restoring"
    if restoring.exists() and restoring.read_text(encoding="utf-8") not in ("", listed.run):
        raise ConfigError(
            f"{folder} has what an interrupted restore of another backup has left; give --state-dir an empty folder"
        )
    if not restoring.exists():
        check_begun_or_empty(folder)
        if (folder / LEDGER).exists():
            raise ConfigError(f"{folder} has what is left of a run; give --state-dir an empty folder")
    folder.mkdir(0o700, parents=True, exist_ok=True)
    replace_synced(restoring, listed.run.encode())
    for number, kept in enumerate(_last(listed.files), start=1):
        target = folder / kept.path
        target.parent.mkdir(0o700, exist_ok=True)
        if not target.exists() or target.stat().st_size != kept.size or kept.hash:
            store.get(kept, target)
        if number % 1000 == 0:
            say(f"{number:,} of {len(listed.files):,} files")
    restoring.unlink()
    return listed


def _last(files: tuple[Kept, ...]) -> Iterator[Kept]:
    """The files in the order in which they are brought back."""
    yield from (kept for kept in files if kept.path != CONTRACT)
    yield from (kept for kept in files if kept.path == CONTRACT)


def _run_of(folder: Path) -> str:
    """Two runs may have equal contracts, but not one key."""
    return hashlib.sha256((folder / CONTRACT).read_bytes() + (folder / KEY_FILE).read_bytes()).hexdigest()


def _hash_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
