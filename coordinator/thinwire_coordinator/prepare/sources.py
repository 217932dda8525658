"""Finds the files of a source: a folder, a file, a glob, or any of these at an address that fsspec can open."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import cache
from glob import iglob
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic_core import from_json

from thinwire_coordinator.prepare.problems import SourceFailed
from thinwire_proto.data.json_tokenizer import TOKENIZER_FILE
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE
from thinwire_proto.errors import ConfigError

NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(?P<url>.+)", re.DOTALL)
HUB = "hf://datasets/"
HTTP = ("http://", "https://")
NOT_THERE = "there is no such file or folder"
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "data", "https": "data", "hf": "hub"}
"""The extra of thinwire that installs the fsspec backend of a protocol."""
SOURCES_MAX = 1024
"""As in `Manifest`."""
SPLITS_FILE, STATE_FILE, INFO_FILE = "dataset_dict.json", "state.json", "dataset_info.json"
"""Descriptions in a folder that the library `datasets` saved: of a set of splits, and of one data set."""
METADATA_BYTES_MAX = 1 << 20
LISTING_STALLS = 5
"""Listing a source may take so many times the time for which a source may be silent."""
WORK_FOLDER = "unfinished"
"""Folder of an interrupted run, below the output folder."""
CLAIM_FILE = "prepare.lock"
"""Locked while `prepare` works. It stays after an interruption, so it tells our unfinished work from foreign files."""
MADE = frozenset({MANIFEST_FILE, BLOBS_FOLDER, WORK_FOLDER, CLAIM_FILE, TOKENIZER_FILE})
"""What `prepare` writes into its folder. Nothing of it is taken for a text."""


@dataclass(frozen=True)
class NamedSource:
    """A source as the organizer named it. urls: where its documents are."""

    name: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    name: as messages show it. path: in `system`, an fsspec file system. size: in bytes; None if the server does not
    say. version: changes when the file changes.
    """

    name: str
    path: str
    system: Any
    size: int | None
    version: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.system, LocalFileSystem)

    def open(self, as_stored: bool = False) -> IO[bytes]:
        """The file's bytes. as_stored: a web server may send them compressed (`Content-Encoding`); leave them so."""
        system = _without_decompression(self.system) if as_stored and self.path.startswith(HTTP) else self.system
        opened: IO[bytes] = system.open(self.path, "rb")
        return opened


def parse_sources(texts: Sequence[str]) -> tuple[NamedSource, ...]:
    """Read `[NAME=]URL` of each source. URLs with the same name are one source.

    A source without a name is called after its file or folder. Several files of one folder, which a shell makes of
    `folder/*.txt`, are one source called after the folder. Raises ConfigError if there are more than SOURCES_MAX.
    """
    named = [_named(text) for text in texts]
    parents = [_parent(url) for name, url in named if not name and _is_local_file(url)]
    urls: dict[str, list[str]] = {}
    for name, url in named:
        several = not name and _is_local_file(url) and parents.count(_parent(url)) > 1
        urls.setdefault(name or _name_of(_parent(url) if several else url), []).append(url)
    if len(urls) > SOURCES_MAX:
        raise ConfigError(
            f"{len(urls):,} sources are more than {SOURCES_MAX:,}; give several of them one name, as in NAME=SOURCE, "
            "or give the folder that they are in"
        )
    return tuple(NamedSource(name, tuple(found)) for name, found in urls.items())


def _named(text: str) -> tuple[str, str]:
    """A name, or "", and an address. What exists is a path, such as the folder `language=en`."""
    found = NAME.fullmatch(text)
    if found is None or os.path.exists(text):  # noqa: PTH110 - Path.exists raises if a name is too long
        return "", text
    if "*" in text and next(iglob(text, recursive=True), None) is not None:  # noqa: PTH207 - Path.glob refuses some
        return "", text
    return found["name"], found["url"]


def _is_local(url: str) -> bool:
    return "://" not in url


def _is_local_file(url: str) -> bool:
    return _is_local(url) and not Path(url).is_dir()


def _without_query(url: str) -> str:
    """The path part of a web address, with its percent signs decoded. Elsewhere ? and # belong to the names of
    files."""
    return unquote(re.split("[?#]", url, maxsplit=1)[0]) if url.startswith(HTTP) else url


def _parent(url: str) -> str:
    return str(Path(url).resolve().parent)


