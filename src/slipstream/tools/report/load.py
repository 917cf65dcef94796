"""What results of `slipstream bench load` say: a server under load."""

from collections.abc import Sequence

from slipstream.tools.report.parts import (
    EVEN,
    LOSS,
    Block,
    Cell,
    Figures,
    Finding,
    Section,
    Table,
    command_line,
    counted,
    milliseconds,
    number,
)
from slipstream.tools.report.plots import Lines, Plot
from slipstream.tools.report.records import Result

__all__ = ["load_section"]

PERCENTILES = ("p50", "p90", "p99")
MEASURES = {"time_to_first_token": "Time to first token", "time_between_tokens": "Time between tokens"}
MODES = {
    "closed": ("concurrency", "clients", "Clients that wait for their answers"),
    "open": ("rate", "requests a second", "Requests that don't wait for each other"),
}
"""Mode → the key of its levels, what that counts, and a heading."""


def load_section(result: Result) -> Section:
    """Levels of load, in closed and in open loop."""
    data = result.data
    server = f"{data['model']} at {data['url']}"
    found, blocks, swept = [], [], {}
    for mode, (key, unit, title) in MODES.items():
        levels = [level for level in data["levels"] if level["mode"] == mode]
        if not levels:
            continue
        swept[key] = ",".join(f"{level[key]:g}" for level in levels)
        found.append(_finding(levels, key, unit))
        limits = levels[0]["goodput"]
        text = (
            f"Limits: first token within {limits['ttft_limit']:g} s, and {limits['itl_limit']:g} s between tokens. "
            "Times are the percentiles 50, 90 and 99."
        )
        blocks.append(Block(title, _table(levels, key, unit), text, _plots(levels, key, unit, server)))
    return Section(
        f"Under load: {server}",
        result.file,
        counted(len(data["levels"]), "level"),
        command_line("slipstream bench load", url=data["url"], model=data["model"], **swept),
        found,
        blocks,
    )


def _finding(levels: Sequence[Figures], key: str, unit: str) -> Finding:
    top = max(levels, key=lambda level: level["output_tokens_per_second"])
    errors = sum(_errors(level) for level in levels)
    share = number(top["goodput"]["share"], ".0%")
    text = (
        f"At most {top['output_tokens_per_second']:.1f} tokens a second, with {top[key]:g} {unit} and {share} of the "
        f"requests within the limits; {counted(errors, 'error')} in all."
    )
    return Finding(text, LOSS if errors else EVEN)


def _table(levels: Sequence[Figures], key: str, unit: str) -> Table:
    header = [unit.capitalize(), "Tokens/s", "First token, ms: 50%", "90%", "99%"]
    header += ["Between tokens, ms: 50%", "90%", "99%", "Within limits", "Errors"]
    rows = []
    for level in levels:
        times = [level[measure][percentile] for measure in MEASURES for percentile in PERCENTILES]
        errors = _errors(level)
        rows.append(
            [
                Cell(f"{level[key]:g}"),
                Cell(f"{level['output_tokens_per_second']:.1f}"),
                *(Cell(milliseconds(seconds)) for seconds in times),
                Cell(number(level["goodput"]["share"], ".0%")),
                Cell(f"{errors:g}", LOSS if errors else EVEN),
            ]
        )
    return Table(header, rows)


def _plots(levels: Sequence[Figures], key: str, unit: str, server: str) -> list[Plot]:
    plots: list[Plot] = []
    for measure, words in MEASURES.items():
        curves = {
            percentile: [
                (level[key], level[measure][percentile] * 1e3)
                for level in levels
                if level[measure][percentile] is not None
            ]
            for percentile in PERCENTILES
        }
        plots.append(Lines(f"{words}, {server}", unit, f"{words.lower()}, ms", curves))
    rates = [(level[key], level["output_tokens_per_second"]) for level in levels]
    goodput = [(level[key], level["goodput"]["share"]) for level in levels]
    shares = [(at, share * 100) for at, share in goodput if share is not None]
    plots.append(Lines(f"Output, {server}", unit, "tokens/s", {"output": rates}))
    plots.append(Lines(f"Goodput, {server}", unit, "within limits, %", {"goodput": shares}, including=(100,)))
    return plots


def _errors(level: Figures) -> float:
    return float(sum(level["errors"].values()))
