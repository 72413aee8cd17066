"""Loading: files that are not experiments, positions of problems, and only `ExperimentError` for any content."""

from __future__ import annotations

import ast
import itertools
import os
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


def test_a_missing_file_gets_a_hint_at_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(GOOD)
    assert refusal(tmp_path / "swep.yaml") == " no such file; did you mean sweep.yaml?"
    assert "table3" in refusal(tmp_path / "elsewhere" / "x.yaml")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == " is a directory, not an experiment"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text(GOOD)
    file.chmod(0)
    assert "Permission denied" in refusal(file)


def test_a_bundled_experiment_is_found_by_name() -> None:
    assert load_experiment("table3").name == "table3"
    assert refusal("tabel3").endswith("did you mean table3?")
    listed = refusal("zzz")
    assert all(name in listed for name in bundled_experiments())


def test_a_null_byte_in_the_path_is_refused() -> None:
    assert refusal("a\0.yaml").endswith(f"the bundled experiments are {', '.join(bundled_experiments())}")


def test_binary_files_and_other_encodings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    assert refusal(file, b"title: caf\xe9\n") == "1:11: not text in UTF-8; is this a binary file?"
    assert refusal(file, b"a: 1\n\x7fELF\0\0") == "2:5: not text in UTF-8; is this a binary file?"
    assert refusal(file, GOOD.encode("utf-16")) == "1:1: the file is in UTF-16; save it as UTF-8"
    assert refusal(file, "title: \x1b[31m\n") == r"1:8: the character '\x1b' is not allowed in YAML"
    assert "larger than" in refusal(file, b"#" * 300_000)


def test_byte_order_mark_and_dos_line_ends_do_not_shift_columns(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert len(load_experiment(file).points("cpu", "float32")) == 1
    bad = GOOD.replace("n_s: 0", "n_s: 65").replace("\n", "\r\n").encode()
    message = refusal(file, b"\xef\xbb\xbf" + bad)
    assert message == "2:24: n_s: 65 is larger than n_p = 64: shared tokens are part of the prompt"


def test_wide_characters_count_as_one_column(tmp_path: Path) -> None:
    assert refusal(
        tmp_path / "x.yaml", "{title: 'é漢字', sed: 1, " + GOOD.replace("\n", ", ", 1).rstrip() + "}"
    ).startswith("1:16: sed: unknown key; did you mean seed?")


def test_a_problem_is_one_line_for_any_key(tmp_path: Path) -> None:
    message = refusal(tmp_path / "x.yaml", GOOD + '"evil\\n\\e[31m": 1\n')
    assert message.startswith(r"3:1: evil\n\x1b[31m: unknown key; ")
    assert len(message.splitlines()) == 1


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x.yaml", "[" * 5000) == "1:146: nested more than 144 levels deep"


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
    experiment = load_experiment(file)
    assert experiment.title == "no"
    assert experiment.precision == 0.01
    assert experiment.seed == 16
    assert experiment.budget_s == 5400
    assert experiment.confidence == 0.99


def test_source_and_path_stay_out_of_the_dump(tmp_path: Path) -> None:
    file = tmp_path / "My Sweep.yaml"
    file.write_text(GOOD)
    experiment = load_experiment(file)
    assert (experiment.name, experiment.source, experiment.path) == ("my-sweep", GOOD, str(file))
    assert not {"source", "path"} & experiment.model_dump().keys()


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    assert caught.value.problems


WORDS = [
    "n_p",
    "n_s",
    "tree",
    "sweep",
    "defaults",
    "exclude",
    "expect",
    "implementations",
    "tolerance",
    "budget",
    "where",
    "low",
    "chunk_attn",
    "metric",
]
MARKS = [
    ": ",
    ":",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "64",
    "0.5 n_p",
    "-1",
    "null",
    "5m",
    "'",
    '"',
    "&a ",
    "*a",
    "!x ",
    "<<",
    ">",
    "? ",
    "%YAML 9",
    "...",
    "\\",
    "#",
    "1e400",
    "no",
]
FRAGMENTS = st.sampled_from([*WORDS, *MARKS, "|", "\n", "\n  ", "\n    ", "---\n"])


@settings(max_examples=120, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25), st.booleans())
def test_anything_like_yaml_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], after_good: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "like.yaml"
    file.write_text((GOOD if after_good else "") + "".join(parts))
    try:
        load_experiment(file)
    except ExperimentError as error:
        lines = file.read_text().count("\n") + 1
        assert all(1 <= problem.line <= lines + 1 for problem in error.problems)  # noqa: PT017


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["n_p", "strict", "naive"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["n_p", "n_s", "tree", "low", "high", "metric", "bar", "where", "float32"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
KEYS = ("title", "seed", "implementations", "protocols", "modes", "caches", "tolerance", "defaults", "sweep", "exclude")
KEYS += ("expect", "budget", "precision", "confidence", "baseline", "paper", "max_rounds", "kind", "name", "dtype")


@settings(max_examples=120, deadline=None)
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
