"""What results of benchmarks/peers say: the systems that a user would otherwise pick, beside Slipstream."""

from collections.abc import Mapping

from slipstream.tools.report.parts import (
    EVEN,
    GAIN,
    LOSS,
    NOTHING,
    Block,
    Cell,
    Figures,
    Finding,
    Section,
    Table,
    command_line,
    listed,
    number,
    speedup_cell,
    tone_of,
    yes_or_no,
)
from slipstream.tools.report.plots import Dots, Value
from slipstream.tools.report.records import Result

__all__ = ["peers_section"]

OURS = "slipstream"  # among the systems
PLAIN = "plain"  # among the modes of each
NONE = {
    "prompts": None,
    "tokens_per_second": None,
    "prefill_tokens_per_second": None,
    "speedup_over_own_plain": None,
    "identical": None,
    "mean_accepted_length": None,
}
"""The figures of a mode that failed."""


def peers_section(result: Result) -> Section:
    """Every mode of every system."""
    data = result.data
    label = f"{data['model']}, {data['weights']}"
    systems: Mapping[str, Figures] = data["systems"]
    settings = f"greedy; at most {data['max_tokens']:g} tokens"
    if data["prompts_per_category"] is not None:
        settings += f"; {data['prompts_per_category']:g} prompts of each category"
    return Section(
        f"Peers: {label}",
        result.file,
        settings,
        command_line(
            "python benchmarks/peers/run.py",
            data="DIR",
            weights=data["weights"],
            limit=data["prompts_per_category"],
            max_tokens=data["max_tokens"],
            out="FILE",
        ),
        _findings(systems),
        [_side_by_side(label, systems), *_by_category(systems)],
        [
            (f"{OURS} {mode} beside its peers ({label})", overall["identical"])
            for mode, overall in _speculative(systems.get(OURS, {"modes": {}})).items()
            if overall["identical"] is not None
        ],
    )


def _side_by_side(label: str, systems: Mapping[str, Figures]) -> Block:
    header = ["System", "Version", "Mode", "Tokens/s", "Over own plain", "Same tokens as own plain"]
    header += ["Mean accepted length", "Prefill, tokens/s", "Load, s", "Prompts"]
    rows = []
    for system, figures in systems.items():
        for mode, run in figures["modes"].items():
            overall = run["overall"] or NONE
            failed = run["error"] is not None
            rows.append(
                [
                    Cell(system),
                    Cell(figures["version"] or NOTHING),
                    Cell(f"{mode}: failed: {run['error']}", LOSS) if failed else Cell(mode),
                    Cell(number(overall["tokens_per_second"], ".1f")),
                    Cell(NOTHING) if mode == PLAIN else speedup_cell(overall["speedup_over_own_plain"]),
                    Cell(NOTHING) if mode == PLAIN else yes_or_no(overall["identical"]),
                    Cell(number(overall["mean_accepted_length"], ".2f")),
                    Cell(number(overall["prefill_tokens_per_second"], ".0f")),
                    Cell(number(run["load_seconds"], ".1f")),
                    Cell(number(overall["prompts"], "g")),
                ]
            )
    plain = [_measured(figures).get(PLAIN) for figures in systems.values()]
    series = {"own plain decoding": [_value(overall) for overall in plain]}
    fastest = [
        max(_speculative(figures).values(), key=lambda overall: _rate(overall), default=None)
        for figures in systems.values()
    ]
    for identical, words in ((True, "same tokens"), (False, "other tokens"), (None, "not compared")):
        column = [_value(overall) if overall and overall["identical"] is identical else None for overall in fastest]
        if any(column):
            series[f"fastest speculative mode, {words}"] = column
    return Block(
        "Systems side by side",
        Table(header, rows, keys=3),
        "All systems got the same prompt tokens and the same weights. Tokens a second after the prefill.",
        [Dots(f"Plain and speculative decoding, {label}", "tokens/s", [*systems], series)],
    )


def _by_category(systems: Mapping[str, Figures]) -> list[Block]:
    blocks = []
    for system, figures in systems.items():
        modes = {mode: run["categories"] for mode, run in figures["modes"].items() if run["categories"]}
        categories = list(dict.fromkeys(category for groups in modes.values() for category in groups))
        rows = [
            [Cell(category), *(_rate_cell(mode, groups.get(category, NONE)) for mode, groups in modes.items())]
            for category in categories
        ]
        if rows:
            blocks.append(Block(f"{system} by category, tokens/s (over own plain)", Table(["Category", *modes], rows)))
    return blocks


def _findings(systems: Mapping[str, Figures]) -> list[Finding]:
    found = []
    best: dict[str, tuple[str, float]] = {}
    for system, figures in systems.items():
        rates = {mode: _rate(overall) for mode, overall in _measured(figures).items()}
        if rates:
            mode = max(rates, key=lambda mode: rates[mode])
            best[system] = mode, rates[mode]
    ranked = sorted(best, key=lambda system: -best[system][1])
    if ranked:
        told = listed([f"{system} {best[system][1]:.1f} ({best[system][0]})" for system in ranked])
        tone = GAIN if ranked[0] == OURS else LOSS if OURS in ranked else EVEN
        found.append(Finding(f"Tokens a second of each system's fastest mode: {told}.", tone))
    slower, other, failed = [], [], []
    for system, figures in systems.items():
        failed += [f"{system} {mode}" for mode, run in figures["modes"].items() if run["error"] is not None]
        for mode, overall in _speculative(figures).items():
            ratio = overall["speedup_over_own_plain"]
            if ratio is not None and tone_of(ratio) == LOSS:
                slower.append(f"{system} {mode} ({ratio:.2f}×)")
            if overall["identical"] is False:
                other.append(f"{system} {mode}")
    for words, which in (
        ("Slower than their own plain decoding", slower),
        ("Other tokens than their own plain decoding", other),
        ("Failed", failed),
    ):
        if which:
            found.append(Finding(f"{words}: {listed(which)}.", LOSS))
    return found


def _measured(figures: Figures) -> dict[str, Figures]:
    """The overall figures of a system's modes that have any."""
    return {
        mode: run["overall"]
        for mode, run in figures["modes"].items()
        if run["overall"] and run["overall"]["tokens_per_second"] is not None
    }


def _speculative(figures: Figures) -> dict[str, Figures]:
    return {mode: overall for mode, overall in _measured(figures).items() if mode != PLAIN}


def _rate(overall: Figures) -> float:
    rate: float = overall["tokens_per_second"]
    return rate


def _value(overall: Figures | None) -> Value | None:
    return Value(_rate(overall)) if overall else None


def _rate_cell(mode: str, figures: Figures) -> Cell:
    rate, ratio = number(figures["tokens_per_second"], ".1f"), figures["speedup_over_own_plain"]
    if mode == PLAIN or ratio is None:
        return Cell(rate)
    cell = speedup_cell(ratio)
    return cell._replace(text=f"{rate} ({cell.text})")
