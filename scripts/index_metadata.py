"""What a package index shows of ChunkBench: the README with links that work there, and the project's links.

The build runs this file (`tool.dynamic-metadata` in pyproject.toml), so it imports nothing that is not in Python. The
repository's address has one place: the field `repository-code` of CITATION.cff. Without it, links to files of the
repository become plain text, and pictures are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def repository() -> str:
    """Address of the repository, without a slash at its end; "" if CITATION.cff does not have the field."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    found = re.search(r"^repository-code:\s*[\"']?([^\"'\s]+?)/?[\"']?\s*$", citation, re.MULTILINE)
    return found[1] if found else ""


def away_from_the_repository(page: str, address: str, version: str) -> str:
    """The text of a page of the top folder, to be read elsewhere.

    `address` is the repository's, as `repository()` gives it. Links to its files then lead to the tag of `version`, by
    the paths that GitHub and GitLab have. A picture that is left out takes the line in italics below it along.
    """

    def mended(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        if "://" in target:
            return found[0]
        if not address:
            return "" if picture else text
        return f"{picture}[{text}]({address}/{'raw' if picture else 'blob'}/v{version}/{target.removeprefix('./')})"

    if not address:
        page = re.sub(r"^!\[[^\]]*\]\((?!\w+://)[^)]+\)\n+(?:\*[^*\n].*\*\n+)?", "", page, flags=re.MULTILINE)
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", mended, page)


def dynamic_metadata(_settings: Mapping[str, object], project: Mapping[str, object]) -> dict[str, object]:
    """The fields `readme` and `urls` of `project`, whose version is known. Called by scikit-build-core."""
    address, version = repository(), str(project["version"])
    text = away_from_the_repository((ROOT / "README.md").read_text(encoding="utf-8"), address, version)
    links = {"Repository": address, "Changelog": f"{address}/blob/v{version}/CHANGELOG.md"} if address else {}
    return {"readme": {"content-type": "text/markdown", "text": text}, "urls": links}
