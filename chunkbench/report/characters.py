"""Characters that no file of text can hold: names of folders and messages of programs may contain them."""

from __future__ import annotations

import re

_ILLEGAL = re.compile("[^\t\n\r\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 forbids (control characters, halves of surrogate pairs), and the control characters that it allows."""


def legal(text: str) -> str:
    """The text with U+FFFD for each character that UTF-8, XML or a terminal cannot show."""
    return _ILLEGAL.sub("\ufffd", text)
