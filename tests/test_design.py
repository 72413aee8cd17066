"""The map in `docs/design.md` is the code's: the rooms, who imports whom, and the files that recipes name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def table(title: str) -> list[list[str]]:
    """Rows of the table in a section, without its heading."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def room(module: str) -> str:
    """`cli` for `chunkbench.cli.main`; the package's own `__init__` belongs to no room."""
    return module.split(".")[1] if "." in module else ""


def test_rooms_import_what_the_table_says() -> None:
    graph = grimp.build_graph("chunkbench", exclude_type_checking_imports=True)
    real: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        real[room(module)] |= {room(other) for other in graph.find_modules_directly_imported_by(module)} - {
            room(module)
        }
    said = {row[0].strip("`"): set(re.findall(r"`([a-z_]+)`", row[1])) for row in table("Who imports whom")}
    real.pop("")
    assert said == {name: others for name, others in real.items() if others and name != "__main__"}


def test_every_folder_has_its_line() -> None:
    named = " ".join(row[0] for row in table("Where things are"))
    folders = {path.name for path in (ROOT / "chunkbench").iterdir() if path.is_dir() and path.name != "__pycache__"}
    for name in sorted(folders - {"results"}):
        assert re.search(rf"[`/]{name}/", named), name


def test_the_files_of_recipes_exist() -> None:
    for name in re.findall(
        r"`((?:chunkbench|baselines|tests|docs|results)/[a-z0-9_/]+\.(?:py|md|csv)|pyproject\.toml)`",
        section("Recipes"),
    ):
        assert (ROOT / name).exists(), name
