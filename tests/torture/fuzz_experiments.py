"""Damaged and hostile experiments, through `validate` and `run --dry-run`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.fuzz import MARKUP, VALUES, check_json, check_text, command, damage_bytes, dumped
from tests.torture.trials import Harm, Part, Trial

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WORDS = (
    ".nan",
    "-.inf",
    "&a",
    "*a",
    "{",
    "]",
    ":",
    "!!x",
    "!!python/object/apply:os.system [canary]",
    "<<: *a",
    "|",
    "? ",
)
DEEP = 10_000


@contextmanager
def trials() -> Iterator[Harm]:
    """Each trial writes an experiment: three in four are damaged ones of ours, the others are hostile."""
    sources = sorted(EXPERIMENTS.glob("*.yaml"))

    def harm(trial: Trial) -> int:
        chance, path = trial.chance, trial.folder / "experiment.yaml"
        if chance.random() < 0.75:
            path.write_bytes(damaged(chance.choice(sources).read_text(), chance))
            refused = False
        else:
            path.write_text(chance.choice(HOSTILE)(chance, trial.folder))
            refused = True
        return checked(path, refused)

    yield harm


def checked(path: Path, refused: bool) -> int:
    """Validate and plan an experiment: both accept it, or both refuse it and name the place."""
    valid = command("validate", path)
    check_text(valid.stdout, str(path))
    told = command("validate", path, "--format", "json")
    check_json(told.stdout, str(path))
    planned = command("run", path, "--dry-run")
    check_text(planned.stdout, str(path))
    assert valid.code == told.code, f"{path}: validate ends with {valid.code} and {told.code}"
    assert {valid.code, planned.code} <= {0, 2}, f"{path}: exit codes {valid.code} and {planned.code}"
    assert valid.code == 2 or not refused, f"{path} is accepted: {valid.stdout}"
    for ended in (valid, planned) if valid.code == 2 else ():
        assert ended.code == 2, f"{path}: validate ends with 2, run with {ended.code}"
        assert re.search(rf"{re.escape(str(path))}(:\d+:\d+:|: )", ended.stderr), f"no file and line: {ended.stderr}"
    if planned.code == 2:
        assert planned.stderr.strip(), f"{path}: no message"
    return 3


def damaged(text: str, chance: random.Random) -> bytes:
    """One to three words or lines replaced, deleted or doubled; sometimes bytes too."""
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        row = chance.randrange(len(lines))
        words = lines[row].split(" ")
        word = chance.randrange(len(words))
        words[word] = chance.choice(("", *(dumped(value) for value in VALUES), *WORDS, *MARKUP[:2], *MARKUP[6:9]))
        lines[row] = chance.choice((" ".join(words), " ".join(words), "", lines[row] + "\n" + lines[row]))
    data = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    return damage_bytes(data, chance) if chance.random() < 0.15 else data


def aliases(chance: random.Random, _: Path) -> str:
    """Each line refers to the one before ten times: 10^9 values in 9 lines."""
    names = "abcdefghij"
    lines = [f"{names[0]}: &{names[0]} [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{names[n]}: &{names[n]} [{', '.join([f'*{names[n - 1]}'] * 10)}]" for n in range(1, len(names))]
    return "\n".join([*lines, f"sweep: [{{n_p: *{chance.choice(names)}}}]"]) + "\n"


def sweep(chance: random.Random, _: Path) -> str:
    """More than 10^12 combinations: 24 or 100 values on each of ten axes."""
    axes = ["batch_size", "n_p", "n_s", "n_c", "prompts", "heads", "head_dim", "chunk_size", "block_size", "threads"]
    each = chance.choice((24, 100))
    values = json.dumps([chance.choice((1, 8)) * (n + 1) for n in range(each)])
    lines = ["implementations: [chunk_attn]", "sweep:", "  - batch_size: " + values]
    lines += [f"    {axis}: {values}" for axis in axes[1:]]
    if chance.random() < 0.5:
        lines += ["exclude:", "  - {n_p: 8}"]
    return "\n".join(lines) + "\n"


def nested(chance: random.Random, folder: Path) -> str:
    """A tree 10,000 deep: in the file as a list or block by block, or in a file of its own."""
    tree = "[[1, " * DEEP + "1" + "]]" * DEEP
    where = chance.choice(("inline", "json", "yaml", "blocks", "mappings"))
    if where in ("json", "yaml"):
        (folder / f"tree.{where}").write_text(tree)
        tree = str(folder / f"tree.{where}")
    elif where == "blocks":
        tree = "- " * DEEP + "1"
    elif where == "mappings":
        tree = "{a: " * DEEP + "1" + "}" * DEEP
    if where == "blocks":
        return f"implementations: [chunk_attn]\nsweep:\n  - tree:\n    {tree}\n"
    return f"implementations: [chunk_attn]\nsweep:\n  - {{tree: {tree}, n_c: 4}}\n"


def wide(chance: random.Random, folder: Path) -> str:
    """Too many nodes, sequences or values."""
    choices = ("1x8 999999999x1", "1x999999999", " ".join(f"{2**level}x1" for level in range(30)), "1x8 " * 2000)
    if chance.random() < 0.3:
        path = folder / "tree.json"
        path.write_text("[" + ",".join(["[1,1]"] * 400_000) + "]")
        return f"implementations: [chunk_attn]\nsweep:\n  - {{tree: {path}}}\n"
    return f"implementations: [chunk_attn]\nsweep:\n  - {{tree: '{chance.choice(choices)}'}}\n"


def long(chance: random.Random, _: Path) -> str:
    """A file of a single long token, or of many lines that are wrong."""
    piece = chance.choice(("x", "é", "'", "- ", "a: b\n", "\t", "[", "!", "%", "#\n", "? "))
    return (piece * 2**18)[: chance.choice((2**12, 2**16, 2**18 - 1, 2**18 + 1)) // len(piece.encode())]


HOSTILE: tuple[Callable[[random.Random, Path], str], ...] = (aliases, sweep, nested, wide, long)


PART = Part(
    "fuzz experiments",
    "mutated YAML files, exploding aliases, sweeps of 10^12 points, trees 10,000 deep",
    "exit code 0 or 2, a message with file and line, no traceback, 1 GB more and 10 s of a CPU at most",
    trials,
)
