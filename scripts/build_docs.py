"""Builds the documentation as a web site: `python scripts/build_docs.py`, which `make docs` calls.

First the script collects pages in build/docs: docs/ without docs/notes, the README and other top pages, a page for each
recorded run, and the API. Links are changed to fit the site. Then mkdocs makes build/site. It fails if a link has no
target. At the end the script checks that the site loads nothing from other hosts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS, STAGE, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
NOTES = DOCS / "notes"  # of the repository, not of the site
RECORDED = ROOT / "results" / "recorded"
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
TOP["SECURITY.md"] = "security.md"
REPORTS = {
    "epyc-zen3-2-cores": "AMD EPYC, Zen 3: everything of the paper's kernel half, float32",
    "epyc-zen5-2-cores": "AMD EPYC, Zen 5: Table 3 and the CPU kernels, bfloat16; the authors' kernel",
    "epyc-zen4-2-cores": "AMD EPYC, Zen 4: vLLM with our kernels",
    "nvidia-h200": "NVIDIA H200: Table 3, the GPU kernels' bars, a part of Figure 4",
    "xeon-amx-2-cores": "Intel Xeon with AMX: servers under load (Table 4, Figure 5), the CPU kernels",
    "xeon-avx512-bf16-2-cores": "Intel Xeon with AVX512-BF16: several query rows, sliding windows",
    "replays": "Cache managers on a virtual clock: replays, not measured",
}
"""Folder of recorded runs -> title of its page."""
API = """# API

The public classes, and what an implementation has to provide. Everything else may change.

::: chunkbench.attention.ChunkAttention
::: chunkbench.attention.LayeredChunkAttention
::: chunkbench.attention.RaggedChunkAttention
::: chunkbench.report.frames.load
::: chunkbench.bench.contract
"""


def with_keys(page: str) -> str:
    """Fill the table of keys in the page on experiments. The keys come from `experiments/schema.json`."""
    schema = json.loads((ROOT / "experiments" / "schema.json").read_text(encoding="utf-8"))
    required = [*schema["required"], *schema["else"]["required"]]
    lines = ["| key | meaning | default |", "| --- | --- | --- |"]
    for key, field in schema["properties"].items():
        words = re.sub(r"^\[(.*)\] ", r"*\1*: ", field["description"])
        meaning, _, default = words.partition("; default: ")
        if not default:
            given = field.get("default")
            default = "required" if key in required else ", ".join(given) if isinstance(given, list) else given
        empty = default is None or default == ""
        lines.append(f"| `{key}` | {meaning} | {'none' if empty else default} |")
    before, rest = page.split("<!-- keys -->")
    after = rest.split("<!-- end of keys -->")[1]
    return "\n".join([f"{before}<!-- keys -->", "", *lines, "", f"<!-- end of keys -->{after}"])


def moved(page: Path, target: str) -> str | None:
    """Turn a link on `page` into a link that works on the site. None if the site does not have the file."""
    path, mark, anchor = target.partition("#")
    if not path:
        return target
    file = (page.parent / path).resolve()
    name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
    if name in TOP:
        return TOP[name] + mark + anchor
    in_site = file.is_relative_to(DOCS) and not file.is_relative_to(NOTES)
    return file.relative_to(DOCS).as_posix() + mark + anchor if in_site else None


def page_text(page: Path) -> str:
    """The text of a page with links that work on the site. Links to files that the site lacks become plain text."""

    def mended(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target:
            return found.group(0)
        link = moved(page, target)
        return f"{text}({link})" if link is not None else text.strip("[]")

    return re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", mended, page.read_text(encoding="utf-8"))


def collect() -> None:
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE, ignore=shutil.ignore_patterns("*.md", "mkdocs.yml", NOTES.name))
    for page in sorted(DOCS.glob("*.md")):
        (STAGE / page.name).write_text(page_text(page), encoding="utf-8")
    for name, target in TOP.items():
        (STAGE / target).write_text(page_text(ROOT / name), encoding="utf-8")
    (STAGE / "api.md").write_text(API, encoding="utf-8")
    lines = [
        "# Recorded reports",
        "",
        "Each page is one file that `chunkbench report FOLDER --out report.html` made.",
        "",
    ]
    (STAGE / "reports").mkdir()
    for folder, title in REPORTS.items():
        page = STAGE / "reports" / f"{folder}.html"
        words = ["report", RECORDED / folder, "--out", page, "-q"]
        subprocess.run([sys.executable, "-m", "chunkbench", *map(str, words)], check=True, cwd=ROOT)
        # The raw samples are in the repository, not in the site.
        raw = r'<a href="[./]*(results/[^"]*)/cases.jsonl">every sample</a>, <a href="[^"]*">([^<]*)</a>'
        text = re.sub(raw, r"every sample, \2, in <code>\1</code> of the repository", page.read_text("utf-8"))
        page.write_text(text, encoding="utf-8")
        lines.append(f"- [{title}](reports/{page.name})")
    (STAGE / "reports.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def loaded_from_elsewhere() -> list[str]:
    """URLs of other hosts from which the site's pages and style sheets would load something."""
    found = []
    for path in sorted(path for path in SITE.rglob("*") if path.suffix in (".html", ".css")):
        text = path.read_text(encoding="utf-8")
        for url in re.findall(
            r'(?:<(?:script|img|iframe|link)[^>]+(?:src|href)=["\']?|url\(["\']?)(https?://[^"\')>\s]+)', text
        ):
            if "canonical" not in text[max(0, text.index(url) - 40) : text.index(url)]:
                found.append(f"{path.relative_to(SITE)}: {url}")
    return found


def main() -> None:
    collect()
    # These variables hide a banner about the next version of mkdocs.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(DOCS / "mkdocs.yml")]
    done = subprocess.run(command, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.returncode)
    elsewhere = loaded_from_elsewhere()
    if elsewhere:
        raise SystemExit("the site loads from other hosts:\n  " + "\n  ".join(elsewhere))
    print(f"site: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
