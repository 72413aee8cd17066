"""`chunkbench demo`: both sides on a small model; nightly the command itself."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from tests.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

from chunkbench.cli.demo import USERS, _answer, _output
from chunkbench.report.formats import render
from chunkbench.server.engine import Engine, EngineOptions, Request
from tests.server.engine.models import small_model


def test_both_sides_give_the_same_answers_and_sharing_computes_less() -> None:
    shared = [3 * token % 300 for token in range(128)]
    prompts = [[*shared, 7, user] for user in range(USERS)]
    sides = []
    for name, attention in (("without sharing", "no-sharing"), ("with sharing", "two-phase")):
        options = EngineOptions(USERS, kv_bytes=1 << 24, attention=attention)  # type: ignore[arg-type]
        requests = [Request(str(user), prompt, 5) for user, prompt in enumerate(prompts, 1)]
        sides.append(_answer(name, Engine(small_model(), options), requests))
    assert [side.computed_tokens for side in sides] == [USERS * 130, 128 + USERS * 2]
    assert sides[0].kv_bytes > 2 * sides[1].kv_bytes
    text = render(_output(sides, prompts, "why?", "because"), "table")
    assert f"the same answers: {USERS} of {USERS}" in text
    assert "prompt tokens computed              2,080           160  13.0x" in text
    assert "Question: why?" in text


@pytest.mark.slow
@pytest.mark.serial
def test_the_command() -> None:
    result = CliRunner().invoke(cli, ["demo", "--format", "json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["same_answers"] == facts["users"] == USERS
    without, shared = facts["sides"]
    assert without["computed_prompt_tokens"] > 8 * shared["computed_prompt_tokens"]
