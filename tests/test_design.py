"""The map in `docs/design.md` is that of the linter: the rooms and their order, and the files that recipes name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    "contract", [contract for contract in CONTRACTS if "layers" in contract], ids=lambda c: c["name"]
)
def test_rooms_stand_in_the_order_of_the_linter(contract: dict[str, list[str]]) -> None:
    (package,) = contract["containers"]
    folder = ROOT / package.replace(".", "/")
    layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    place = {name: number for number, names in enumerate(layers) for name in names}
    tables = re.findall(r"(?:^\|.*\n)+", section("Where things are"), flags=re.MULTILINE)
    tabled = [
        re.findall(r"`([a-z_]+)(?:/|\.py)`", row.split("|")[1])
        for row in tables[package == "chunkbench.bench"].splitlines()
    ]
    rooms = [name for names in tabled for name in names]
    assert rooms == sorted(rooms, key=place.__getitem__)
    named = {*rooms, *re.findall(r"`([a-z_]+)\.py`", section("Where things are")), "experiments", "results"}
    assert set(place) <= named
    assert {path.name for path in folder.iterdir() if (path / "__init__.py").exists()} <= set(place)


def test_the_files_of_recipes_exist() -> None:
    for name in re.findall(
        r"`((?:chunkbench|baselines|tests|docs|results)/[a-z0-9_/]+\.(?:py|md|csv)|pyproject\.toml)`",
        section("Recipes"),
    ):
        assert (ROOT / name).exists(), name
