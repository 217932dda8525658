"""Runs a package of a wheel that is unpacked in a folder: `python of_wheel.py FOLDER PACKAGE ARGUMENTS…`."""

from __future__ import annotations

import importlib
import runpy
import sys

if __name__ == "__main__":
    folder, package, *arguments = sys.argv[1:]
    sys.path[0] = folder
    sys.argv = [package, *arguments]
    found = importlib.import_module(package).__file__ or ""
    if not found.startswith(folder):
        sys.exit(f"{package} is imported from {found}, not from the wheel")
    runpy.run_module(package, run_name="__main__", alter_sys=True)
