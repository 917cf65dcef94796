"""slipstream demo: plain decoding and speculation on the same prompts, live, and what came of it."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from slipstream import Completion, Engine, OptionError, SamplingParams
from slipstream.cli.options import EngineOptions, engine_options, examples
from slipstream.cli.prompts import BUILT_IN, BuiltIn
from slipstream.cli.render import (
    BUSY,
    disturbed,
    figures,
    in_colour,
    legend,
    marked,
    speedup_text,
    styled,
    times,
    verdict_text,
    visible,
)
from slipstream.tools.prompt_files import as_prompt
from slipstream.tools.tally import rate_ratio

__all__ = ["Outcome", "demo", "in_words"]

PARAMS = SamplingParams(max_tokens=160)
WIDTH = 100  # widest layout: long lines are hard to read
SECONDS_BETWEEN_FRAMES = 0.06


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt decoded both ways."""

    example: BuiltIn
    plain: Completion
    drafted: Completion

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.drafted.token_ids

    @property
    def mean_accepted_length(self) -> float:
        return self.drafted.speculation.mean_accepted_length

    @property
    def speedup(self) -> float:
        return rate_ratio(self.drafted.timing.tokens_per_second, self.plain.timing.tokens_per_second)


@click.command(
    short_help="See speculation at work on three prompts.",
    epilog=examples("slipstream demo", "slipstream demo --num-speculative-tokens 8"),
)
@engine_options()
def demo(engine_options: EngineOptions) -> None:
    """Decode three prompts plainly and with a drafter, live, and say what was gained.

    Greedy, up to 160 tokens each. Exit code 1 if the two outputs of a prompt differ, which they must not.
    """
    if engine_options.drafter == "null":
        raise OptionError("--drafter null is plain decoding, with which the demo compares: name another drafter")
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH)
    engine = replace(engine_options, drafter=engine_options.drafter or "auto").load()  # whatever was tuned
    console.print(
        Text.assemble(
            ("Slipstream", "bold"),
            f" on {visible(engine.model_name)}. A drafter guesses tokens; the model checks all guesses in one pass and "
            "keeps those that it would have written itself. So the answer stays the same, token for token.",
        )
    )
    console.print(legend(console), style="dim")
    outcomes = []
    for number, example in enumerate(BUILT_IN[:3], 1):
        console.print()
        console.print(Text(f"{number}. {example.title}", "bold cyan"))
        console.print(Text(example.text, "dim"), soft_wrap=not console.is_terminal)
        plain = _run(engine, example, "null", console)
        outcomes.append(Outcome(example, plain, _run(engine, example, engine.default_drafter, console)))
    console.print(_table(outcomes))
    console.print(in_words(outcomes))
    console.print(Text('Next: slipstream generate "…" --show-drafts, slipstream chat, slipstream compare', "dim"))
    if not all(outcome.identical for outcome in outcomes):
        raise click.exceptions.Exit(1)


def in_words(outcomes: Sequence[Outcome]) -> str:
    """What happened, gain or loss."""
    different = [outcome.example.title for outcome in outcomes if not outcome.identical]
    if different:
        return f"The outputs differ for: {'; '.join(different)}. That must not happen: please report it."
    # One token a pass can't gain: what the clock says beyond that is noise.
    gained = [outcome for outcome in outcomes if outcome.speedup > 1.02 and outcome.mean_accepted_length >= 1.05]
    lost = [outcome for outcome in outcomes if outcome.speedup < 0.98]
    even = [outcome for outcome in outcomes if outcome not in gained and outcome not in lost]
    sentences = ["Every answer is the same with and without the drafter."]
    if gained:
        sentences.append(f"It was faster for {_list(gained)}.")
    if even:
        sentences.append(f"It made no difference for {_list(even)}, where few guesses were right.")
    if lost:
        sentences.append(f"It was slower for {_list(lost)}: too few guesses were right to pay for the checking.")
    if any(disturbed(outcome.speedup, outcome.mean_accepted_length) for outcome in outcomes):
        sentences.append(BUSY)
    return " ".join(sentences)


def _list(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"“{outcome.example.title}” ({times(outcome.speedup)})" for outcome in outcomes)


def _run(engine: Engine, example: BuiltIn, drafter: str, console: Console) -> Completion:
    """Shows one answer as it is made, with its speed so far; whole, once it is complete, where no terminal is."""
    title = "plain decoding" if drafter == "null" else f"with the drafter {drafter}"
    answer, tokens, begun, shown = Text(), 0, 0.0, 0.0
    live = (
        Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        if console.is_terminal and not console.is_dumb_terminal
        else None
    )
    with live or nullcontext():
        for step in engine.stream(as_prompt(example.text), PARAMS, drafter=drafter):
            answer.append_text(styled(step) if in_colour(console) else Text(marked(step)))
            if step.completion:
                if live:
                    live.update(Panel(answer, title=title, subtitle=figures(step.completion)), refresh=True)
                else:
                    console.print(f"--- {title}", answer, f"--- {figures(step.completion)}", sep="\n", soft_wrap=True)
                return step.completion
            now = time.perf_counter()
            tokens, begun = (tokens + len(step.pieces), begun) if begun else (0, now)
            if live and now - shown > SECONDS_BETWEEN_FRAMES:
                live.update(_frame(answer, title, tokens / (now - begun) if tokens else 0.0, console), refresh=True)
                shown = now
    raise AssertionError("a stream ends with its completion")


def _frame(answer: Text, title: str, rate: float, console: Console) -> Panel:
    """The end of an unfinished answer, as much as the terminal has room for."""
    lines = answer.wrap(console, console.width - 4)
    return Panel(Text("\n").join(lines[-(console.height - 3) :]), title=title, subtitle=f"{rate:.1f} tokens/s")


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Prompt", no_wrap=True)
    headings = (
        "Tokens",
        "Passes",
        "Mean accepted\nlength",
        "Plain\ntokens/s",
        "Drafted\ntokens/s",
        "Speed-up",
        "Same\noutput",
    )
    for heading in headings:
        table.add_column(heading, justify="right", vertical="bottom")
    for outcome in outcomes:
        table.add_row(
            outcome.example.title,
            str(outcome.drafted.usage.completion_tokens),
            str(outcome.drafted.speculation.target_passes),
            f"{outcome.mean_accepted_length:.2f}",
            f"{outcome.plain.timing.tokens_per_second:.1f}",
            f"{outcome.drafted.timing.tokens_per_second:.1f}",
            speedup_text(outcome.speedup),
            verdict_text(outcome.identical),
        )
    return table
