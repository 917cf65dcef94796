"""What results of `slipstream bench generate` and `bench batch` say: each drafter against plain decoding."""

from collections.abc import Callable, Iterable, Mapping

from slipstream.tools.report.costs import cost_block
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
    counted,
    listed,
    milliseconds,
    number,
    speedup_cell,
    tone_of,
    yes_or_no,
)
from slipstream.tools.report.plots import Dots, Lines, Value
from slipstream.tools.report.records import Result
from slipstream.tools.suites import SUITES

__all__ = ["batch_section", "generate_section"]

BUILT_IN = "built_in"  # stands for the prompts that are used without --suite

Groups = Mapping[str, Mapping[str, Figures]]
"""Category → drafter → its figures."""


def generate_section(result: Result) -> Section:
    """Every drafter by category."""
    data = result.data
    label = _label(data)
    if data["temperature"]:
        label += f", temperature {data['temperature']:g}"
    groups: Groups = {**data["categories"], "overall": data["overall"]}
    settings = [
        _models_and_suites(data),
        f"temperature {data['temperature']:g}",
        f"at most {data['max_tokens']:g} tokens",
        "all prompts" if data["limit"] is None else f"{data['limit']:g} prompts of each category",
    ]
    if data["peak_memory_bytes"] is not None:
        settings.append(f"peak memory {data['peak_memory_bytes'] / 2**30:.1f} GiB")
    return Section(
        f"Drafters: {label}",
        result.file,
        "; ".join(settings),
        command_line(
            "slipstream bench generate",
            **_options(data, data["overall"]),
            limit=data["limit"],
            max_tokens=data["max_tokens"],
            temperature=data["temperature"],
            seed=data["seed"],
        ),
        _generate_findings(data["categories"], data["overall"]),
        [
            _by_category(
                "Speed-up over plain decoding",
                "Tokens a second after the prefill, over plain decoding's on the same prompt: the median.",
                groups,
                lambda figures: speedup_cell(figures["speedup"]),
                Dots(
                    f"Speed-up, {label}",
                    "× plain decoding; shaded: slower",
                    [*groups],
                    _values(groups, "speedup"),
                    ratio=True,
                ),
            ),
            _by_category(
                "Mean accepted length",
                "Tokens that a pass of the model gives, its own included. Plain decoding has 1.",
                groups,
                lambda figures: Cell(number(figures["mean_accepted_length"], ".2f")),
                Dots(
                    f"Mean accepted length, {label}",
                    "tokens a pass",
                    [*groups],
                    _values(groups, "mean_accepted_length"),
                ),
            ),
            _acceptance(label, data["overall"]),
            cost_block(
                f"Cost of a pass, {label}",
                {"a pass": [(point["rows"], point["seconds"]) for point in data["cost_curve"]]},
                "A pass that verifies r − 1 drafted tokens has r rows.",
            ),
            _every_figure(groups),
        ],
        [
            (f"{name} on {category} ({label})", figures["identical"])
            for category, group in groups.items()
            for name, figures in group.items()
        ],
    )


def _generate_findings(categories: Groups, overall: Mapping[str, Figures]) -> list[Finding]:
    medians = {name: figures["speedup"] for name, figures in overall.items() if figures["speedup"] is not None}
    if not medians:
        return [Finding("There is nothing to compare: no prompt gave tokens enough.", LOSS)]
    ranked = sorted(medians, key=lambda name: -medians[name])
    found = []
    for tone, words in ((GAIN, "faster"), (EVEN, "no faster"), (LOSS, "SLOWER")):
        names = [f"{name} ({medians[name]:.2f}×)" for name in ranked if tone_of(medians[name]) == tone]
        if names:
            prompts = counted(max(figures["prompts"] for figures in overall.values()), "prompt")
            found.append(Finding(f"The median of {prompts} is {words} than plain decoding with {listed(names)}.", tone))
    gains, losses = [], []
    for name in ranked:
        speedups = {
            category: group[name]["speedup"]
            for category, group in categories.items()
            if name in group and group[name]["speedup"] is not None
        }
        slowest_first = sorted(speedups, key=lambda category: speedups[category])
        gains += [
            f"{name} on {category} ({speedups[category]:.2f}×)"
            for category in slowest_first[-1:]
            if tone_of(speedups[category]) == GAIN
        ]
        lost = [
            f"{category} ({speedups[category]:.2f}×, {_why(categories[category][name])})"
            for category in slowest_first
            if tone_of(speedups[category]) == LOSS
        ]
        if lost:
            losses.append(f"{name} on {listed(lost)}")
    if gains:
        found.append(Finding(f"Largest gains: {listed(gains)}.", GAIN))
    if losses:
        found.append(Finding(f"Slower than plain decoding, drafting included: {'; '.join(losses)}.", LOSS))
    elif categories:
        found.append(Finding("No drafter is slower than plain decoding in any category."))
    return found


