"""Makes a report as LaTeX tables in ASCII. A comment at the top names the LaTeX packages that the tables need."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from chunkbench.report.model import Cell, Column, Document, Table, legal

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # the font encoding OT1 lacks the character itself
    "\ufffd": "?",
    "\u2013": "--",
    "\u2014": "---",
    "\u2018": "`",
    "\u2019": "'",
    "\u201c": "``",
    "\u201d": "''",
    "\u2026": r"\ldots{}",
    "\u00df": r"\ss{}",
    "\u00e6": r"\ae{}",
    "\u00c6": r"\AE{}",
    "\u00f8": r"\o{}",
    "\u00d8": r"\O{}",
    "\u0142": r"\l{}",
    "\u0141": r"\L{}",
}
_MATH = {
    "\u00b5": r"\mu",
    "\u00b0": r"^\circ",
    "\u00b1": r"\pm",
    "\u00b2": "^2",
    "\u00b3": "^3",
    "\u00b7": r"\cdot",
    "\u00d7": r"\times",
    "\u2190": r"\leftarrow",
    "\u2191": r"\uparrow",
    "\u2192": r"\rightarrow",
    "\u2193": r"\downarrow",
    "\u21d2": r"\Rightarrow",
    "\u2212": "-",
    "\u221a": r"\surd",
    "\u221e": r"\infty",
    "\u2248": r"\approx",
    "\u2260": r"\ne",
    "\u2264": r"\le",
    "\u2265": r"\ge",
}
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi - pi rho - sigma tau upsilon phi chi psi "
    "omega"
)
"""Names of the small Greek letters in the order of Unicode. A hyphen stands for a letter without a LaTeX command."""
_CAPITALS = {"gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega"}
for _place, _name in enumerate(_GREEK.split()):
    if _name != "-":
        _MATH[chr(0x3B1 + _place)] = f"\\{_name}"
    if _name in _CAPITALS:
        _MATH[chr(0x391 + _place)] = f"\\{_name.title()}"
_REPLACED = _SPECIAL | {character: rf"\ensuremath{{{command}}}" for character, command in _MATH.items()}
_ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_LIGATURE = re.compile("(?<=[-`',])(?=[-`',])|(?<=[?!])(?=`)")
"""Finds places between two characters that a font would join, such as two hyphens into a dash."""

_CHARACTER, _GAP = 4.9, 8.0
"""Mean width of a character, and width of the space between two columns, both in points. The first is estimated on the
large side."""
_PAGE = 345
"""Width of the text in LaTeX's class `article`, in points."""
_SHEETS = ((780, "a4paper,landscape,margin=1cm"), (1130, "a3paper,landscape,margin=1cm"))
"""Larger pages: (width of the text in points, options of the LaTeX package `geometry`)."""
_ROWS = 30
"""Number of rows on a page; a gap counts as half a row. A page ends after the point that reaches this number."""


def render(report: Document) -> str:
    """Show a report as LaTeX: the tables, then the notes in small print. The caption of the first table contains the
    headline."""
    parts = [f"% {escape(report.title)}", *_needs(report.tables)]
    for number, table in enumerate(report.tables):
        summary = [*report.warnings, report.verdict, report.headline] if number == 0 else []
        caption = " ".join(escape(text.rstrip(".") + ".") for text in (table.title, *summary) if text)
        parts += _pages(table, caption)
    return "\n".join([*parts, *_small_print(report)]) + "\n"


def as_printed(report: Document) -> str:
    """Show only the first table, with its title as the caption, as in a paper."""
    first = report.tables[0]
    return "\n".join([*_needs([first]), *_pages(first, escape(f"{report.title}. {first.title}."))]) + "\n"


def escape(text: str) -> str:
    """Turn the text into ASCII on one line, and escape LaTeX's special characters."""
    plain = " ".join(unicodedata.normalize("NFC", legal(text)).split())
    return "{}".join("".join(map(_printed, part)) for part in _LIGATURE.split(plain))


def _printed(character: str) -> str:
    """The LaTeX code of a character; its Unicode number if LaTeX needs further packages to print the character."""
    if character in _REPLACED or character.isascii():
        return _REPLACED.get(character, character)
    letter, *accents = list(unicodedata.normalize("NFD", character))
    if len(accents) == 1 and accents[0] in _ACCENTS and letter.isascii():
        dotless = "\\" if letter in "ij" else ""
        return f"{_ACCENTS[accents[0]]}{{{dotless}{letter}}}"
    return f"[U+{ord(character):04X}]"


def _needs(tables: Sequence[Table]) -> list[str]:
    """Comments that name the packages, and a page that is wide enough."""
    lines = [r"% \usepackage{booktabs}"]
    widest = max(map(_width, tables), default=0)
    if widest <= _PAGE:
        return lines
    wide = f"about {widest} pt wide, a page of article {_PAGE} pt"
    for width, options in _SHEETS:
        if widest <= width:
            return [
                *lines,
                rf"% \usepackage[{options}]{{geometry}}",
                f"% The widest table is {wide}: leave columns out for one.",
            ]
    width, options = _SHEETS[-1]
    return [
        *lines,
        rf"% \usepackage[{options}]{{geometry}}",
        f"% The widest table is {wide}, this one {width} pt: leave columns out, or set it in \\tiny.",
    ]


def _width(table: Table) -> int:
    """Width of a table in points, rather too large."""
    texts = [[*column.lines, *(row[place].text for row in table.rows)] for place, column in enumerate(table.columns)]
    return round(sum(_CHARACTER * max(map(len, column)) + _GAP for column in texts))


def _small_print(report: Document) -> list[str]:
    lines = [*report.statuses, *report.legend, *(f"{topic}: {text}" for topic, text in report.footer)]
    return [r"{\footnotesize\raggedright", *(rf"  {escape(line)}\par" for line in lines), "}"] if lines else []


def _pages(table: Table, caption: str) -> list[str]:
    """A `table` environment for each page of the table. A page begins with a row that names its point."""
    starts, height = [0], 0.0
    for number, row in enumerate(table.rows):
        if height >= _ROWS and row[0].text:
            starts.append(number)
            height = 0.0
        height += 1.5 if number in table.breaks else 1.0
    captions = [caption, *[escape(f"{table.title}, continued.")] * (len(starts) - 1)]
    ends = [*starts[1:], len(table.rows)]
    return [_table(table, range(*rows), words) for *rows, words in zip(starts, ends, captions, strict=True)]


def _table(table: Table, rows: range, caption: str) -> str:
    spec = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        r"  \centering\small\setlength{\tabcolsep}{4pt}",
        rf"  \caption{{{caption}}}",
        rf"  \begin{{tabular}}{{{spec}}}",
        r"    \toprule",
        "    " + " & ".join(map(_heading, table.columns)) + r" \\",
        r"    \midrule",
    ]
    for number in rows:
        lines.append("    " + " & ".join(map(_cell, table.rows[number])) + r" \\")
        if number in table.breaks and number + 1 in rows:
            lines.append(r"    \addlinespace")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"])


def _heading(column: Column[object]) -> str:
    """The lines of a heading, one above the other."""
    lines = [_guarded(escape(line)) for line in column.lines]
    if len(lines) == 1:
        return lines[0]
    stacked = r"\\".join(lines)
    return rf"\shortstack[{column.align[0]}]{{{stacked}}}"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return rf"\textbf{{{text}}}" if cell.emphasis == "best" else _guarded(text)


def _guarded(text: str) -> str:
    r"""The text, guarded so that a command in front of it, such as `\\`, does not read its beginning as an argument."""
    return f"{{}}{text}" if text.startswith(("[", "*")) else text
