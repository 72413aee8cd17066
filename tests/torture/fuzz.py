"""What the parts that damage input share: bad values, a command within limits, what an output may hold."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import resource
import signal
import traceback
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from tests.command import Done, chunkbench

MORE_MEMORY = 1 << 30
MORE_ADDRESSES = 4 << 30
"""Libraries reserve addresses that they never use; this saves the machine."""
CPU_S = 10
WALL_S = 90
"""Others may take most of the CPUs."""
EXIT_CODES = {0, 1, 2, 3, 4}

_DEEP, _DIGITS = "@deep@", "@digits@"
"""Stand for what `json.dumps` cannot write."""
MARKUP = (
    "<script>canary()</script>",
    "\"'><img src=x onerror=canary()>",
    "</title></style><canary>",
    "\\canary{}$canary$ %canary\n\\canary",
    "a $\\canary{$ b",
    "]]><canary/>",
    "&canary;",
    "ok\n::error::canary",
    "ok\r::error title=a,b::canary",
    "\x1b[31mcanary\x1b]0;canary\x07",
    "\x9b31mcanary",
    "\x00",
    "a\x08\x7f\x85\u2028b",
    "\ud800",
    "\u202eé",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5, 1e308, -1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "1e999", "chunk_attn", "ok", "x" * 5000),
    *("../../etc", [], {}, [None], [[]], [1, "a"], {"a": 1}, {"": {}}, [0] * 5000, _DEEP, _DIGITS, *MARKUP),
)


def dumped(value: Any) -> str:
    """JSON, also of what only damaged files hold."""
    text = json.dumps(value)
    return text.replace(f'"{_DEEP}"', "[" * 20_000 + "]" * 20_000).replace(f'"{_DIGITS}"', "9" * 10_000)


def place(value: Any, chance: random.Random) -> tuple[Any, Any] | None:
    """A container and a key or index in it; None where there is none. Long lists do not hide what stands beside them:
    a key of the uppermost container is as likely as any other one."""
    found = None
    while isinstance(value, dict | list) and value:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        found = value, key
        value = value[key]
        if chance.random() < 0.3:
            break
    return found


def damage_json(value: Any, chance: random.Random) -> None:
    """Change one to three values somewhere in a JSON document."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        found = place(value, chance)
        if found is None:
            return
        container, key = found
        action = chance.random()
        if action < 0.75:
            container[key] = chance.choice(VALUES)
        elif action < 0.9:
            del container[key]
        elif isinstance(container, dict):
            container[chance.choice(("x", "", *MARKUP))] = chance.choice(VALUES)
        else:
            container.append(chance.choice(VALUES))


def damage_bytes(data: bytes, chance: random.Random) -> bytes:
    """Cut, overwrite, delete or insert bytes."""
    at = chance.randrange(len(data) + 1)
    some = bytes(chance.randrange(256) for _ in range(chance.choice((1, 1, 4))))
    return chance.choice(
        (data[:at], data[:at] + some + data[at:], data[:at] + some + data[at + 1 :], data[:at] + data[at + 3 :])
    )