def _why(figures: Figures) -> str:
    """What the speed-up is made of: the tokens that a pass gives, and how much longer it takes with its drafting."""
    tokens = figures["mean_accepted_length"]
    return f"{tokens:.2f} tokens a pass, for {tokens / figures['speedup']:.2f} times its time"


def _by_category(title: str, text: str, groups: Groups, show: Callable[[Figures], Cell], plot: Dots) -> Block:
    """A table of categories and drafters, each with what `show` makes of its figures."""
    rows = [
        [Cell(category), *(show(group[name]) if name in group else Cell(NOTHING) for name in plot.series)]
        for category, group in groups.items()
    ]
    return Block(title, Table(["Category", *plot.series], rows), text, [plot])


def _values(groups: Groups, measure: str) -> dict[str, list[Value | None]]:
    """A measure of each drafter, overall and so in every row of a plot."""
    return {name: [_value(group.get(name), measure) for group in groups.values()] for name in groups["overall"]}


def _value(figures: Figures | None, measure: str) -> Value | None:
    if figures is None or figures[measure] is None:
        return None
    quartiles = figures.get(f"{measure}_quartiles")
    return Value(figures[measure], (quartiles[0], quartiles[1]) if quartiles else None)


def _acceptance(label: str, overall: Mapping[str, Figures]) -> Block:
    shares = {name: figures["acceptance_by_position"] for name, figures in overall.items()}
    depth = max(map(len, shares.values()), default=0)
    rows = [
        [Cell(name), *(Cell(f"{share:.0%}") for share in own), *[Cell(NOTHING)] * (depth - len(own))]
        for name, own in shares.items()
    ]
    plot = Lines(
        f"Acceptance by position, {label}",
        "position in the draft",
        "accepted, %",
        {name: [(position, share * 100) for position, share in enumerate(own, 1)] for name, own in shares.items()},
        log_x=False,
        including=(100,),
    )
    return Block(
        "Acceptance by position",
        Table(["Drafter", *map(str, range(1, depth + 1))], rows),
        "How often the token at a position of the draft is accepted, given that the one before it was.",
        [plot],
    )


def _every_figure(groups: Groups) -> Block:
    header = ["Category", "Drafter", "Prompts", "Looped", "Too short", "Identical", "Tokens/s", "Plain, tokens/s"]
    header += ["Speed-up", "Quartiles", "With prefill", "First token, ms", "Acceptance rate"]
    rows = []
    for category, group in groups.items():
        for name, figures in group.items():
            rows.append(
                [
                    Cell(category),
                    Cell(name),
                    *(Cell(number(figures[count], "g")) for count in ("prompts", "looped", "too_short")),
                    _identical(figures),
                    Cell(number(figures["tokens_per_second"], ".1f")),
                    Cell(number(figures["plain_tokens_per_second"], ".1f")),
                    speedup_cell(figures["speedup"]),
                    _quartiles(figures),
                    speedup_cell(figures["speedup_with_prefill"]),
                    Cell(milliseconds(figures["time_to_first_token"])),
                    Cell(number(figures["acceptance_rate"], ".0%")),
                ]
            )
    return Block(
        "Every figure",
        Table(header, rows, keys=2),
        "Looped: outputs cut where they began to repeat themselves. Too short: prompts left out because that left too "
        "few tokens.",
    )


