"""Records a terminal session as an SVG: runs the commands, and draws what they print.

    python scripts/record_session.py docs/images/session.svg

The picture is rich's drawing without its web font, so it loads nothing from other hosts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
COMMANDS = (
    ("chunkbench quick --model llama3-8b", 40),
    ("chunkbench claims results/recorded/epyc-zen3-2-cores", 20),
)
"""(command, number of lines of its output that the picture shows)."""


def printed(command: str) -> str:
    """The text that a command prints on a terminal, without the lines that it overwrites."""
    environment = os.environ | {"COLUMNS": str(WIDTH), "LINES": "50", "TERM": "xterm-256color"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    # `script` gives the command a terminal. Progress goes to standard error and is gone when the command ends.
    words = ["script", "-qec", f"{command} 2>/dev/null", "/dev/null"]
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: ended with {done.returncode}")
    return done.stdout.decode().replace("\r\n", "\n")


def main(out: Path) -> None:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    for number, (command, most) in enumerate(COMMANDS):
        lines = printed(command).rstrip("\n").split("\n")
        console.print(Text.assemble(("" if number == 0 else "\n") + "$ ", (command, "bold")))
        for line in lines[:most]:
            console.print(Text.from_ansi(line), overflow="crop", no_wrap=True)
        if len(lines) > most:
            console.print(Text("...", "dim"))
    picture = console.export_svg(title="ChunkBench", unique_id="session")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
