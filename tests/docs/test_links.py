"""The Markdown pages: every relative link and anchor resolves, and every path that a page names exists."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in ("docs", "tests") for page in (ROOT / folder).rglob("*.md"))])
HISTORY = {"CHANGELOG.md", "log"}
"""Pages and folders that name files as they were called at the time."""
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)|(?:src|href)=\"(?P<html>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"\.?[\w-]+(/[\w.*-]+)*/?")
FOLDERS = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name not in ("runs", "build"))


def links(text: str) -> list[str]:
    found = [match["target"] or match["html"] for match in LINK.finditer(FENCE.sub("", text))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The ids that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["text"]).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken(page: Path, text: str) -> list[str]:
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        there = other == page or (other.exists() and other.is_relative_to(ROOT))
        if not there or (anchor and anchor not in anchors(text if other == page else other.read_text())):
            found.append(target)
    return found


def missing(text: str) -> list[str]:
    """Code spans that look like a path of the repository and are none."""
    spans = [span for span in CODE.findall(FENCE.sub("", text)) if PATH.fullmatch(span) and span.startswith(FOLDERS)]
    return [span for span in spans if not any(ROOT.glob(span.rstrip("/")))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if not HISTORY & set(page.parts)], ids=name_of)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_the_drawing_of_the_architecture_names_files_that_exist() -> None:
    """Each column of the drawing stands under the folder that its first line names."""
    (drawing,) = re.findall(
        r"^```\n(.*?)^```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL | re.MULTILINE
    )
    first, *lines = drawing.splitlines()
    roots = first.split()
    column = first.index(roots[1])
    named = 0
    for root, cells in zip(roots, zip(*((line[:column], line[column:]) for line in lines), strict=True), strict=True):
        folder = ""
        for cell in cells:
            word = next(iter(cell.split()), "")
            indented = cell.startswith("   ")
            if word.endswith("/"):
                folder = word
            elif word.endswith(".py"):
                path = ROOT / root / (folder + word if indented else word)
                assert path.is_file(), path
                named += 1
    assert named >= 10


@pytest.mark.parametrize(
    "text", ["[a](none.md)", "[a](README.md#no-such-heading)", '<img src="none.png">', "[a](/etc)"]
)
def test_a_broken_link_is_found(text: str) -> None:
    assert len(broken(ROOT / "page.md", text)) == 1


def test_a_good_link_and_a_heading_with_a_link_are_accepted() -> None:
    text = "# The `serve` command, and [more](README.md)\n[a](#the-serve-command-and-more) [b](docs/wire.md#calls)"
    assert broken(ROOT / "page.md", text) == []


def test_a_path_that_is_none_is_found() -> None:
    assert missing("`docs/none.md` and `docs/README.md`, `tests/` and `runs/x`") == ["docs/none.md"]


def sorted_names(floors: Iterable[str]) -> list[str]:
    """The names of layers, lowest first; those on one floor by the alphabet."""
    found = [sorted(re.findall(r"\.(\w+)\b(?!\.)", floor)) for floor in floors]
    return [name for floor in found for name in floor]


def test_the_page_names_the_layers_that_import_linter_holds() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {contract["name"]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in (
        *("proto/thinwire_proto", "coordinator/thinwire_coordinator", "node/thinwire_node"),
        "planner/thinwire_planner",
    ):
        (cell,) = re.findall(rf"^\| `{package}` \|.*\|([^|]*)\|$", page, re.MULTILINE)
        floors = reversed(layers[f"{package.partition('/')[0]}: the floors"])
        names = sorted_names(floors)
        folders = [name for name in names if (ROOT / package / name).is_dir()]
        assert CODE.findall(cell) == folders
