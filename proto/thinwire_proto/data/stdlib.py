"""The built-in corpus: real text that needs no download, from the Python standard library of this machine.

It consists of the sources of the library's modules and the language's manual (`pydoc_data/topics.py`), as bytes. The
coordinator creates it once for a run. Nodes fetch it from the coordinator, because other Python versions have other
sources.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

from thinwire_proto.data.corpus import Corpus, CorpusFile

SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"})
MANUAL = "pydoc_data/topics.py"
FILE_BYTES_MAX = 1 << 20
HELD_OUT_ONE_IN = 20


def make_corpus(go_on: Callable[[], None] = lambda: None) -> Corpus:
    """Create the corpus. About one file in twenty, chosen by the hash of its name, is held out; the manual never is.

    go_on: called before each file; raises an exception to stop.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]  # installed packages can be many
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            go_on()
            if path.stat().st_size > FILE_BYTES_MAX:
                continue
            name = path.relative_to(root).as_posix()
            held_out = name != MANUAL and hashlib.sha256(name.encode()).digest()[0] % HELD_OUT_ONE_IN == 0
            files.append(CorpusFile(name, path.read_bytes(), held_out))
    return Corpus(files)
