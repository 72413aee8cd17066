"""Damaged run directories, sets of prompts and traces, through the commands that read them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunkbench.bench.store.run_directory import SCHEMA_VERSION
from chunkbench.report.formats import names
from tests.torture.fuzz import CHECKS, Ended, command, damage_bytes, damage_json, dumped
from tests.torture.trials import Harm, Part, Trial

RECORDED = Path(__file__).parents[2] / "results" / "recorded"
LINES = 24
"""A run is cut to its first cases: what is tried is how they are read."""
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
def trials() -> Iterator[Harm]:
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
    lines = (source / "cases.jsonl").read_bytes().splitlines()[:LINES]
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
    tried = [checked(chance.choice([form for form in spoken if form != "html"]), "report", run)]
    suite = chance.choice(names("documents", "data", "suite"))
    pair = chance.sample([run, whole], 2)
    tried += [checked(suite, "compare", *pair)]
    tried += [checked(suite, "compare", *pair, *chance.choice((["--cross-machine"], ["--metric", "kv_bytes"])))]
    tried += [checked(chance.choice(names("documents", "data")), "compare", *pair, "--between", "machines")]
    tried += [checked(chance.choice(names("documents", "records", "data")), "claims", run)]
    tried += [checked(chance.choice(names("documents", "records", "data")), "history", run, whole)]
    if trial.number % 8 == 7:  # figures are slow
        tried.append(checked("table", "report", run))
        check_files(run)
        tried.append(checked("table", "history", run, whole, "--out", trial.folder / "history"))
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
        checked(form, "traces", path, "--experiment", made),
        checked(form, "traces", path, "--trees", trial.folder / "made.json"),
        checked(chance.choice(names("documents", "records", "data")), "prompts", path, "--experiment", made),
        checked("table", "prompts", path, "--trace", trial.folder / "made.jsonl"),
    ]
    for ended in tried:
        if ended.code == 2:
            place = re.escape(str(path)) + (r"(:\d+|\[\d+\]|: )" if ending != ".txt" else "")
            assert re.search(place, ended.stderr) or "made" in ended.stderr, f"no file and line: {ended.stderr}"
    for name in ("made.yaml", "made.json", "made.jsonl"):
        assert not (trial.folder / name).exists() or (trial.folder / name).stat().st_size, f"{name} is empty"
    return len(tried)


def checked(form: str, *words: str | Path) -> Ended:
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


PART = Part(
    "fuzz files",
    "damaged run directories, traces and prompts",
    "exit codes 0 to 4, a message with the place, no traceback, nothing unescaped, 1 GB more and 10 s of a CPU at most",
    trials,
)
