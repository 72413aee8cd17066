"""Damaged files through the commands that read them: run directories, prompts, traces; hostile experiments, too."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from chunkbench import workloads
from chunkbench.bench import workload
from chunkbench.bench.store.run_directory import SCHEMA_VERSION
from chunkbench.report.formats import names
from tests.command import Done
from tests.torture.drawn import schemas, value
from tests.torture.fuzz import (
    CHECKS,
    MARKUP,
    VALUES,
    check_json,
    check_text,
    command,
    damage_bytes,
    damage_json,
    dumped,
)
from tests.torture.runs import EXPERIMENTS as TINY
from tests.torture.trials import Harm, Trial

RECORDED = Path(__file__).parents[2] / "results" / "recorded"
LINES = 24
"""A run is cut to some of its cases: what is tried is how they are read."""
VERSIONS = (0, -1, SCHEMA_VERSION + 1, 999, 2**70, "10", 3.5, True, None, [10])

TRACES = {
    "mooncake": [
        {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 2353]},
        {"timestamp": 30535, "input_length": 600, "output_length": 26, "hash_ids": [46, 2354]},
    ],
    "turns": [
        {"session_id": "a", "timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 300, "input_length": 30, "output_length": 9, "hash_ids": [3]},
    ],
    "bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "output_length": 3, "type": "text",
         "turn": 1, "hash_ids": [1, 2]},
    ],
    "own": [{"prompt": [1, 2, 3], "max_tokens": 4, "due": 1.5}, {"prompt": [1, 2], "max_tokens": 4, "due": 2}],
}  # fmt: skip
TABLES = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.98,396,109\n",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
)
PROMPTS = [
    {"token_ids": [1, 2, 3, 4], "group": "a"},
    {"token_ids": [1, 2, 9], "group": "a"},
    {"token_ids": [7], "group": "b", "messages": [{"role": "user", "content": "x"}]},
]


@contextmanager
def damaged_files() -> Iterator[Harm]:
    """Each trial damages a run, a set of prompts or a trace."""
    runs = sorted(path.parent for path in RECORDED.rglob("manifest.json"))

    def harm(trial: Trial) -> int:
        if trial.chance.random() < 0.25:
            return damaged_text(trial)
        return damaged_run(trial.chance.choice(runs), trial)

    yield harm


def damaged_run(source: Path, trial: Trial) -> int:
    """Copy a run, with damage in the manifest, in a case, or in both, and let the commands read it."""
    chance, run, whole = trial.chance, trial.folder / "run", trial.folder / "whole"
    manifest = (source / "manifest.json").read_bytes()
    lines = (source / "cases.jsonl").read_bytes().splitlines()
    first = chance.randrange(max(1, len(lines) - LINES + 1))
    lines = lines[first : first + LINES]
    write_run(whole, manifest, lines)
    harmed = chance.choice(("manifest", "case", "case", "both", "version"))
    row = chance.randrange(len(lines))
    if harmed == "version":
        values = json.loads(manifest)
        values["schema_version"] = chance.choice(VERSIONS)
        manifest = dumped(values).encode()
    if harmed in ("manifest", "both"):
        manifest = damaged_document(manifest, chance)
    if harmed in ("case", "both"):
        lines[row] = damaged_document(lines[row], chance)
    write_run(run, manifest, lines)

    spoken = names("documents", "records", "data", "book")
    tried = [read_by(chance.choice([form for form in spoken if form != "html"]), "report", run)]
    suite = chance.choice(names("documents", "data", "suite"))
    pair = chance.sample([run, whole], 2)
    tried += [read_by(suite, "compare", *pair)]
    tried += [read_by(suite, "compare", *pair, *chance.choice((["--cross-machine"], ["--metric", "kv_bytes"])))]
    tried += [read_by(chance.choice(names("documents", "data")), "compare", *pair, "--between", "machines")]
    tried += [read_by(chance.choice(names("documents", "records", "data")), "claims", run)]
    tried += [read_by(chance.choice(names("documents", "records", "data")), "history", run, whole)]
    if trial.number % 8 == 7:  # figures are slow
        tried.append(read_by("table", "report", run))
        check_files(run)
        tried.append(read_by("table", "history", run, whole, "--out", trial.folder / "history"))
        check_files(trial.folder / "history")
    for ended in tried:
        if ended.code == 2 and re.search("damaged|cannot be read|schema version", ended.stderr):
            place = f"{run}/(cases.jsonl:{row + 1}|manifest.json): "
            assert re.search(place, ended.stderr), f"no file and line: {ended.stderr}"
    if harmed == "version":
        assert tried[0].code == 2, f"schema version {values['schema_version']!r} was read"
    return len(tried)


def write_run(path: Path, manifest: bytes, lines: list[bytes]) -> None:
    path.mkdir()
    (path / "manifest.json").write_bytes(manifest)
    (path / "cases.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def damaged_document(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return damage_bytes(data, chance)
    value = json.loads(data)
    damage_json(value, chance)
    return dumped(value).encode()


def damaged_text(trial: Trial) -> int:
    """Write a damaged trace or set of prompts, and let the commands read it."""
    chance = trial.chance
    kind = chance.choice(("table", "prompts", *TRACES))
    if kind == "table":
        data = chance.choice(TABLES).encode()
        for _ in range(chance.choice((1, 2, 3))):
            data = damage_bytes(data, chance)
    else:
        lines = [dumped(line).encode() for line in (PROMPTS if kind == "prompts" else TRACES[kind])]
        row = chance.randrange(len(lines))
        lines[row] = damaged_document(lines[row], chance)
        data = b"\n".join(lines) + b"\n"
        if kind == "prompts" and chance.random() < 0.3:
            data = b"[" + data.rstrip().replace(b"\n", b",") + b"]"
    ending = ".json" if data.startswith(b"[") else chance.choice((".jsonl", ".jsonl", ".csv", ".txt"))
    path = trial.folder / f"damaged{ending}"
    path.write_bytes(data)

    form = chance.choice(names("documents", "data"))
    made = trial.folder / "made.yaml"
    tried = [
        read_by(form, "traces", path, "--experiment", made),
        read_by(form, "traces", path, "--trees", trial.folder / "made.json"),
        read_by(chance.choice(names("documents", "records", "data")), "prompts", path, "--experiment", made),
        read_by("table", "prompts", path, "--trace", trial.folder / "made.jsonl"),
    ]
    for ended in tried:
        if ended.code == 2:
            place = re.escape(str(path)) + (r"(:\d+|\[\d+\]|: )" if ending != ".txt" else "")
            assert re.search(place, ended.stderr) or "made" in ended.stderr, f"no file and line: {ended.stderr}"
    for name in ("made.yaml", "made.json", "made.jsonl"):
        assert not (trial.folder / name).exists() or (trial.folder / name).stat().st_size, f"{name} is empty"
    return len(tried)


def read_by(form: str, *words: str | Path) -> Done:
    """The command, and its output in this format. A message says why if it refuses."""
    ended = command(*words, "--format", form) if form != "table" else command(*words)
    if ended.code == 2:
        assert ended.stderr.strip(), f"{words}: no message"
    if ended.stdout:
        CHECKS[form](ended.stdout, f"{' '.join(map(str, words))} --format {form}")
    return ended


def check_files(folder: Path) -> None:
    """The files that a command wrote."""
    for path in sorted(folder.glob("*.*")):
        check = CHECKS.get(path.suffix[1:])
        if check is not None and path.name != "manifest.json":
            check(path.read_text(encoding="utf-8"), str(path))


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WORDS = (
    ".nan", "-.inf", "&a", "*a", "{", "]", ":", "!!x", "!!python/object/apply:os.system [canary]", "<<: *a", "|", "? ",
)  # fmt: skip
DEEP = 10_000


@contextmanager
def odd_experiments() -> Iterator[Harm]:
    """Each trial writes an experiment: damaged ones of ours, tiny ones with odd axes, or hostile ones."""
    sources = sorted(EXPERIMENTS.glob("*.yaml"))

    def harm(trial: Trial) -> int:
        chance, path = trial.chance, trial.folder / "experiment.yaml"
        kind = chance.random()
        if kind < 0.5:
            path.write_bytes(damaged(chance.choice(sources).read_text(), chance))
            refused = False
        elif kind < 0.75:
            path.write_text(odd_axes(chance.choice(list(TINY.values())), chance))
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


def odd_axes(text: str, chance: random.Random) -> str:
    """Axes of the kind with values at the edges of what they take, or with values of other axes."""
    workloads.register()
    made = yaml.safe_load(text)
    kind = made.get("kind", workload.default())
    for name, schema in chance.sample(list(schemas(kind).items()), chance.choice((1, 1, 2, 3))):
        numbers = integers(schema) or [1]
        low, high = numbers[0], numbers[-1]
        values = [low, low - 1, high, high + 1, 0, 17, 257, "1 2 4", "1 2 x", "0", "4 " * 300, "n_p", "2 n_p", None]
        values += [value(chance.choice(list(schemas(kind).values())), chance), {"low": high, "high": low}, VALUES[10]]
        values += [dict.fromkeys(("kv_rank", "rope", "nope", "v"), chance.choice((0, 16, 24, 2**31)))]
        made["defaults"][name] = chance.choice((chance.choice(values), chance.sample(values, 3)))
    return yaml.safe_dump(made)


def integers(schema: Any) -> list[int]:
    """All whole numbers in a schema."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return sorted(number for part in parts for number in ([part] if type(part) is int else integers(part)))


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