def _quartiles(figures: Figures) -> Cell:
    quartiles = figures["speedup_quartiles"]
    return Cell(f"{quartiles[0]:.2f} to {quartiles[1]:.2f}" if quartiles else NOTHING)


def _identical(figures: Figures) -> Cell:
    cell, where = yes_or_no(figures["identical"]), figures["first_difference"]
    if figures["identical"] or not where:
        return cell
    return cell._replace(text=f"NO: {', '.join(f'{key} {value}' for key, value in where.items())}")


def batch_section(result: Result) -> Section:
    """Every drafter by batch size."""
    data = result.data
    label = _label(data)
    sizes: dict[int, dict[str, Figures]] = {int(size): data["sizes"][size] for size in sorted(data["sizes"], key=int)}
    drafters = list(dict.fromkeys(name for group in sizes.values() for name in group if name != "null"))
    header = ["Batch", "Plain, tokens/s"]
    for name in drafters:
        header += [f"{name}, tokens/s", "Speed-up", "Quartiles", "With prefill", "Identical"]
    rows = []
    for size, group in sizes.items():
        row = [Cell(str(size)), Cell(number(group["null"]["tokens_per_second"], ".1f") if "null" in group else NOTHING)]
        for name in drafters:
            if name in group:
                row.append(Cell(number(group[name]["tokens_per_second"], ".1f")))
                row += [speedup_cell(group[name]["speedup"]), _quartiles(group[name])]
                row += [speedup_cell(group[name]["speedup_with_prefill"]), yes_or_no(group[name]["identical"])]
            else:
                row += [Cell(NOTHING)] * 5
        rows.append(row)
    curves = {
        name: [
            (size, group[name]["speedup"])
            for size, group in sizes.items()
            if name in group and group[name]["speedup"] is not None
        ]
        for name in drafters
    }
    found = []
    for name, curve in curves.items():
        told = ", ".join(f"{speedup:.2f}× at {size}" for size, speedup in curve)
        losing = [size for size, speedup in curve if tone_of(speedup) == LOSS]
        ending = f"slower than plain decoding at {listed(losing)}" if losing else "never slower than plain decoding"
        if curve:
            found.append(Finding(f"{name}, by requests in the batch: {told}; {ending}.", LOSS if losing else EVEN))
    plot = Lines(
        f"Speed-up by batch size, {label}",
        "requests in the batch",
        "× plain decoding",
        curves,
        guide=("plain decoding", [(size, 1) for size in sizes]),
        including=(1.25,),
    )
    return Section(
        f"Batches: {label}",
        result.file,
        f"{_models_and_suites(data)}; tokens a second of the whole batch",
        command_line(
            "slipstream bench batch",
            **_options(data, drafters),
            sizes=",".join(map(str, sizes)),
        ),
        found,
        [
            Block(
                "Speed-up by batch size",
                Table(header, rows),
                "Requests that run together share a pass, and their drafts add up to more rows.",
                [plot],
            )
        ],
        [
            (f"{name} in a batch of {size} ({label})", group[name]["identical"])
            for size, group in sizes.items()
            for name in drafters
            if name in group and group[name]["identical"] is not None
        ],
    )


def _label(data: Figures) -> str:
    parts = [data["model"], data["dtype"], data["environment"]["isa"]]
    parts += [] if data["draft_model"] else [_draft_model(data)]
    return ", ".join([*parts, *(data["suites"] if len(data["suites"]) == 1 else [])])


def _models_and_suites(data: Figures) -> str:
    return f"suites {listed(data['suites'])}; {_draft_model(data)}"


def _draft_model(data: Figures) -> str:
    return f"draft model {data['draft_model']}" if data["draft_model"] else "no draft model"


def _options(data: Figures, drafters: Iterable[str]) -> dict[str, object]:
    """The options that both commands have."""
    suites = [suite for suite in data["suites"] if suite != BUILT_IN]
    return {
        "model": data["model"],
        "draft_model": data["draft_model"],
        "num_speculative_tokens": data["num_speculative_tokens"],
        "dtype": data["dtype"],
        "suite": suites,
        "data": "DIR" if any(suite in SUITES for suite in suites) else None,
        "drafters": ",".join(drafters),
    }
