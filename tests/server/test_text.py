"""Models, texts and records of our server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from chunkbench.cli.main import cli
from chunkbench.server.build import ModelChoice, build_backend
from chunkbench.server.engine import EngineOptions, Request
from chunkbench.server.protocol import ApiError
from chunkbench.server.text import CheckpointTokenizer, StopSearch, TextStream
from tests.server.engine.models import MERGES, byte_tokenizer, config

WORDS = ["▁", "▁the", "the", "▁▁", "a", "é", "▁\ufffd", ".", "▁.", "'", "▁'", "s", "n't", "▁n", "你"]


def byte_fallback() -> Tokenizer:
    """As Llama 2, Mistral and Gemma have it."""
    vocabulary = {name: n for n, name in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))])}
    vocabulary |= {word: len(vocabulary) + n for n, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: n for n, name in enumerate(["<unk>", "<s>", "</s>", *letters, "Ġthe", "ä½", "ðŁĺ"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def word_pieces() -> Tokenizer:
    """As BERT has it; its clean-up of spaces changes text that stood already."""
    names = ["<unk>", "<s>", "</s>", "the", "##s", "'", "s", "n", "t", ".", "##.", "ve", "do"]
    tokenizer = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def suffixed() -> Tokenizer:
    """As the first GPT has it: the end of a word is part of its token."""
    names = ["<unk>", "<s>", "</s>", "the</w>", "the", "s</w>", ".", "a</w>"]
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, [], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5's Unigram models have it."""
    names = ["<unk>", "<s>", "</s>", *WORDS]
    tokenizer = Tokenizer(models.Unigram([(name, -1.0) for name in names], 0))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@pytest.fixture(params=[byte_fallback, byte_level, word_pieces, suffixed, metaspace])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make: Callable[[], Tokenizer] = request.param
    made = make()
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    cleaned = make in (word_pieces, metaspace)
    whole = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=cleaned)
    whole.save_pretrained(tmp_path)
    return whole


def test_pieces_add_up_to_what_the_tokenizer_decodes(tokenizer: Any, tmp_path: Path) -> None:
    text, chance = CheckpointTokenizer(tmp_path), random.Random(1)
    most = max(tokenizer.get_vocab().values()) + 3  # models have more rows than their tokenizers have tokens
    for _ in range(400):
        few = [chance.randrange(most) for _ in range(6)]
        ids = [chance.choice([chance.randrange(most), *few]) for _ in range(chance.randrange(1, 40))]
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        assert text.decode(ids) == expected
        stream = text.stream()
        assert "".join(stream.add(token, place == len(ids) - 1) for place, token in enumerate(ids)) == expected, ids


@pytest.mark.parametrize("tokenizer", [byte_fallback], indirect=True)
def test_text_comes_as_soon_as_it_is_known(tokenizer: Any, tmp_path: Path) -> None:
    def pieces(*names: str) -> list[str]:
        stream, ids = CheckpointTokenizer(tmp_path).stream(), tokenizer.convert_tokens_to_ids(list(names))
        return [stream.add(token, place == len(ids) - 1) for place, token in enumerate(ids)]

    assert pieces("▁the", "a", "▁the") == ["the", "a", " the"]
    assert pieces("a", "<0x41>", "a") == ["a", "", "Aa"]
    assert pieces("a", "<0xE4>", "<0xBD>", "<0xA0>", "a") == ["a", "", "", "", "你a"]
    assert pieces("a", "<0x41>", "<0x80>", "</s>") == ["a", "", "", "\ufffd\ufffd"]
    assert pieces("<0xE4>", "</s>", "<0xBD>") == ["", "", "\ufffd\ufffd"]
    assert pieces("</s>", "▁the", "</s>", "▁the") == ["", "the", "", " the"]


