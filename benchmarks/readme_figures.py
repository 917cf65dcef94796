"""Draws the README's two figures, each for a light and a dark page.

    python benchmarks/readme_figures.py drafts --model TARGET.gguf --draft-model DRAFT.gguf
    python benchmarks/readme_figures.py speed-up

drafts runs `slipstream generate --show-drafts` on a code edit and keeps what it shows: docs/drafts-*.svg. speed-up
draws the records of benchmarks/results/: docs/speed-up-*.svg.
"""

import argparse
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from slipstream import Engine, SamplingParams
from slipstream.cli.prompts import BUILT_IN
from slipstream.cli.render import figures, legend, styled
from slipstream.tools.prompt_files import as_prompt

ROOT = Path(__file__).parents[1]
RECORDS = {
    "AVX-512 VNNI": "generate-q4_k_m.json",
    "AVX2": "generate-q4_k_m-avx2.json",
}
EDIT = next(prompt for prompt in BUILT_IN if prompt.title == "Comment code")
COLUMNS = 100

# Rich's own page asks a server for a font; a reader's own monospaced font does as well.
PAGE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Page:
    """Colours of a page."""

    name: str
    background: str
    foreground: str
    series: tuple[str, str]
    red: str
    green: str
    yellow: str

    def terminal(self) -> TerminalTheme:
        """A terminal on this page, in the colours that --show-drafts uses."""
        colours = [self.foreground, self.red, self.green, self.yellow] + [self.foreground] * 4
        return TerminalTheme(_rgb(self.background), _rgb(self.foreground), list(map(_rgb, colours)))


PAGES = (
    Page("light", "#ffffff", "#1f2328", ("#0969da", "#bc4c00"), "#cf222e", "#1a7f37", "#9a6700"),
    Page("dark", "#0d1117", "#e6edf3", ("#58a6ff", "#f0883e"), "#f85149", "#3fb950", "#d29922"),
)


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def draw_drafts(model: str, draft_model: str | None) -> None:
    """Answers the code edit, and keeps the coloured answer."""
    engine = Engine.load(model, draft_model=draft_model)
    for _ in range(2):  # the first lets the estimates over all requests settle, as they have in a running program
        steps = list(engine.stream(as_prompt(EDIT.text), SamplingParams(max_tokens=300)))
    completion = steps[-1].completion
    assert completion is not None
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
    question = EDIT.text.partition("\n")[0].removesuffix(":")
    console.print(Text(f'$ slipstream generate --show-drafts "{question}: …"\n', "bold"))
    console.print(Text.assemble(*map(styled, steps)))
    console.print(Text(f"\n{legend(console)}\n{figures(completion, engine)}", "dim"))
    for page in PAGES:
        svg = console.export_svg(theme=page.terminal(), title="", code_format=PAGE, clear=False)
        (ROOT / "docs" / f"drafts-{page.name}.svg").write_text(svg)


def draw_speed_up() -> None:
    """Draws, of each category of prompts, how many times as fast auto is as plain decoding."""
    import matplotlib

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "slipstream", "font.family": "sans-serif"}
    from matplotlib.figure import Figure

    records = {isa: json.loads((ROOT / "benchmarks" / "results" / file).read_text()) for isa, file in RECORDS.items()}
    first = next(iter(records.values()))
    speeds = {isa: speed_ups(record) for isa, record in records.items()}
    order = sorted(first["categories"], key=lambda category: speeds[next(iter(speeds))].get(category, 0.0))
    for page in PAGES:
        colours = {"text.color": page.foreground, "axes.labelcolor": page.foreground, "axes.edgecolor": page.foreground}
        with matplotlib.rc_context({**colours, "xtick.color": page.foreground, "ytick.color": page.foreground}):
            figure = Figure(figsize=(8, 4.6), layout="constrained", facecolor=page.background)
            axes = figure.subplots()
            axes.set_facecolor(page.background)
            for (isa, found), colour, marker in zip(speeds.items(), page.series, "os", strict=True):
                known = [category for category in order if category in found]
                places = [order.index(category) for category in known]
                axes.scatter([found[category] for category in known], places, color=colour, marker=marker, label=isa)
            axes.axvline(1, color=page.foreground, linewidth=1)
            axes.set(xscale="log", xlabel="times the speed of plain decoding")
            axes.set_xticks([0.8, 1, 1.5, 2, 3, 4], ["0.8", "1", "1.5", "2", "3", "4"])
            axes.minorticks_off()
            axes.set_yticks(range(len(order)), [category.replace("_", " ") for category in order])
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, loc="lower right")
            path = ROOT / "docs" / f"speed-up-{page.name}.svg"
            figure.savefig(path, facecolor=page.background, metadata={"Date": None})


def speed_ups(record: dict[str, Any]) -> dict[str, float]:
    """auto's median speed-up, by category; categories without a figure left out."""
    found = {name: category["auto"]["speedup"] for name, category in record["categories"].items()}
    return {name: speed_up for name, speed_up in found.items() if speed_up is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="figure", required=True)
    drafts = commands.add_parser("drafts", help="what generate --show-drafts shows of a code edit")
    drafts.add_argument("--model", required=True)
    drafts.add_argument("--draft-model")
    commands.add_parser("speed-up", help="the speed-up of each category of prompts")
    options = parser.parse_args()
    if options.figure == "drafts":
        draw_drafts(options.model, options.draft_model)
    else:
        draw_speed_up()


if __name__ == "__main__":
    main()