def _name_of(url: str) -> str:
    address = _without_query(url).rstrip("/")
    if url.startswith(HUB):
        address = address.removeprefix(HUB).partition(":")[0].partition("@")[0]
    elif _is_local(url) and "*" not in url:
        address = Path(url).resolve().as_posix()
    parts = [part for part in PurePosixPath(address).parts if "*" not in part]
    last = parts[-1] if parts else ""
    if not (_is_local(url) and Path(address).is_dir()):
        last = last.partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-.")
    return name[:64] or "data"


def find_files(url: str, stall_s: float, out: Path | None = None) -> list[SourceFile]:
    """The files of a source, ordered by path. Hidden files and folders are left out, unless the URL names them. So is
    everything below the local folder `out`: the source may be a folder that prepared data are written into.

    Raises ConfigError if there are none, and SourceFailed if the address does not answer. A long list may take several
    times `stall_s`, because the list arrives as a whole.
    """
    found: Future[list[SourceFile]] = Future()

    def find() -> None:
        try:
            found.set_result(_found(url, out))
        except Exception as error:  # noqa: BLE001 - the boundary of the thread; the caller gets the error
            found.set_exception(error)

    threading.Thread(target=find, name="source finder", daemon=True).start()
    try:
        return found.result(LISTING_STALLS * stall_s)
    except ConfigError:
        raise
    except FutureTimeout:
        raise SourceFailed(f"{url}: does not answer; check the address and the connection") from None
    except FileNotFoundError:
        raise ConfigError(f"{url}: {NOT_THERE}") from None
    except ImportError as error:
        extra = EXTRAS.get(url.partition("://")[0])
        install = f"pip install 'thinwire[{extra}]'" if extra else str(error)
        raise ConfigError(f"{url}: this address needs a library that is not installed: {install}") from None
    except Exception as error:  # noqa: BLE001 - each file system has errors of its own
        raise SourceFailed(f"{url}: cannot be listed: {error!r}") from None


def _found(url: str, out: Path | None) -> list[SourceFile]:
    system, path = fsspec.core.url_to_fs(url)
    if "*" in _without_query(path):
        infos = _readable(system, system.glob(path, detail=True))
        root = path.partition("*")[0].rpartition("/")[0]
    elif not _is_one_page(url) and system.isdir(path):
        infos, root = _readable(system, system.find(path, detail=True)), path
    elif system.exists(path):
        infos, root = {path: system.info(path)}, _without_query(path).rpartition("/")[0]
    else:
        raise _why_not_there(system, path, url)
    files = [_file(system, found, infos[found], root) for found in sorted(infos)]
    files = [file for file in files if not _is_hidden(file.name)]
    outside = files if out is None else _outside(files, out)
    if files and not outside:
        raise ConfigError(f"{url}: all of its files are below --out, {out}; give another --out")
    if not outside:
        raise ConfigError(f"{url}: there are no files")
    if not (texts := _not_prepared(outside)):
        raise ConfigError(f"{url}: holds prepared data, and no other files; give the folder of their texts")
    return _without_metadata(url, texts)


def _why_not_there(system: Any, path: str, url: str) -> ConfigError:
    """The error of an address that has no file. Over HTTP fsspec takes a server that cannot be reached for one without
    the file; the reason that it had is the cause of the error of `info`."""
    if url.startswith(HTTP):
        try:
            system.info(path)
        except FileNotFoundError as error:
            if (reason := error.__cause__) is not None and not hasattr(reason, "status"):  # no server has answered
                hint = "check the address and the connection, and start the command again"
                return SourceFailed(f"{url}: cannot be reached: {str(reason) or type(reason).__name__}; {hint}")
    return ConfigError(f"{url}: {NOT_THERE}")


def _readable(system: Any, infos: dict[str, Any]) -> dict[str, Any]:
    """Files, links to files, and broken links, which are reported when they are opened. Folders and links to them are
    left out, and so are pipes and devices, because reading one may wait forever."""
    if isinstance(system, LocalFileSystem):
        return {name: info for name, info in infos.items() if Path(name).is_file() or not Path(name).exists()}
    return {name: info for name, info in infos.items() if info["type"] != "directory"}


