"""slipstream report: what stored results say, as a page or a document."""

import json
from pathlib import Path

import click

from slipstream.cli.options import examples, json_option
from slipstream.cli.render import visible
from slipstream.errors import OptionError
from slipstream.files import write_whole
from slipstream.tools.report import headline, html_page, markdown_page, read_results

__all__ = ["report"]

PAGES = {".html": html_page, ".md": markdown_page}


@click.command(
    short_help="Make a page of benchmark results.",
    epilog=examples("slipstream report results.json", "slipstream report results.json -o results.md"),
)
@click.argument("results", metavar="RESULTS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="Where to write it: .html is one page with plots, that needs no other file; .md has the tables.",
)
@json_option
def report(results: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Make one report of the JSON files that the benchmarks wrote (slipstream bench … --json, benchmarks/peers).

    RESULTS are one or more of them, of any kind. What they say in short is printed, too.
    """
    page = PAGES.get(output.suffix.lower())
    if page is None:
        raise OptionError(f"--output {output}: a report is written as .html or .md: name such a file")
    records = read_results(results)
    text = page(records)
    try:
        write_whole(output, text.encode("utf-8", "replace"))  # JSON can spell what no text holds, such as half a pair
    except OSError as error:
        raise OptionError(f"--output {output} can't be written ({error.strerror}): name another file") from None
    lines = headline(records)
    if as_json:
        click.echo(json.dumps({"report": str(output), "findings": lines}))
        return
    for line in (*lines, f"Written to {output}."):
        click.echo(visible(line))
