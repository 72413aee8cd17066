"""A report as LaTeX tables; the document needs the package `booktabs`."""

from __future__ import annotations

from chunkbench.report.model import Cell, Document, Table

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
    '"': r"\textquotedbl{}",
    "µ": r"\ensuremath{\mu}",
}


def render(report: Document) -> str:
    """One `table` environment per table. The first has the headline in its caption and the footer below it."""
    parts = [f"% {' '.join(report.title.split())}", r"% \usepackage{booktabs}"]
    for number, table in enumerate(report.tables):
        first = number == 0
        summary = [*report.warnings, report.verdict, report.headline] if first else []
        caption = " ".join(escape(text.rstrip(".") + ".") for text in (table.title, *summary) if text)
        parts.append(_table(table, caption, _small_print(report) if first else []))
    return "\n".join(parts) + "\n"


def as_printed(report: Document) -> str:
    """The first table alone with its title as caption, as a paper prints it."""
    first = report.tables[0]
    return "\n".join([r"% \usepackage{booktabs}", _table(first, escape(f"{report.title}. {first.title}."), [])]) + "\n"


def escape(text: str) -> str:
    """The text with LaTeX's special characters escaped, without line breaks."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def _small_print(report: Document) -> list[str]:
    lines = [*report.statuses, *report.legend, *(f"{topic}: {text}" for topic, text in report.footer)]
    return [escape(line) for line in lines]


def _table(table: Table, caption: str, small_print: list[str]) -> str:
    spec = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        r"  \centering\small\setlength{\tabcolsep}{4pt}",
        rf"  \caption{{{caption}}}",
        rf"  \begin{{tabular}}{{{spec}}}",
        r"    \toprule",
        "    " + " & ".join(escape(column.name) for column in table.columns) + r" \\",
        r"    \midrule",
    ]
    for number, row in enumerate(table.rows):
        lines.append("    " + " & ".join(_cell(cell) for cell in row) + r" \\")
        if number in table.breaks:
            lines.append(r"    \addlinespace")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if small_print:
        lines += ["", r"  \footnotesize\raggedright", *(f"  {line}\\par" for line in small_print)]
    return "\n".join([*lines, r"\end{table}"])


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return rf"\textbf{{{text}}}" if cell.emphasis == "best" else text
