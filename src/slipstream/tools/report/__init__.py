"""Stored results as a page to look at, or as a document: the same words and tables, with plots on the page."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slipstream.tools.report.costs import kernels_section, pass_section
from slipstream.tools.report.drafters import batch_section, generate_section
from slipstream.tools.report.load import load_section
from slipstream.tools.report.parts import GAIN, LOSS, NOTHING, Cell, Finding, Section, Table, counted, listed, yes_or_no
from slipstream.tools.report.peers import peers_section
from slipstream.tools.report.plots import marker_svg
from slipstream.tools.report.records import Result, read_results

__all__ = ["headline", "html_page", "markdown_page", "read_results"]

TITLE = "Slipstream: results"
LEGEND = "▲ faster than plain decoding, ▼ slower; within 2% it is neither. Every speed-up is a ratio within one run."

SECTIONS: dict[str, Callable[[Result], Section]] = {
    "generate": generate_section,
    "batch": batch_section,
    "peers": peers_section,
    "pass": pass_section,
    "kernels": kernels_section,
    "load": load_section,
}


def headline(results: Sequence[Result]) -> list[str]:
    """What the results say, in words, without the tables."""
    sections = [SECTIONS[result.kind](result) for result in results]
    return [
        *(finding.text for finding in _verdict(results, sections)),
        *(" ".join([f"{part.title}.", *(finding.text for finding in part.findings)]) for part in sections),
    ]


def html_page(results: Sequence[Result]) -> str:
    """One page that needs nothing else: no network, no scripts, no fonts."""
    from jinja2 import Environment, StrictUndefined  # 50 ms that other commands needn't pay

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    sections = [SECTIONS[result.kind](result) for result in results]
    return template.render(
        title=TITLE,
        legend=LEGEND,
        verdict=_verdict(results, sections),
        environments=_environments(results),
        sections=sections,
        marker_svg=marker_svg,
    )


def markdown_page(results: Sequence[Result]) -> str:
    """The words and tables as Markdown, with the command for each."""
    lines = [
        f"# {TITLE}",
        "",
        "Made by `make results` from the records in `benchmarks/results/`: change nothing here by hand.",
        "",
        *(f"- {_escaped(line)}" for line in headline(results)),
        "",
        LEGEND,
        "",
        "## Where and when",
        "",
        *_table(_environments(results)),
    ]
    for part in (SECTIONS[result.kind](result) for result in results):
        lines += ["", f"## {_escaped(part.title)}", ""]
        lines += [f"{_escaped(part.file)}: {_escaped(part.settings)}. Measured by", "", f"    {_line(part.command)}"]
        for block in part.blocks:
            lines += ["", f"### {_escaped(block.title)}", ""]
            if block.text:
                lines += [_escaped(block.text), ""]
            lines += _table(block.table)
    return "\n".join(lines) + "\n"


def _verdict(results: Sequence[Result], sections: Sequence[Section]) -> list[Finding]:
    """What holds for all: is the output identical, and was the machine quiet?"""
    found = []
    verdicts = [verdict for part in sections for verdict in part.verdicts]
    different = list(dict.fromkeys(where for where, identical in verdicts if not identical))
    if different:
        found.append(Finding(f"NOT identical to plain decoding: {listed(different)}.", LOSS))
    elif verdicts:
        words = "Every output of Slipstream's drafters is identical, token for token, to plain decoding's."
        found.append(Finding(words, GAIN))
    for result in results:
        if result.data["environment"]["quiet"] is False:
            warnings = result.data["environment"]["warnings"] or ["the machine was busy with something else"]
            found.append(Finding(f"Distrust the speeds in {result.file}: {'; '.join(warnings)}.", LOSS))
    return found


def _environments(results: Iterable[Result]) -> Table:
    """Where and with what each file was measured."""
    header = ["File", "Machine", "Software", "Commit", "Date", "Quiet"]
    rows = []
    for result in results:
        where = result.data["environment"]
        machine = [where["processor"], where["isa"], counted(where["threads"], "thread"), where["system"]]
        bandwidth = where["read_bandwidth_gbps"]
        if bandwidth is not None:
            machine.append(f"read bandwidth {bandwidth['before']:.1f} GB/s before, {bandwidth['after']:.1f} after")
        software = [f"{name} {where[name]}" for name in ("slipstream", "python", "numpy", "tokenizers") if where[name]]
        rows.append(
            [
                Cell(result.file),
                Cell(", ".join(machine)),
                Cell(", ".join(software)),
                Cell(where["commit"] or NOTHING),
                Cell((where["date"] or NOTHING).replace("T", " ").replace("+00:00", " UTC")),
                yes_or_no(where["quiet"]),
            ]
        )
    return Table(header, rows, keys=len(header))


def _table(table: Table) -> list[str]:
    columns = ["---" if index < table.keys else "--:" for index in range(len(table.header))]
    header = [_escaped(name) for name in table.header]
    rows = [[_escaped(cell.text) for cell in row] for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in (header, columns, *rows)]


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    """A file's text as one line that Markdown takes literally; an underscore within a word is no mark."""
    return re.sub(r"[\\`*\[\]<>|&#~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", _line(text))
