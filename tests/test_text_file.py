"""Files of users: text, JSON, CSV, shapes of models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic_core import ErrorDetails

from chunkbench.llama import ShapeError, shape_of
from chunkbench.text_file import TextError, csv_rows, decode, from_json, lines, problem_of, read_text


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert list(lines(read_text(path))) == [(1, "one"), (2, "two")]


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """A pipe can be opened once only: its writer is gone then."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a line\n",))
    writer.start()
    assert read_text(pipe) == "a line\n"
    writer.join()


def test_a_dash_is_standard_input_unless_a_file_has_that_name(tmp_path: Path) -> None:
    program = "from pathlib import Path; from chunkbench.text_file import read_text; print(read_text(Path('-')))"

    def read() -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, input="piped", cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert read() == "piped\n"
    (tmp_path / "-").write_text("a file")
    assert read() == "a file\n"


@pytest.mark.parametrize("inside", ["\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(inside: str) -> None:
    assert list(lines(f'"a{inside}b"\n\n  \nc')) == [(1, f'"a{inside}b"'), (4, "c")]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"a\nb\xff", "f:2:2: not text in UTF-8"),
        (b"a\n\xed\xa0\x80", "f:2:1: not text in UTF-8"),
        (b"a\0b", "f:1:2: not text in UTF-8"),
        ("a".encode("utf-16"), "f:1:1: the file is in UTF-16; save it as UTF-8"),
        ("a".encode("utf-32"), "f:1:1: the file is in UTF-32; save it as UTF-8"),
    ],
)
def test_bytes_that_are_no_text_have_a_place(content: bytes, place: str) -> None:
    with pytest.raises(TextError) as caught:
        decode(content, "f")
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("name", ["none", ".", "a\0b"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(TextError, match="cannot be read: "):
        read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1e999", "1e999 is not a finite number"),
        ("[-1e999]", "-1e999 is not a finite number"),
        ("NaN", "NaN is not a finite number"),
        ("-Infinity", "-Infinity is not a finite number"),
        ("9" * 5000, "not JSON"),
        (r'{"a": ["\ud800"]}', "half of a surrogate pair"),
        (r'{"\udfff": 1}', "half of a surrogate pair"),
    ],
)
def test_json_that_cannot_be_used(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_json(text)


def test_json_that_can() -> None:
    assert from_json(r'["\ud83d\ude00", 1e308, "\u2028"]') == ["\U0001f600", 1e308, "\u2028"]
    assert from_json("1" + "0" * 400) == 10**400


def test_a_place_with_a_line_break_is_shown_as_an_escape() -> None:
    detail: ErrorDetails = {"type": "missing", "loc": ("a\n", 0, "b"), "msg": "m", "input": None}
    assert problem_of(detail) == r"'a\n'.0.b: m"
    assert problem_of(detail | {"loc": ()}, "the line") == "the line: m"


def test_rows_of_csv() -> None:
    text = ' "a" , b \r\n\n"x, y", 2\n"' + "z" * 200_000 + '",3\nc\rd,4\n,\nlast,"5\n6,7'
    rows = [(number, str(row)[:20] if isinstance(row, ValueError) else row) for number, row in csv_rows(text)]
    assert rows == [
        (1, ["a", "b"]),
        (3, ["x, y", "2"]),
        (4, "not CSV: field large"),
        (5, "not CSV: new-line ch"),
        (6, ["", ""]),
        (7, "not CSV: a quote is "),
    ]


CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


@pytest.mark.parametrize("folder", [False, True])
def test_a_config_file_may_omit_fields_with_defaults(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    shape = shape_of(str(tmp_path if folder else path))
    assert (shape.name, shape.num_key_value_heads, shape.head_dim) == ("llama", 8, 128)
    path.write_text(json.dumps(CONFIG | {"num_key_value_heads": 2, "head_dim": 64}))
    assert shape_of(str(path)).kv_bytes() == 2 * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must hold a JSON object"),
        (json.dumps({"hidden_size": 64}), "intermediate_size: Input should be a valid integer"),
        (json.dumps(CONFIG | {"num_key_value_heads": 3}), "not a multiple of num_key_value_heads = 3"),
        (json.dumps(CONFIG | {"num_attention_heads": 0}), "num_attention_heads: Input should be greater than 0"),
    ],
)
def test_an_invalid_config_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ShapeError, match=message):
        shape_of(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama2-7", "did you mean llama2-7b"),
        ("nowhere/config.json", "No such file"),
        ("llama " * 100, r"^.{200}\.\.\.: neither a known model"),  # no file system takes such names
        ("llama" * 100 + ".json", "File name too long"),
    ],
)
def test_an_unknown_model_gets_a_hint(name: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shape_of(name)