def _outside(files: list[SourceFile], folder: Path) -> list[SourceFile]:
    top, resolved = folder.resolve(), cache(Path.resolve)
    return [file for file in files if not (file.is_local and resolved(Path(file.path).parent).is_relative_to(top))]


def _not_prepared(files: list[SourceFile]) -> list[SourceFile]:
    """The files that an earlier `prepare` has not made. Otherwise its held-out text would be trained on."""
    is_made_in = cache(_holds_prepared_data)

    def is_made(file: SourceFile) -> bool:
        folders, parts = Path(file.path).parents, reversed(PurePosixPath(file.name).parts)
        return any(part in MADE and is_made_in(folders[up]) for up, part in enumerate(parts))

    return [file for file in files if not (file.is_local and is_made(file))]


def _holds_prepared_data(folder: Path) -> bool:
    """Whether a `prepare` has written into a folder, or begun to."""
    whole = (folder / MANIFEST_FILE).is_file() and (folder / BLOBS_FOLDER).is_dir()
    return whole or ((folder / CLAIM_FILE).is_file() and (folder / WORK_FOLDER).is_dir())


def _without_metadata(url: str, files: list[SourceFile]) -> list[SourceFile]:
    """The files without what the library `datasets` keeps beside those of its data sets: descriptions, and results of
    `map` and `filter`. Raises ConfigError if a part of a data set is missing, or if it has several splits."""
    folders: dict[str, dict[str, SourceFile]] = {}
    for file in files:
        folder, _, name = file.name.rpartition("/")
        folders.setdefault(folder, {})[name] = file
    for folder, named in folders.items():
        where = f"{url.rstrip('/')}/{folder}".rstrip("/")
        splits, parts = _listed(named.get(SPLITS_FILE), "splits"), _listed(named.get(STATE_FILE), "_data_files")
        if splits is not None:
            named.pop(SPLITS_FILE)
            if len(splits) > 1:
                raise ConfigError(
                    f"{where}: holds the splits {', '.join(map(str, splits))}; give one: {where}/{splits[0]}"
                )
        names = {str(part.get("filename")) for part in parts or () if isinstance(part, dict)}
        if names:
            if missing := sorted(names - named.keys()):
                raise ConfigError(
                    f"{where}: its {STATE_FILE} lists {missing[0]}, which is missing; copy the whole folder"
                )
            folders[folder] = {name: named[name] for name in names}
        elif any(name.endswith(".arrow") for name in named):
            named.pop(INFO_FILE, None)
    kept = {id(file) for named in folders.values() for file in named.values()}
    return [file for file in files if id(file) in kept]


def _listed(file: SourceFile | None, key: str) -> list[Any] | None:
    """The list under a key of a small JSON file; None if it has none."""
    if file is None:
        return None
    try:
        with file.open() as content:
            found: Any = from_json(content.read(METADATA_BYTES_MAX))
    except (ValueError, PermissionError, FileNotFoundError):  # if it cannot be opened, its reader says so
        return None
    listed = found.get(key) if isinstance(found, dict) else None
    return listed if isinstance(listed, list) and listed else None


def _is_one_page(url: str) -> bool:
    """Over HTTP any page with links looks like a folder; an address is one if it ends in a slash."""
    return url.startswith(HTTP) and not url.endswith("/")


def _without_decompression(system: Any) -> Any:
    """The same file system over HTTP, which hands on what servers send, for as long as they send. The HTTP library
    takes a truncated compressed answer for a whole one, refuses padding, and ends each answer after five minutes."""
    import aiohttp  # noqa: PLC0415 - an extra, which this file system needs

    options = system.storage_options
    client = {"timeout": aiohttp.ClientTimeout(total=None)} | options.get("client_kwargs", {})
    headers = options.get("headers", {}) | {"Accept-Encoding": "identity"}
    return type(system)(**options | {"headers": headers, "client_kwargs": client | {"auto_decompress": False}})


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _file(system: Any, path: str, info: dict[str, Any], root: str) -> SourceFile:
    size = info.get("size")
    marks = [str(info.get(key)) for key in ("size", "mtime", "ETag", "etag", "LastModified", "last_commit")]
    version = hashlib.sha256(json.dumps([path, *marks]).encode()).hexdigest()[:16]
    address = _without_query(path)
    name = address.removeprefix(_without_query(root)).lstrip("/") or address
    return SourceFile(name, path, system, size if isinstance(size, int) else None, version)
