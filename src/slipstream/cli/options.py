"""The options that commands share, each defined once, and what they become."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from slipstream import DEFAULT_MODEL, DRAFTERS, DTYPES, Engine, SamplingParams
from slipstream.cli.prompts import check_text
from slipstream.cli.render import loading
from slipstream.errors import OptionError

__all__ = [
    "EngineOptions",
    "engine_options",
    "examples",
    "json_option",
    "raw_option",
    "sampling_options",
    "system_option",
    "text_value",
]

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def examples(*lines: str) -> str:
    """The closing part of a command's help: command lines, each of which a test runs."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def text_value(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The callback of parameters that take a text: it isn't empty, and can be encoded."""
    for text in [value] if isinstance(value, str) else value or ():
        check_text(text, parameter.opts[0] if isinstance(parameter, click.Option) else "the prompt")
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")
system_option = click.option(
    "--system", metavar="TEXT", callback=text_value, help="A system message before the prompt."
)
raw_option = click.option("--raw", is_flag=True, help="Take the prompt as it is: no chat template.")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which models to load and how to run them. None leaves the choice to the engine, whose defaults the help tells."""

    model: str
    draft_model: str | None
    num_speculative_tokens: int
    threads: int | None
    dtype: str
    drafter: str | None = None

    def __post_init__(self) -> None:
        if self.drafter is not None:
            self.check_drafters("--drafter", [self.drafter])

    def check_drafters(self, option: str, drafters: Sequence[str]) -> None:
        """Raises OptionError where an option asks for drafters that don't fit the draft model given, or its absence."""
        if "draft_model" in drafters and self.draft_model is None:
            raise OptionError(f"{option} draft_model needs a draft model: name one with --draft-model")
        if "draft_model" not in drafters and self.draft_model is not None:
            raise OptionError(f"{option} {','.join(drafters)} makes no use of --draft-model: leave one of them out")

    def load(self) -> Engine:
        """The engine, loaded behind a progress bar."""
        if self.dtype == "int8":
            click.echo(
                "slipstream: note: --dtype int8 rounds the weights: this is another model than the file's", err=True
            )
        with loading() as progress:
            return Engine.load(
                self.model,
                draft_model=self.draft_model,
                dtype=self.dtype,
                threads=self.threads,
                drafter=self.drafter,
                num_speculative_tokens=self.num_speculative_tokens,
                progress=progress,
            )


_MODEL = {
    "model": click.option(
        "--model",
        metavar="MODEL",
        default=DEFAULT_MODEL,
        show_default=True,
        help="A .gguf file, a directory of safetensors, a hub id, or the default model's name.",
    ),
    "draft_model": click.option(
        "--draft-model", metavar="MODEL", help="A smaller model with the same tokenizer, for the drafter draft_model."
    ),
    "num_speculative_tokens": click.option(
        "--num-speculative-tokens",
        metavar="N",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        help="Most tokens in a draft.",
    ),
    "threads": click.option(
        "--threads",
        metavar="N",
        type=click.IntRange(min=1),
        help="Processor threads.  [default: all that this process may use]",
    ),
    "dtype": click.option(
        "--dtype", type=click.Choice(DTYPES), default="auto", show_default=True, help="Precision of the weights."
    ),
}

_DRAFTER = {
    "drafter": click.option(
        "--drafter",
        type=click.Choice(tuple(DRAFTERS)),
        help="Who guesses tokens; null is plain decoding.  [default: draft_model with --draft-model, else ngram]",
    ),
}

DEFAULTS = SamplingParams()


def _sampling(max_tokens: int) -> Mapping[str, Decorator]:
    return {
        "max_tokens": click.option(
            "--max-tokens",
            metavar="N",
            type=int,
            default=max_tokens,
            show_default=True,
            help="Most tokens to answer with.",
        ),
        "temperature": click.option(
            "--temperature",
            metavar="T",
            type=float,
            default=DEFAULTS.temperature,
            show_default=True,
            help="0 takes the likeliest token each time; higher is more varied.",
        ),
        "top_k": click.option(
            "--top-k",
            metavar="K",
            type=int,
            default=DEFAULTS.top_k,
            show_default=True,
            help="Sample among the K likeliest tokens; 0: among all.",
        ),
        "top_p": click.option(
            "--top-p",
            metavar="P",
            type=float,
            default=DEFAULTS.top_p,
            show_default=True,
            help="Sample among the likeliest tokens that reach probability P together.",
        ),
        "min_p": click.option(
            "--min-p",
            metavar="P",
            type=float,
            default=DEFAULTS.min_p,
            show_default=True,
            help="Drop tokens less likely than P times the likeliest.",
        ),
        "seed": click.option(
            "--seed", metavar="N", type=int, help="The same seed gives the same answer.  [default: drawn]"
        ),
        "stop": click.option(
            "--stop",
            metavar="TEXT",
            callback=text_value,
            multiple=True,
            help="End the answer before TEXT. May be repeated.",
        ),
    }


def engine_options(*, drafter: bool = True) -> Decorator:
    """Gives the command --model and its kin (and --drafter), as one argument `engine_options`."""
    return _gather("engine_options", EngineOptions, {**_MODEL, **(_DRAFTER if drafter else {})})


def sampling_options(*, max_tokens: int) -> Decorator:
    """Gives the command --max-tokens, --temperature and their kin, as one argument `params`."""
    return _gather("params", SamplingParams, _sampling(max_tokens))


def _gather(name: str, make: Callable[..., object], options: Mapping[str, Decorator]) -> Decorator:
    """A decorator that adds the options and hands the command what `make` builds of them, as argument `name`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def gathered(**values: Any) -> Any:
            chosen = {option: values.pop(option) for option in options}
            return command(**values, **{name: make(**chosen)})

        decorated: Command = gathered
        for option in reversed(list(options.values())):
            decorated = option(decorated)
        return decorated

    return decorate
