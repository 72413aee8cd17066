"""The axis `tree`: private lengths, levels as text, files, several trees, and how tables show a forest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.bench.experiment import AttentionPoint, Experiment, ExperimentError, load_experiment
from chunkbench.bench.experiment.findings import Findings
from chunkbench.bench.experiment.tree import has_lengths, lengths_in, resolved, sequences_in, show_forest
from chunkbench.bench.experiment.tree_reader import read_forest

HEAD = "implementations: [chunk_attn, chunk_attn_no_tpp]\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, overrides: dict[str, str] | None = None, head: str = HEAD) -> Experiment[Any]:
    Path("x.yaml").write_text(head + text)
    return load_experiment("x.yaml", overrides or {}, "--set")


def points(text: str, overrides: dict[str, str] | None = None) -> tuple[AttentionPoint, ...]:
    return load(text, overrides).points("cpu", "float32")


def refusal(text: str, overrides: dict[str, str] | None = None, head: str = HEAD) -> list[str]:
    with pytest.raises(ExperimentError) as caught:
        load(text, overrides, head)
    return str(caught.value).splitlines()


def keys(text: str) -> list[str]:
    experiment = load(text)
    return [experiment.cases(point)[0].key for point in experiment.points("cpu", "float32")]


def test_private_lengths_are_those_of_the_sequences_depth_first() -> None:
    (point,) = points("sweep: [{tree: [[512, [40, 60, 5]], [8, [[3, [0]], [1, [2, 9]]]]]}]\n")
    assert (point.n_p, point.n_s, point.batch_size) == ((11, 572), None, 6)
    assert point.prompt_lengths(0) == point.prompt_lengths(1) == [552, 572, 517, 11, 11, 18]
    assert point.unique_prompt_tokens(0) == 512 + 105 + 8 + 3 + 1 + 11
    assert [sum(segment.tokens for segment in path) for path in point.paths(0)] == point.prompt_lengths(0)
    assert type(point).from_json(json.loads(json.dumps(point.as_json()))) == point


def test_such_a_tree_displaces_the_default_n_p() -> None:
    text = """
