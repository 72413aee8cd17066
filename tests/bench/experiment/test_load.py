"""Loading: files that are not experiments, positions of problems, and only `ExperimentError` for any content."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.bench.experiment import ExperimentError, bundled_experiments, load_experiment

GOOD = "implementations: [naive, chunk_attn]\nsweep: [{n_p: 64, n_s: 0}]\n"


def refusal(path: Path | str, content: bytes | str | None = None) -> str:
    if content is not None:
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    return str(caught.value).removeprefix(f"{path}:")


def test_a_path_that_is_no_experiment_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(GOOD)
    assert refusal(tmp_path / "swep.yaml") == " no such file; did you mean sweep.yaml?"
    assert "table3" in refusal(tmp_path / "elsewhere" / "x.yaml")
    assert refusal(tmp_path) == " is a directory, not an experiment"
    assert load_experiment("table3").name == "table3"
    assert refusal("tabel3").endswith("did you mean table3?")
    assert refusal("a\0.yaml").endswith(f"the bundled experiments are {', '.join(bundled_experiments())}")
    listed = refusal("zzz")
    assert all(name in listed for name in bundled_experiments())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title: caf\xe9\n", "1:11: not text in UTF-8; is this a binary file?"),
        (b"a: 1\n\x7fELF\0\0", "2:5: not text in UTF-8; is this a binary file?"),
        (GOOD.encode("utf-16"), "1:1: the file is in UTF-16; save it as UTF-8"),
        (b"title: \x1b[31m\n", r"1:8: the character '\x1b' is not allowed in YAML"),
        (b"#" * 300_000, " is larger than the limit of 262144 bytes"),
        (b"[" * 5000, "1:146: nested more than 144 levels deep"),
        (
            ("{title: 'é漢字', sed: 1, " + GOOD.replace("\n", ", ", 1) + "}").encode(),
            "1:16: sed: unknown key; did you mean",
        ),
        ((GOOD + '"evil\\n\\e[31m": 1\n').encode(), r"3:1: evil\n\x1b[31m: unknown key; "),
    ],
    ids=["latin 1", "binary", "UTF-16", "escape", "large", "deep", "wide characters", "line break in a key"],
)
def test_content_that_is_no_experiment_is_refused_at_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    told = refusal(tmp_path / "x.yaml", content)
    assert told.startswith(message)
    assert len(told.splitlines()) == 1


def test_byte_order_mark_and_dos_line_ends_do_not_shift_columns(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert len(load_experiment(file).points("cpu", "float32")) == 1
    bad = GOOD.replace("n_s: 0", "n_s: 65").replace("\n", "\r\n").encode()
    message = refusal(file, b"\xef\xbb\xbf" + bad)
    assert message == "2:24: n_s: 65 is larger than n_p = 64: shared tokens are part of the prompt"


def test_aliases_do_not_expand(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrst"
    bomb = "a: &a [x, x]\n"
    bomb += "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in itertools.pairwise(letters))
    message = refusal(tmp_path / "x.yaml", bomb).splitlines()
    assert sum("aliases (*" in line for line in message) == 2 * (len(letters) - 1)
    assert len(message) < 100


def test_quoted_words_are_text_and_numbers_have_units_and_percent(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(GOOD + "title: 'no'\nprecision: 1e-2\nseed: 0x10\nbudget: 1h30m\nconfidence: 99%\n")
    read = load_experiment(file)
    assert (read.title, read.precision, read.seed, read.budget_s, read.confidence) == ("no", 0.01, 16, 5400, 0.99)


def test_source_and_path_stay_out_of_the_dump(tmp_path: Path) -> None:
    file = tmp_path / "My Sweep.yaml"
    file.write_text(GOOD)
    experiment = load_experiment(file)
    assert (experiment.name, experiment.source, experiment.path) == ("my-sweep", GOOD, str(file))
    assert not {"source", "path"} & experiment.model_dump().keys()


WORDS = [
    "n_p", "n_s", "tree", "sweep", "defaults", "exclude", "expect", "implementations", "tolerance", "budget", "where",
    "low", "chunk_attn", "metric",
]  # fmt: skip
MARKS = [
    ": ", ":", "- ", "[", "]", "{", "}", ", ", "64", "0.5 n_p", "-1", "null", "5m", "'", '"', "&a ", "*a", "!x ", "<<",
    ">", "? ", "%YAML 9", "...", "\\", "#", "1e400", "no",
]  # fmt: skip
FRAGMENTS = st.sampled_from([*WORDS, *MARKS, "|", "\n", "\n  ", "\n    ", "---\n"])


@settings(max_examples=160)
@given(st.lists(FRAGMENTS, max_size=25) | st.lists(st.text(max_size=9)), st.booleans())
def test_anything_like_yaml_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], after_good: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "like.yaml"
    file.write_bytes(((GOOD if after_good else "") + "".join(parts)).encode("utf-8", "surrogatepass"))
    try:
        load_experiment(file)
    except ExperimentError as error:
        lines = file.read_bytes().count(b"\n") + 1
        assert all(1 <= problem.line <= lines + 1 for problem in error.problems)  # noqa: PT017


ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("title", "seed", "implementations", "protocols", "modes", "caches", "tolerance", "defaults", "sweep", "exclude")
KEYS += ("expect", "budget", "precision", "confidence", "baseline", "paper", "max_rounds", "kind", "name", "dtype")


@settings(max_examples=120)
@given(st.sampled_from(KEYS), VALUES)
def test_any_value_under_any_key_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    import yaml

    tree = {"implementations": ["naive", "chunk_attn"], "sweep": [{"n_p": 64, "n_s": 0}], key: value}
    file = tmp_path_factory.getbasetemp() / "value.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=False))
    try:
        load_experiment(file)
    except ExperimentError as error:
        assert error.problems  # noqa: PT017


class Problem(NamedTuple):
    """A place of a file, the text there, and the message."""

    line: int
    column: int
    text: str
    """Checks that line and column are right."""
    message: str


def problem(entry: str) -> Problem:
    place, text, message = entry.split(" | ")
    line, column = place.split(":")
    return Problem(int(line), int(column), ast.literal_eval(text), message)


def bad_files() -> dict[str, tuple[str, list[Problem]]]:
    """Name -> the file, and its problems in order."""
    sections = Path(__file__).with_name("bad_files.txt").read_text().split("==== ")[1:]
    files = {}
    for section in sections:
        name, content = section.split("\n", 1)
        text, problems = content.split("----\n")
        files[name] = (text, [problem(entry) for entry in problems.splitlines()])
    return files


FILES = bad_files()


@pytest.mark.parametrize("name", FILES)
def test_all_problems_are_reported(name: str, tmp_path: Path) -> None:
    text, problems = FILES[name]
    file = tmp_path / f"{name}.yaml"
    file.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    assert str(caught.value).splitlines() == [f"{file}:{p.line}:{p.column}: {p.message}" for p in problems]
    lines = [*text.split("\n"), ""]
    for p in problems:
        assert lines[p.line - 1][p.column - 1 :].startswith(p.text)
