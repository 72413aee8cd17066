"""Damaged run directories and experiments end in a message, never in a traceback, and never unescaped on a page."""

from __future__ import annotations

import json
import random
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import chunkbench

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results" / "recorded"
RUNS = ("epyc-zen3-2-cores/table1", "epyc-zen3-2-cores/memory", "epyc-zen5-2-cores/table3", "epyc-zen3-2-cores/prompts")
LINES = 24
"""A run is cut to its first cases: what is tried is how they are read."""
BATCH = 20
BATCHES = [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 50))]
SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"'><img src=x onerror=alert(1)>"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5, 1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "chunk_attn", "ok", "x" * 5000, SCRIPT, IMAGE),
    *(
        "\ud800",
        "\x00",
        "\x1b[31m",
        "é\u202e",
        "1e999",
        "../../etc",
        [],
        {},
        [None],
        [[]],
        [1, "a"],
        {"a": 1},
        {"": {}},
    ),
)
EXIT_CODES = {0, 1, 2, 3, 4}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def damage_json(value: Any, chance: random.Random) -> None:
    """Change one to three values somewhere in a JSON document."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        known = list(places(value))
        if not known:
            return
        container, key = chance.choice(known)
        action = chance.random()
        if action < 0.75:
            container[key] = chance.choice(VALUES)
        elif action < 0.9:
            del container[key]
        elif isinstance(container, dict):
            container[chance.choice(("x", SCRIPT, ""))] = chance.choice(VALUES)
        else:
            container.append(chance.choice(VALUES))


def damage_bytes(data: bytes, chance: random.Random) -> bytes:
    """Cut, overwrite, delete or insert bytes."""
    at = chance.randrange(len(data) + 1)
    some = bytes(chance.randrange(256) for _ in range(chance.choice((1, 1, 4))))
    return chance.choice(
        (data[:at], data[:at] + some + data[at:], data[:at] + some + data[at + 1 :], data[:at] + data[at + 3 :])
    )


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def damaged_run(source: Path, target: Path, chance: random.Random) -> None:
    """Copy a run, with damage in the manifest, in a case, or in both."""
    target.mkdir()
    manifest = (source / "manifest.json").read_bytes()
    lines = (source / "cases.jsonl").read_bytes().splitlines()[:LINES]
    if chance.random() < 0.5:
        manifest = damaged_document(manifest, chance)
    if chance.random() < 0.6:
        row = chance.randrange(len(lines))
        lines[row] = damaged_document(lines[row], chance)
    (target / "manifest.json").write_bytes(manifest)
    (target / "cases.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def damaged_document(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return damage_bytes(data, chance)
    value = json.loads(data)
    damage_json(value, chance)
    return dumped(value).encode()


def damaged_experiment(source: Path, target: Path, chance: random.Random) -> None:
    """Copy an experiment with one to three words or lines replaced, deleted or doubled."""
    lines = source.read_text().splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        row = chance.randrange(len(lines))
        words = lines[row].split(" ")
        word = chance.randrange(len(words))
        words[word] = chance.choice(
            ("", *(dumped(value) for value in VALUES), ".nan", "-.inf", "&a", "*a", "{", "]", ":", "!!x")
        )
        lines[row] = chance.choice((" ".join(words), " ".join(words), "", lines[row] + "\n" + lines[row]))
    text = "\n".join(lines) + "\n"
    target.write_bytes(damage_bytes(text.encode(), chance) if chance.random() < 0.15 else text.encode())


def called(arguments: list[str], what: str) -> str:
    """Call the command and return what it printed. It may refuse, in words of its own."""
    try:
        done = chunkbench(*arguments)
    except BaseException:
        pytest.fail(f"chunkbench {' '.join(arguments)} on {what}\n{traceback.format_exc()}")
    assert done.code in EXIT_CODES, (what, arguments)
    return done.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", BATCHES)
def test_damaged_runs(batch: int, tmp_path: Path) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        chance = random.Random(seed)
        source, run = RECORDED / chance.choice(RUNS), tmp_path / str(seed)
        damaged_run(source, run, chance)
        whole = tmp_path / f"whole-{seed}"
        whole.mkdir()
        shutil.copy(source / "manifest.json", whole)
        lines = (source / "cases.jsonl").read_bytes().splitlines(keepends=True)[:LINES]
        (whole / "cases.jsonl").write_bytes(b"".join(lines))

        what = f"seed {seed}: {run}"
        called(["report", str(run), "--format", chance.choice(("table", "markdown", "latex", "csv", "json"))], what)
        called(["compare", *chance.sample([str(run), str(whole)], 2)], what)
        called(["claims", str(run)], what)
        called(["history", str(run), str(whole), "--format", chance.choice(("table", "json"))], what)
        if seed % 4 == 0:
            page = called(["report", str(run), "--format", "html"], what)
            assert SCRIPT not in page, what
            assert "<img src=x" not in page, what


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", BATCHES)
def test_damaged_experiments(batch: int, tmp_path: Path) -> None:
    sources = sorted((ROOT / "experiments").glob("*.yaml"))
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        chance = random.Random(seed)
        path = tmp_path / f"{seed}.yaml"
        damaged_experiment(chance.choice(sources), path, chance)

        what = f"seed {seed}: {path}"
        called(["validate", str(path)], what)
        called(["run", str(path), "--dry-run"], what)