defaults: {n_p: 64, n_s: 0}
sweep: [{tree: [[8, [1, 2]]]}, {tree: [[8, 2]]}, {tree: 1x8 2x5}, {}]
"""
    assert [point.n_p for point in points(text)] == [(9, 10), 64, 13, 64]


FOLLOWS = (
    "n_p: follows from tree, which lists the private tokens of its sequences; leave n_p out, or give numbers of"
    " sequences in tree"
)
MIXED = "list them in all leaves, or in none"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("[{n_p: 3, tree: [[5, [4, 6]]]}]", {}, f"x.yaml:2:10: {FOLLOWS}"),
        ("[{}]\ndefaults: {n_p: 3, tree: 1x3}", {}, f"x.yaml:3:12: {FOLLOWS}"),
        ("[{tree: 1x8 2x5}]", {"n_p": "9"}, "--set n_p=9: n_p: cannot be used together with tree in x.yaml:2:10"),
        ("[{tree: [[5, [4, 6]], [3, 2]]}]", {}, "x.yaml:2:34: tree: is a number of sequences, but leaves before it"),
        ("[{tree: [[5, 2], [3, [[1, [2]]]]]}]", {}, "x.yaml:2:34: tree: lists private tokens, but leaves before it"),
        ("[{tree: [[0, [4, 0]]]}]", {}, "x.yaml:2:25: tree: this sequence has 0 tokens from the root on; it needs 1"),
        ("[{tree: [[0, [4, x]]]}]", {}, "x.yaml:2:25: tree: must be a whole number, not 'x'"),
        ("[{tree: [[0, []]]}]", {}, "x.yaml:2:21: tree: is an empty list; a tree is a list of"),
        ("[{tree: 1048576x1}]", {}, "x.yaml:2:16: tree: 1048576x1: 1048576 is outside 1 to 65536"),
        ("[{tree: 1x1048577}]", {}, "x.yaml:2:16: tree: 1x1048577: 1048577 is outside 0 to 1048576"),
        ("[{tree: 1x1048576 2x1}]", {}, "x.yaml:2:16: tree: this sequence has 1048577 tokens from the root on"),
        ("[{tree: 1x0 2x0}]", {}, "x.yaml:2:16: tree: this sequence has 0 tokens"),
        ("[{tree: 4x8 3x1}]", {}, "x.yaml:2:16: tree: 3x1 has fewer nodes than the level above"),
        ("[{tree: [2x3, 4x8 3x1]}]", {}, "x.yaml:2:22: tree: 3x1 has fewer nodes than the level above"),
        ("[{tree: 60000x1 60000x1 60000x1}]", {}, "x.yaml:2:16: tree: holds 120000 nodes; more than 65536 are refused"),
        (f"[{{tree: {'1x1 ' * 66}}}]", {}, "x.yaml:2:16: tree: has more than 64 levels of nodes"),
        ("[{tree: 1x8-2x3}]", {}, "x.yaml:2:16: tree: '1x8-2x3' is no tree; write levels like 1x8 4x256 256x32"),
        ("[{tree: [2x3, [[1, 2]]]}]", {}, "x.yaml:2:17: tree: must be a pair [tokens, children]; a tree is a list of"),
        ("[{tree: [1x2, a.json]}]", {}, "x.yaml:2:22: tree: a.json: cannot be read: No such file or directory"),
        (
            "[{tree: 1x2}]\nexpect: [{where: {tree: [1x2, a.json]}, metric: append_us, bar: 1}]",
            {},
            "x.yaml:3:25: tree: several trees, at least one of them a file; write an expectation for each tree",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(text: str, overrides: dict[str, str], message: str) -> None:
    lines = refusal(f"sweep: {text}\n", overrides)
    assert any(line.startswith(message) for line in lines), lines


def test_trees_of_one_block_all_have_private_tokens_or_none_has() -> None:
    Path("counts.json").write_text("[[5, 2]]")
    (told,) = refusal("sweep: [{tree: [1x8 2x3, counts.json]}]\n")
    assert told.startswith("x.yaml:2:16: tree: some of these trees have private tokens, others numbers of sequences")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("kind: replay\nimplementations: [paged]\nbaseline: paged\n", "traffic: fixed"),
        ("kind: serving\nimplementations: [chunk_llama]\n", "`kind: serving`"),
    ],
)
def test_other_kinds_refuse_ragged_trees_as_they_refuse_ranges(head: str, words: str) -> None:
    (told,) = refusal("sweep: [{rate: 60, tree: [[2, [3, 4]]]}]\n", head=head)
    assert f"tree: prompts of different lengths are not supported by {words}; give one length" in told
    (point,) = load("sweep: [{rate: 60, tree: [[2, [3, 3]]]}]\n", head=head).points("cpu", "float32")
    assert (point.n_p, point.tree) == (5, ((2, 2),))


def test_filters_know_private_lengths() -> None:
    text = "sweep: [{tree: [[2, [3, 4]]]}, {tree: 1x2 2x3}]\nexclude: [{tree: "
    assert [point.n_p for point in points(f"{text}[[2, [3, 4]]]}}]\n")] == [5]
    assert [point.n_p for point in points(f"{text}1x2 2x3}}]\n")] == [(5, 6)]
    assert "matches no combination" in refusal(f"{text}1x2 2x4}}]\n")[0]


def test_a_list_of_texts_are_several_trees() -> None:
    Path("a.json").write_text("[[7, [1, 2]]]")
    assert [point.batch_size for point in points("sweep: [{tree: [1x8 4x256 256x32, 3x9, a.json]}]\n")] == [256, 3, 2]


def of_levels(*levels: tuple[int, int]) -> str:
    return " ".join(f"{nodes}x{tokens}" for nodes, tokens in levels)


LEVELS = (
    st.lists(st.integers(1, 12), min_size=1, max_size=4)
    .map(sorted)
    .flatmap(lambda nodes: st.tuples(*(st.tuples(st.just(count), st.integers(1, 99)) for count in nodes)))
)


@settings(max_examples=50)
@given(LEVELS)
def test_levels_are_the_balanced_forest(levels: tuple[tuple[int, int], ...]) -> None:
    n_p, forest = resolved(read_forest(of_levels(*levels)))
    assert n_p == sum(tokens for _, tokens in levels)
    assert sequences_in(forest) == levels[-1][0]
    expected: dict[tuple[int, int], list[int]] = {}
    for level in range(1, len(levels) - 1):
        above, here = levels[level - 1][0], levels[level][0]
        for node in range(here):
            expected.setdefault((level - 1, node * above // here), []).append(node)
    row: list[Any] = list(forest)
    for level in range(max(1, len(levels) - 1)):
        below = [children for _, children in row]
        if level < len(levels) - 2:
            assert [len(children) for children in below] == [len(expected[level, n]) for n in range(len(row))]
            row = [node for children in below for node in children]
        else:
            last, count = levels[-1][0], len(row)
            assert below == [sum(s * count // last == n for s in range(last)) for n in range(count)]


FORESTS: st.SearchStrategy[list[Any]] = st.recursive(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    lambda below: st.lists(st.tuples(st.integers(1, 9), below).map(list), min_size=1, max_size=3),
    max_leaves=6,
).map(lambda children: [[1, children]])


@settings(max_examples=60)
@given(FORESTS)
def test_any_forest_with_lengths_is_a_point_with_these_lengths(raw: list[Any]) -> None:
    forest = read_forest(raw)
    assert read_forest(json.loads(json.dumps(forest))) == forest
    lengths, (n_p, tree) = lengths_in(forest), resolved(forest)
    assert len(lengths) == sequences_in(forest) == sequences_in(tree)
    assert n_p == ((min(lengths), max(lengths)) if len(set(lengths)) > 1 else lengths[0])
    assert has_lengths(tree) == (len(set(lengths)) > 1)
    values = {"n_p": n_p, "n_s": None, "tree": tree, "batch_size": len(lengths), "kv_heads": 1}
    point = AttentionPoint.model_validate({**values, "device": "cpu", "dtype": "float32"})
    assert point.prompt_lengths(3) == [sum(s.tokens for s in path) for path in point.paths(3)] == lengths
    assert len(show_forest(tree)) <= 60


@settings(max_examples=60)
@given(st.recursive(st.integers(-1, 3) | st.text(max_size=4) | st.none(), lambda x: st.lists(x, max_size=3)))
def test_any_value_is_a_forest_or_findings(raw: Any) -> None:
    try:
        assert sequences_in(read_forest(raw)) >= 1
    except Findings as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["t.json", "t.yaml", "t.yml"])
def test_a_file_holds_the_nested_list(name: str) -> None:
    Path(name).write_text("[[512, [40, 60, 5]]]")
    assert keys(f"sweep: [{{tree: {name}}}]\n") == keys("sweep: [{tree: [[512, [40, 60, 5]]]}]\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", "", "t.json: not JSON: Expecting value: line 1"),
        ("t.json", "[[5, [1, -2]]]", "t.json[0][1][1]: -2 is outside 0 to 1048576"),
        ("t.yaml", "- [5, [1, 2]]\n- [1]", "t.yaml:2:3: must be a pair [tokens, children]"),
        ("t.yml", "- &a [5, 2]", "t.yml:1:3: anchors (&a) are not used"),
        ("t.yaml", "[" * 5000, "t.yaml:1:146: nested more than 144 levels deep"),
        ("t.json", "[" * 100_000, "t.json: not JSON that can be read: it is nested too deeply"),
        ("t.json", "[[1, " * 65 + "2" + "]]" * 65, "t.json: nested more than 64 levels deep"),
        ("t.json", " " * (1 << 22) + "[]", "t.json: is larger than the limit of 4194304 bytes"),
        ("t.yaml", " " * (1 << 18) + "[]", "t.yaml: is larger than the limit of 262144 bytes"),
        ("t.json", f"[{','.join(['[1,1]'] * 65537)}]", "t.json: holds 65537 nodes; more than 65536 are refused"),
        ("t.json", "[[1, 65536], [1, 1]]", "t.json: holds 65537 sequences; more than 65536 are refused"),
        ("t.json", f"[{','.join(['3'] * 8)}]", "and 3 more mistakes"),
        ("t.json", '"1x8 2x3"', "t.json: must be a list, not '1x8 2x3'"),
    ],
)
def test_a_file_that_holds_no_forest_is_named(name: str, content: str, message: str) -> None:
    Path(name).write_text(content)
    lines = refusal(f"sweep: [{{tree: {name}}}]\n")
    assert any(line.startswith(f"x.yaml:2:16: tree: {message}") for line in lines), lines
    assert len(lines) <= 6


def test_lists_in_python_may_be_nested_as_deep_as_they_like() -> None:
    deep: list[Any] = [[1, 1]]
    for _ in range(3000):
        deep = [[1, deep]]
    with pytest.raises(Findings, match="nested more than 64 levels deep"):
        read_forest(deep)
    deepest = [[1, [1, 2]]]
    for _ in range(63):
        deepest = [[1, deepest]]
    values = {"n_p": (65, 66), "n_s": None, "tree": read_forest(deepest), "batch_size": 2, "kv_heads": 1}
    point = AttentionPoint.model_validate({**values, "device": "cpu", "dtype": "float32"})
    assert AttentionPoint.model_validate_json(point.model_dump_json()) == point


def test_an_expectation_keeps_the_forest_of_its_file() -> None:
    Path("t.json").write_text("[[3, [4, 5]]]")
    experiment = load("sweep: [{tree: t.json}]\nexpect: [{where: {tree: t.json}, metric: append_us, bar: 1}]\n")
    Path("t.json").unlink()
    assert json.loads(experiment.model_dump_json())["expect"][0]["where"] == {"tree": [[3, [4, 5]]]}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ([[64, [[64, 2], [0, 1]]], [0, 1]], "64x(64x2 0x1) 0x1"),
        ([[512, [40, 60, 5]]], "512x[40 60 5]"),
        ("1x8 4x256 256x32", "8x(256x64 256x64 256x64 256x64)"),
        ("1x8 6x256 256x32", "1x8 6x256 256"),
        ("2x1024 7x2048 16x512 33x4", "2x1024 7x2048 16x512 33"),
        ("256x1024", "0x256"),
        ([[1, [[1, [10, 20, 30, 40, 50]], [1, [10, 20, 30, 40, 50]]]]], "1x(1x[10 20 30 40 50] 1x[10 20 30 40 50])"),
        ([[8, [[256, 51], [256, 52], [256, 51], [256, 51], [256, 51]]]], "8x(256x51 256x52 256x51 256x51 256x51)"),
        ([[n, [[100, [n, 30]]]] for n in range(11)], "22 nodes, 22 sequences, depth 2"),
    ],
)
def test_how_tables_show_a_forest(raw: Any, shown: str) -> None:
    forest = read_forest(raw)
    assert show_forest(resolved(forest)[1] if has_lengths(forest) else forest) == shown
