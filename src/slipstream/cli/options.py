"""The options that commands share, each defined once, and what they become."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slipstream import DEFAULT_MODEL, DRAFTERS, DTYPES, Engine, SamplingParams
from slipstream.cli.prompts import check_text, decode
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


def _number(option: str, metavar: str, text: str) -> Decorator:
    default = getattr(DEFAULTS, option.removeprefix("--").replace("-", "_"))
    return click.option(option, metavar=metavar, type=float, default=default, show_default=True, help=text)


def _biases(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    """The callback of --logit-bias."""
    biases = {}
    for value in values:
        token, _, bias = value.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise OptionError(f"--logit-bias is {value!r}: write a token id and a number, such as 42=-100") from None
    return biases


def _text_or_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of options that take a text or, behind an @, the file that holds it."""
    if value is None or not value.startswith("@"):
        return value if value is None else check_text(value, parameter.opts[0])
    try:
        data = Path(value[1:]).read_bytes()
    except OSError as error:
        raise OptionError(
            f"{parameter.opts[0]} {value} can't be read ({error.strerror}): give the path of a file"
        ) from None
    return check_text(decode(data, value[1:]), value[1:])


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
        "typical_p": _number(
            "--typical-p", "P", "Sample among tokens of nearly average information that reach probability P together."
        ),
        "repetition_penalty": _number(
            "--repetition-penalty", "R", "Divide positive logits of tokens in prompt and answer by R, multiply others."
        ),
        "frequency_penalty": _number(
            "--frequency-penalty", "F", "Lower a token's logit by F for each time that it is in the answer."
        ),
        "presence_penalty": _number(
            "--presence-penalty", "F", "Lower the logit of each token that is in the answer by F."
        ),
        "penalty_window": click.option(
            "--penalty-window",
            metavar="N",
            type=int,
            help="Penalties look at the last N tokens.  [default: at all]",
        ),
        "no_repeat_ngram_size": click.option(
            "--no-repeat-ngram-size",
            metavar="N",
            type=int,
            default=DEFAULTS.no_repeat_ngram_size,
            show_default=True,
            help="Never repeat a run of N tokens of prompt or answer; 0: repeat freely.",
        ),
        "logit_bias": click.option(
            "--logit-bias",
            metavar="ID=BIAS",
            callback=_biases,
            multiple=True,
            help="Add BIAS (-100 to 100) to the logit of token ID. May be repeated.",
        ),
        "bad_words": click.option(
            "--bad-word",
            "bad_words",
            metavar="TEXT",
            callback=text_value,
            multiple=True,
            help="Never write TEXT, not even within a word. May be repeated.",
        ),
        "json_schema": click.option(
            "--json-schema",
            metavar="SCHEMA",
            callback=_text_or_file,
            help="Answer with JSON of this schema; @FILE reads it from a file.",
        ),
        "regex": click.option(
            "--regex",
            metavar="REGEX",
            callback=_text_or_file,
            help="Answer with a text that this regular expression matches; @FILE as above.",
        ),
        "grammar": click.option(
            "--grammar",
            metavar="GRAMMAR",
            callback=_text_or_file,
            help="Answer with a text of this grammar, in Lark's notation; @FILE as above.",
        ),
        "seed": click.option(
            "--seed", metavar="N", type=int, help="The same seed gives the same answer.  [default: drawn]"
        ),
        "verification": click.option(
            "--verification",
            type=click.Choice(["match", "rejection"]),
            default=DEFAULTS.verification,
            show_default=True,
            help="match: the same answer whatever drafts; rejection: the same distribution of answers.",
        ),
        "min_tokens": click.option(
            "--min-tokens",
            metavar="N",
            type=int,
            default=DEFAULTS.min_tokens,
            show_default=True,
            help="Fewest tokens to answer with.",
        ),
        "stop": click.option(
            "--stop",
            metavar="TEXT",
            callback=text_value,
            multiple=True,
            help="End the answer before TEXT. May be repeated.",
        ),
        "stop_token_ids": click.option(
            "--stop-token-id",
            "stop_token_ids",
            metavar="ID",
            type=int,
            multiple=True,
            help="End the answer before token ID. May be repeated.",
        ),
        "ignore_eos": click.option("--ignore-eos", is_flag=True, help="Go on past the model's end-of-sequence token."),
    }


_REPORTING: Mapping[str, Decorator] = {
    "n": click.option(
        "--n", metavar="N", type=int, default=DEFAULTS.n, show_default=True, help="Answers to give, one after another."
    ),
    "logprobs": click.option(
        "--logprobs",
        metavar="N",
        type=int,
        help="With --json: log-probabilities of each token and the N likeliest (to 20).  [default: none]",
    ),
    "logprobs_of": click.option(
        "--logprobs-of",
        type=click.Choice(["raw", "processed"]),
        default=DEFAULTS.logprobs_of,
        show_default=True,
        help="From the model's own distribution, or from the one that the options above make of it.",
    ),
    "prompt_logprobs": click.option(
        "--prompt-logprobs", metavar="N", type=int, help="The same for the prompt's tokens.  [default: none]"
    ),
    "echo": click.option("--echo", is_flag=True, help="Begin the answer with the prompt."),
}


def engine_options(*, drafter: bool = True) -> Decorator:
    """Gives the command --model and its kin (and --drafter), as one argument `engine_options`."""
    return _gather("engine_options", EngineOptions, {**_MODEL, **(_DRAFTER if drafter else {})})


def sampling_options(*, max_tokens: int, reporting: bool = False) -> Decorator:
    """Gives the command --max-tokens, --temperature and their kin (and --logprobs and its kin), as one argument
    `params`."""
    return _gather("params", SamplingParams, {**_sampling(max_tokens), **(_REPORTING if reporting else {})})


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