@pytest.mark.parametrize("tokenizer", [byte_level], indirect=True)
def test_an_answer_of_broken_characters_takes_no_time_in_proportion_to_its_square(
    tokenizer: Any, tmp_path: Path
) -> None:
    text, decoded = CheckpointTokenizer(tmp_path), 0
    (half,) = tokenizer.convert_tokens_to_ids(["ä½"])
    decode = text.decode

    def counted(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    text.decode = counted  # type: ignore[method-assign]
    stream = text.stream()
    assert "".join(stream.add(half, n == 1999) for n in range(2000)) == "\ufffd" * 2000
    assert decoded < 10 * 2000


def test_text_that_a_tokenizer_cannot_read_is_refused(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="missing"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    with pytest.raises(ApiError, match="the model's tokenizer cannot read this text"):
        CheckpointTokenizer(tmp_path).encode("b")


Stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


@given(st.lists(st.text("abc", max_size=3), max_size=8), Stops)
def test_a_text_ends_before_its_first_stop_string_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    """The reference reads all the text again after each piece, and ends it as soon as one is whole."""
    text, expected, ends = "", "", False
    for piece in pieces:
        text += piece
        found = [text.index(stop) for stop in stops if stop in text]
        ends, expected = bool(found), text[: min(found)] if found else text
        if ends:
            break
    search, shown = StopSearch(stops), ""
    for place, piece in enumerate(pieces):
        given, stopped = search.add(piece, place == len(pieces) - 1)
        shown += given
        assert expected.startswith(shown)  # nothing was shown that has to be taken back
        if stopped:
            break
    assert (shown, bool(pieces) and stopped) == (expected, ends)


@given(st.text("ab", max_size=12), Stops)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    shown, stopped = StopSearch(stops).add(text, False, search=False)
    held = text[len(shown) :]
    begins = [n for n in range(1, len(text) + 1) if any(s != text[-n:] and s.startswith(text[-n:]) for s in stops)]
    assert (len(held), stopped) == (max(begins, default=0), False)


def test_stop_strings_need_a_tokenizer() -> None:
    CheckpointTokenizer(None).check([])
    with pytest.raises(ApiError, match="has no tokenizer: name the tokens that stop in stop_token_ids"):
        CheckpointTokenizer(None).check(["a"])


@given(
    st.lists(st.sampled_from(["na", "m", "e", "xyz", "x", " ", "é", "yes", "12"]), min_size=1, max_size=12), st.data()
)
def test_tokens_that_are_written_otherwise_give_their_new_text_at_once(words: list[str], data: st.DataObject) -> None:
    tokenizer = byte_tokenizer(MERGES)
    of_byte = {byte: tokenizer.token_to_id(letter) for byte, letter in bytes_to_unicode().items()}
    stream = TextStream(tokenizer.decode)
    ids: list[int] = []
    given_text = ""
    for number, word in enumerate(words):
        # A token for each byte; then, perhaps, the tokens that the whole text has.
        for letter in word.encode():
            ids.append(of_byte[letter])
            given_text += stream.add(ids[-1], last=False)
        if data.draw(st.booleans()):
            longer = tokenizer.encode(tokenizer.decode(ids) + "name").ids
            kept = next((n for n, (old, new) in enumerate(zip(ids, longer, strict=False)) if old != new), len(ids))
            replaces = len(ids) - kept
            ids = longer
            for token in longer[kept:]:
                given_text += stream.add(token, last=False, replaces=replaces)
                replaces = 0
            assert given_text == tokenizer.decode(ids), number
    given_text += stream.add(ids[0], last=True)
    assert given_text == tokenizer.decode([*ids, ids[0]])


def test_no_budget_makes_the_start_long_and_lines_say_what_it_does(tmp_path: Path) -> None:
    config("llama-grouped").save_pretrained(tmp_path / "Llama-3.2-1B")
    choice, said = ModelChoice(str(tmp_path / "Llama-3.2-1B" / "config.json"), torch.float32), list[str]()
    backend, most = build_backend(choice, "chunk", EngineOptions(kv_bytes=1 << 20, prompt_budget=2**40), said.append)
    backend.check(Request("r", [1], most - 1), 1)
    assert [line.split()[:2] for line in said] == [["Llama-3.2-1B:", "drawing"], ["Llama-3.2-1B:", "preparing"]]


LOGS = """
import pathlib, resource, signal, sys
from chunkbench.server.records import Log

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), -1))
    log = Log(pathlib.Path(room))
    for number in range(9):
        log.request(id=f"r{number}", generated=7)
"""


def test_on_a_full_disk_a_log_ends_with_a_whole_line(tmp_path: Path) -> None:
    """A child may not write longer files. The last bytes that find room are a part of what was to be written."""
    rooms = (1, 30, 100, 101)
    words = [sys.executable, "-c", LOGS, *map(str, rooms)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines() == [f"{room}/requests.jsonl ends here: File too large" for room in rooms]
    line = len(json.dumps({"id": "r0", "generated": 7})) + 1
    for room in rooms:
        text = (tmp_path / str(room) / "requests.jsonl").read_text()
        assert len(text) == room // line * line
        assert [json.loads(line)["id"] for line in text.splitlines()] == [f"r{n}" for n in range(room // line)]


def test_a_log_that_cannot_be_begun_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["serve", "small-llama", "--port", "0", "--log", str(tmp_path / "file" / "log")])
    assert (result.exit_code, "--log" in result.output, "Not a directory" in result.output) == (2, True, True)
