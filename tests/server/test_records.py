"""What a server writes down about itself."""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.server.records import Log


@pytest.mark.parametrize("room", [1, 30, 100, 101])
def test_on_a_full_disk_a_log_ends_with_a_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    write = FileIO.write

    class Disk(FileIO):
        """Takes so many bytes, as a disk does: the last ones of them as a part of what was to be written."""

        def write(self, data: Any) -> int:
            left = room - os.fstat(self.fileno()).st_size
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(self, data[:left])

    monkeypatch.setattr("chunkbench.server.records.FileIO", Disk)
    log = Log(tmp_path)
    for number in range(9):
        log.request(id=f"r{number}", generated=7)
    log.close()
    text = (tmp_path / "requests.jsonl").read_text()
    line = len(json.dumps({"id": "r0", "generated": 7})) + 1
    assert len(text) == room // line * line
    assert [json.loads(line)["id"] for line in text.splitlines()] == [f"r{n}" for n in range(room // line)]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/requests.jsonl ends here: No space left on device"
    ]


def test_a_log_that_cannot_be_begun_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["serve", "small-llama", "--port", "0", "--log", str(tmp_path / "file" / "log")])
    assert (result.exit_code, "--log" in result.output, "Not a directory" in result.output) == (2, True, True)
