"""Bad experiment files: loading reports every problem with the message and the place of the table."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from chunkbench.experiment import ExperimentError, load_experiment

BAD = Path(__file__).parent / "bad"

# File -> (line, column, the text at that place, the message). The text checks that the columns are right.
PROBLEMS: dict[str, list[tuple[int, int, str, str]]] = {
    "ambiguous_scalars": [
        (
            1,
            8,
            "no",
            "title: no is read as false by some YAML readers and as text by others; write false, or 'no' in quotes",
        ),
        (3, 7, "1_000", "seed: 1_000 is a number to some YAML readers and text to others; write 1000"),
        (
            4,
            9,
            "12",
            "budget: 12:30 is read in base 60 by some YAML readers; write a duration like 12m30s, or '12:30' in quotes",
        ),
        (6, 10, "010", "n_p: 010 is read as octal by some YAML readers and as decimal by others; write 10"),
        (7, 14, "0b11", "n_s: 0b11 is a binary number to some YAML readers and text to others; write it in decimal"),
    ],
    "anchors_and_aliases": [
        (2, 11, "&common", "defaults: anchors (&common) are not used in experiments; common axes go under defaults"),
        (5, 5, "*common", "sweep: aliases (*common) are not used in experiments; write the value out"),
    ],
    "baseline_not_measured": [
        (
            1,
            1,
            "implementations",
            "baseline: chunk_attn is not among implementations; add it there, or set baseline to one of them",
        ),
    ],
    "duplicate_key": [
        (6, 5, "n_p", "n_p: written twice, first in line 4; keep one"),
        (7, 1, "seed", "seed: written twice, first in line 2; keep one"),
    ],
    "duration_without_unit": [
        (2, 9, "300", "budget: 300 has no unit; write 300s for seconds or 300m for minutes"),
        (3, 13, "5", "case_limit: '5 minutes' is not a duration; write it like 5m, 90s, 1h30m or 0.5s"),
        (4, 8, "{", "sweep: must be a list, not a mapping"),
    ],
    "empty": [
        (1, 1, "", "the file is empty; it holds no experiment"),
    ],
    "exclude_everything": [
        (4, 1, "exclude", "exclude: removes every combination; no points are left"),
    ],
    "exclude_nothing": [
        (6, 5, "{", "exclude: matches no combination of the sweep"),
    ],
    "expectations": [
        (4, 5, "{", "expect: against is missing: speedup compares with an implementation"),
        (5, 55, "1.5", "aim: 1.5 is easier to reach than bar = 2; an aim goes beyond the bar"),
        (6, 14, "rofline_fraction", "metric: 'rofline_fraction' is not known here; did you mean roofline_fraction?"),
        (7, 37, "20", "aim: 20 is easier to reach than bar = 10; an aim goes beyond the bar"),
        (9, 43, "were", "were: unknown key; did you mean where?"),
    ],
    "float_as_count": [
        (3, 10, "1e3", "n_p: 1000.0 is not written as a whole number; write 1000"),
        (4, 11, "1e-3", "n_s: must be a whole number, not 0.001"),
        (4, 17, "12.0", "n_s: 12.0 is not written as a whole number; write 12"),
        (4, 23, "'16'", "n_s: '16' is text; write 16 without quotes"),
        (5, 17, "true", "batch_size: must be a whole number, not true"),
    ],
    "heads_not_divisible": [
        (4, 37, "12", "kv_heads: 12 does not divide heads = 32"),
        (5, 34, "72", "head_dim: 72 is not a multiple of 16"),
        (5, 38, "272", "head_dim: 272 is outside 16 to 256"),
    ],
    "in_range": [
        (
            4,
            15,
            "128",
            "n_s: 128 is larger than the shortest prompt, n_p low = 96: shared tokens are part of the prompt",
        ),
        (4, 20, "0.5", "n_s: '0.5 n_p' is a share of n_p, so n_p must be one number, not a range"),
        (5, 17, "128", "low: 128 is larger than high = 64"),
        (6, 11, "{", "n_p: a range needs low, as in {low: 512, high: 1024}"),
        (6, 12, "lo", "lo: unknown key; did you mean low?"),
    ],
    "list_at_top": [
        (1, 1, "-", "an experiment is a mapping of keys to values, not a list"),
    ],
    "kind_memory": [
        (3, 1, "protocols", "protocols: is about timing, and `kind: memory` times nothing; leave it out"),
        (
            5,
            6,
            "model",
            "model: is only for `kind: modules`, `kind: serving` and `kind: replay`; write heads, kv_heads and head_dim instead",
        ),
    ],
    "kind_modules": [
        (2, 19, "naive", "implementations: unknown implementation 'naive'; one of qkv_projection, self_attention, mlp"),
        (
            3,
            12,
            "chunk_size",
            "chunk_size: cannot be used with `kind: modules`, whose modules share nothing; leave it out",
        ),
        (5, 13, "llama2-7c", "model: llama2-7c: no known model and no config.json; did you mean llama2-7b?"),
        (5, 35, "heads", "heads: follows from model; leave it out"),
        (5, 45, "n_s", "n_s: cannot be used with `kind: modules`, whose modules share nothing; leave it out"),
        (6, 5, "{", "sweep: model is missing, here and under defaults; it names the model of the layer"),
    ],
    "many_kinds": [
        (1, 1, "titel", "titel: unknown key; did you mean title?"),
        (2, 26, "chunk_atn", "implementations: unknown implementation 'chunk_atn'; did you mean chunk_attn?"),
        (3, 13, "strickt", "protocols: 'strickt' is not known here; did you mean strict?"),
        (4, 13, "95", "confidence: 95 is not below 1; for 95 percent write 95%"),
        (5, 12, "2", "precision: 2 is not below 1; for 2 percent write 2%"),
        (6, 13, "fp16", "fp16: 'fp16' is not known here; one of float32, float16, bfloat16"),
        (9, 14, "2048", "n_s: 2048 is larger than n_p = 1024: shared tokens are part of the prompt"),
        (9, 20, "many", "n_s: 'many' is not a number of tokens; write it like 512, n_p, 0.5 n_p or 3/4 n_p"),
        (10, 5, "heds", "heds: unknown axis; did you mean heads?"),
        (11, 12, "fp16", "dtype: 'fp16' is not a dtype; did you mean float16?"),
        (12, 20, "65", "n_s: 65 is larger than n_p = 64: shared tokens are part of the prompt"),
    ],
    "many_points": [
        (4, 5, "n_p", "sweep: the sweep has 12101 combinations up to here; more than 10000 are refused"),
    ],
    "merge_key": [
        (4, 5, "<<", "<<: merge keys are not used in experiments; common axes go under defaults"),
    ],
    "missing_axes": [
        (3, 5, "n_p", "sweep: n_s is missing (0 for nothing shared), here and under defaults; or give a tree"),
        (4, 5, "n_s", "sweep: n_p is missing, here and under defaults"),
        (5, 5, "batch_size", "sweep: n_p is missing, here and under defaults"),
        (5, 5, "batch_size", "sweep: n_s is missing (0 for nothing shared), here and under defaults; or give a tree"),
    ],
    "missing_space": [
        (3, 6, "n_p", "n_p:64: unknown axis; put a space after the colon"),
    ],
    "mode_on_cpu": [
        (3, 8, "[", "modes: a CPU has only the mode eager"),
        (5, 13, "5", "max_rounds: 5 is smaller than min_rounds = 9"),
    ],
    "nothing_after_colon": [
        (1, 17, "", "implementations: has no value; give one or leave the key out"),
        (2, 7, "", "title: has no value; give one or leave the key out"),
        (4, 9, "", "n_p: has no value; give one or leave the key out"),
        (5, 10, "[", "n_s: an empty list leaves no points; give a value or leave the key out"),
    ],
    "only_comments": [
        (1, 1, "#", "the file is empty; it holds no experiment"),
    ],
    "prompts_without_sequences": [
        (6, 18, "4", "prompts: 4 is larger than batch_size = 2: some prompts would have no sequence"),
    ],
    "share_not_whole": [
        (4, 11, "0.3", "n_s: '0.3 n_p' of n_p = 1024 is 307.2 tokens; it must be a whole number of tokens"),
        (4, 29, "1.5", "n_s: '1.5 n_p' is more than the whole prompt"),
        (4, 38, "half", "n_s: 'half n_p' is not a number of tokens; write it like 512, n_p, 0.5 n_p or 3/4 n_p"),
        (4, 48, "1/0", "n_s: '1/0 n_p' is not a number of tokens; write it like 512, n_p, 0.5 n_p or 3/4 n_p"),
    ],
    "sweep_is_no_list": [
        (2, 8, "64", "sweep: must be a list, not 64"),
        (3, 10, "{", "exclude: must be a list, not a mapping"),
    ],
    "tabs": [
        (3, 1, "\t", "a tab; indent with spaces"),
    ],
    "tags": [
        (
            2,
            8,
            "!!python/object/apply",
            "title: tags (tag:yaml.org,2002:python/object/apply:os.system) are not used in experiments; write the plain value",
        ),
        (3, 15, "!count", "n_p: tags (!count) are not used in experiments; write the plain value"),
    ],
    "text_with_colon": [
        (
            2,
            15,
            ":",
            "cannot read the YAML: a second colon on one line; put text that holds a colon in quotes, or check the indentation",
        ),
    ],
    "too_many": [
        (
            3,
            11,
            "1048576",
            "n_p: batch_size * (n_p + n_c) = 137438953472 tokens; more than 2147483647 cannot be indexed",
        ),
        (4, 10, "9999999", "n_p: 9999999 is outside 1 to 1048576"),
        (5, 10, "123456789012345678901234567890", "n_s: a number of 30 digits is too large"),
    ],
    "tree_disagrees": [
        (3, 47, "17", "tree: 65 tokens down to here are more than n_p = 64"),
        (3, 70, "5", "batch_size: 5 disagrees with tree, which holds 4 sequences; leave it out"),
        (4, 15, "n_s", "n_s: cannot be used together with tree, which replaces it; keep one"),
        (
            5,
            22,
            "[",
            "tree: must be a pair [tokens, children]; a tree is a list of [tokens, children]; children is a number of sequences or another such list",
        ),
        (5, 37, "0", "tree: 0 is outside 1 to 65536"),
        (
            5,
            41,
            "3",
            "tree: must be a pair [tokens, children]; a tree is a list of [tokens, children]; children is a number of sequences or another such list",
        ),
        (5, 51, "two", "tree: must be a whole number, not 'two'"),
    ],
    "two_documents": [
        (3, 1, "---", "a second document starts here; a file holds one experiment"),
    ],
    "unclosed_bracket": [
        (
            3,
            1,
            "",
            "cannot read the YAML: expected ',' or ']', but got '<stream end>' (while parsing a flow sequence that begins in line 2)",
        ),
    ],
    "unclosed_quote": [
        (4, 1, "", "cannot read the YAML: a quote is opened and never closed"),
    ],
    "unknown_implementation": [
        (
            1,
            26,
            "chunk_attention",
            "implementations: unknown implementation 'chunk_attention'; did you mean chunk_attn?",
        ),
        (
            1,
            43,
            "vlm_paged_attn",
            "implementations: unknown implementation 'vlm_paged_attn'; did you mean vllm_paged_attn?",
        ),
    ],
    "wrong_indent": [
        (
            4,
            9,
            ":",
            "cannot read the YAML: a second colon on one line; put text that holds a colon in quotes, or check the indentation",
        ),
    ],
}


def test_every_bad_file_has_expected_problems() -> None:
    assert {file.stem for file in BAD.glob("*.yaml")} == PROBLEMS.keys()
    assert len(PROBLEMS) >= 20


@pytest.mark.parametrize("name", PROBLEMS)
def test_all_problems_are_reported(name: str) -> None:
    file = BAD / f"{name}.yaml"
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    expected = [f"{file}:{line}:{column}: {message}" for line, column, _, message in PROBLEMS[name]]
    assert str(caught.value).splitlines() == expected


@pytest.mark.parametrize("name", PROBLEMS)
def test_expected_text_is_at_the_expected_place(name: str) -> None:
    lines = [*(BAD / f"{name}.yaml").read_text().split("\n"), ""]
    for line, column, text, _ in PROBLEMS[name]:
        assert lines[line - 1][column - 1 :].startswith(text)