def command(*words: str | Path) -> Done:
    """Run a command in a child with 1 GB more memory than this process has, and 10 s of a CPU. Raises AssertionError
    if it ends otherwise than with an exit code of its own, or prints what a terminal would obey."""
    read, write = os.pipe()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    line = " ".join(["chunkbench", *map(str, words)])
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "wb") as out:
            _limited(list(map(str, words)), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as result:
        data = result.read()
    _, status, used = os.wait4(child, 0)
    assert os.WIFEXITED(status), f"{line}: ended by {signal.Signals(os.WTERMSIG(status)).name}"
    code, stdout, stderr, trace = pickle.loads(data)
    assert not trace, f"{line}\n{trace}"
    assert code in EXIT_CODES, f"{line}: exit code {code}"
    assert used.ru_utime + used.ru_stime < CPU_S, f"{line}: {used.ru_utime + used.ru_stime:.1f} s"
    taken = used.ru_maxrss * 1024 - before
    assert taken < MORE_MEMORY, f"{line}: {taken / 2**20:.0f} MiB more"
    assert "Traceback" not in stderr, f"{line}: {stderr[-2000:]}"
    assert "Warning:" not in stderr, f"{line}: {stderr[-2000:]}"
    check_text(stderr, f"{line}: standard error")
    assert not re.search(r"^::", stderr, re.MULTILINE), f"{line}: a message is an annotation: {stderr}"
    return Done(code, stdout, stderr)


def _limited(words: list[str], out: Any) -> None:
    """In the child: call the command within the limits, and pass on how it ended."""
    done: tuple[object, str, str, str]
    try:
        torch.set_num_threads(1)  # the threads of this process's parent are not here: who waits for them waits for ever
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WALL_S)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S + 1, CPU_S + 2))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MORE_ADDRESSES, resource.RLIM_INFINITY))
        ended = chunkbench(*words)
        done = (ended.code, ended.stdout, ended.stderr, "")
    except BaseException:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        done = (None, "", "", traceback.format_exc()[-6000:])
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pickle.dump(done, out)


_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_LATEX = re.compile(r"\\canary|(?<!\\)\$canary|(?<!\\)%canary|&canary(?!;?\\)")


def check_text(text: str, what: str) -> None:
    """What a terminal shows: no control characters."""
    found = _OBEYED.search(text)
    assert found is None, f"{what} holds {found[0]!r}: {text[max(0, found.start() - 100) : found.end() + 50]!r}"


def check_markdown(text: str, what: str) -> None:
    """Markdown shows HTML unless it is escaped."""
    check_text(text, what)
    for tag in ("<script", "<img", "<canary", "</title"):
        assert not re.search(rf"(?<!\\){tag}", text), f"{what} holds {tag}"


def check_latex(text: str, what: str) -> None:
    """LaTeX: no command, no mathematics, no comment from the input."""
    check_text(text, what)
    text = "\n".join(line for line in text.split("\n") if not line.startswith("% "))
    found = _LATEX.search(text.replace(r"\&", ""))
    assert found is None, f"{what} holds {found[0]}"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("canary", "img", "iframe") or any(name.startswith("on") for name, _ in attrs):
            self.bad.append(f"<{tag} {attrs}>")


def check_html(text: str, what: str) -> None:
    """A page or an SVG: no element and no handler but its own."""
    check_text(text, what)
    tags = _Tags()
    tags.feed(text)
    assert not tags.bad, f"{what} holds {tags.bad[:3]}"
    assert tags.scripts <= 1, f"{what} holds {tags.scripts} scripts"


def check_junit(text: str, what: str) -> None:
    """JUnit: XML with the elements that readers know."""
    from xml.etree import ElementTree

    check_text(text, what)
    known = {"testsuites", "testsuite", "testcase", "properties", "property", "system-out", "skipped"}
    found = {element.tag for element in ElementTree.fromstring(text).iter()} - known - {"failure", "error"}
    assert not found, f"{what} holds {found}"


def check_github(text: str, what: str) -> None:
    """Annotations: each line is one that ChunkBench wrote."""
    check_text(text, what)
    for line in re.split(r"[\n\r]", text):
        whole = re.fullmatch(r"(::(error|warning|notice) title=[^:,]*::.*)?", line)
        assert whole, f"{what} holds the line {line!r}"


def check_json(text: str, what: str) -> None:
    """JSON as all readers know it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{what} holds {constant}")

    json.loads(text, parse_constant=refuse)


CHECKS = {
    **dict.fromkeys(("table", "csv", "txt"), check_text),
    **dict.fromkeys(("markdown", "md"), check_markdown),
    **dict.fromkeys(("latex", "tex"), check_latex),
    **dict.fromkeys(("html", "svg"), check_html),
    **dict.fromkeys(("junit", "xml"), check_junit),
    **dict.fromkeys(("github", "log"), check_github),
    "json": check_json,
}
"""By format, and by ending of a file."""
