"""The options that commands share, each defined once, and what they become."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from slipstream import DEFAULT_MODEL, DRAFTER_NAMES, DTYPES, Engine, SamplingParams
from slipstream.cli.render import loading, visible
from slipstream.errors import OptionError
from slipstream.tools.prompt_files import check_text, decode
from slipstream.tools.suites import SUITES

__all__ = [
    "EngineOptions",
    "ListOf",
    "data_option",
    "drafters_option",
    "engine_options",
    "examples",
    "json_option",
    "limit_option",
    "out_option",
    "prompts_option",
    "raw_option",
    "sampling_options",
    "suite_option",
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


def _drafter_names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """The callback of --drafters."""
    if value is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in value.split(",")))
    for name in names:
        if name not in DRAFTER_NAMES:
            near = "".join(f" (did you mean {close}?)" for close in get_close_matches(name, DRAFTER_NAMES, 1))
            known = ", ".join(DRAFTER_NAMES)
            raise OptionError(f"--drafters has {name!r}{near}: use some of {known}, with commas between")
    return names


drafters_option = click.option(
    "--drafters",
    metavar="A,B",
    callback=_drafter_names,
    help="Which drafters.  [default: all that work with the models given]",
)
prompts_option = click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="JSON lines with prompt, messages or turns (the first is used), a JSON list of such records or of texts, or "
    "plain text, one prompt a line.  "
    "[default: a few built-in prompts]",
)
limit_option = click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N prompts.  [default: all]"
)
suite_option = click.option(
    "--suite",
    "suites",
    metavar="SUITE",
    multiple=True,
    help=f"{', '.join(SUITES)}, or a file of prompts as compare takes. May be repeated.  "
    "[default: a few built-in prompts]",
)
data_option = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The directory with the named suites' files: "
    + ", ".join(dict.fromkeys(file for file, _ in SUITES.values()))
    + ".",
)


class ListOf(click.ParamType[tuple[Any, ...]]):
    """Values with commas between."""

    name = "list"

    def __init__(self, item: click.ParamType[Any]) -> None:
        self.item = item

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[Any, ...]:
        return tuple(self.item.convert(part.strip(), parameter, context) for part in value.split(","))


def _out_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """The callback of files to be written: what couldn't be in the end is refused before any work."""
    if value is None:
        return None
    option = parameter.opts[0]
    try:
        is_file = stat.S_ISREG(value.stat().st_mode)
    except FileNotFoundError:
        is_file = True  # to be
    except OSError as error:
        raise OptionError(f"{option} {value} can't be written ({error.strerror}): name another file") from None
    directory = value.resolve().parent
    if not directory.is_dir():
        raise OptionError(f"{option} {value}: its directory doesn't exist: make it first")
    if is_file and not os.access(directory, os.W_OK):
        raise OptionError(f"{option} {value}: nothing can be written into its directory: name another")
    return value


out_option = click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_out_file,
    help="Write the JSON into FILE as well.  [default: nowhere]",
)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which models to load and how to run them. None leaves the choice to the engine, whose defaults the help tells.

    Commands without --drafter say themselves who drafts: nothing that was tuned is theirs.
    """

    model: str
    threads: int | None
    dtype: str
    draft_model: str | None = None
    num_speculative_tokens: int | None = None
    corpus: Path | None = None
    remember: Path | None = None
    drafter: str | None = "auto"

    def __post_init__(self) -> None:
        if self.drafter not in (None, "auto"):
            self.check_drafters("--drafter", [self.drafter])
            if self.drafter != "ngram":
                for option, value in (("--corpus", self.corpus), ("--remember", self.remember)):
                    if value is not None:
                        raise OptionError(f"--drafter {self.drafter} looks nothing up: leave {option} out")

    def check_drafters(self, option: str, drafters: Sequence[str]) -> None:
        """Raises OptionError where an option asks for drafters that don't fit the draft model given, or its absence."""
        if "draft_model" in drafters and self.draft_model is None:
            raise OptionError(f"{option} draft_model needs a draft model: name one with --draft-model")
        if not {"draft_model", "auto"} & set(drafters) and self.draft_model is not None:
            raise OptionError(f"{option} {','.join(drafters)} makes no use of --draft-model: leave one of them out")

    def load_with(self, drafters: list[str] | None) -> tuple[Engine, list[str]]:
        """The engine, and the drafters that --drafters names, else all that its models are enough for."""
        if drafters is not None:
            self.check_drafters("--drafters", drafters)
        engine = self.load()
        return engine, drafters or [name for name in engine.drafter_names if name != "null"]

    def load(self) -> Engine:
        """The engine, loaded behind a progress bar."""
        if self.dtype == "int8":
            click.echo(
                "slipstream: note: --dtype int8 rounds the weights: this is another model than the file's", err=True
            )
        with loading() as progress:
            engine = Engine.load(
                self.model,
                draft_model=self.draft_model,
                dtype=self.dtype,
                threads=self.threads,
                drafter=self.drafter,
                num_speculative_tokens=self.num_speculative_tokens,
                corpus=self.corpus,
                remember=self.remember or False,
                progress=progress,
            )
        for remark in engine.remarks:
            click.echo(f"slipstream: note: {visible(remark)}", err=True)
        if self.remember is not None and engine.store is not None:
            # However the command ends: what was answered by then is kept.
            click.get_current_context().call_on_close(partial(engine.store.update, self.remember))
        return engine


_MODEL = {
    "model": click.option(
        "--model",
        metavar="MODEL",
        default=DEFAULT_MODEL,
        show_default=True,
        help="A .gguf file, a directory of safetensors, a model of the Hugging Face hub (org/name; org/name:Q8_0 or "
        "org/name/file.gguf for one of its GGUF files), or the default model's name.",
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

_DRAFT_MODEL = {
    "draft_model": click.option(
        "--draft-model",
        metavar="MODEL",
        help="A smaller model that drafts, best one with the same tokenizer; named as for --model.",
    ),
}

_DRAFT_LENGTH = {
    "num_speculative_tokens": click.option(
        "--num-speculative-tokens",
        metavar="N",
        type=click.IntRange(min=0),
        help="Most tokens in a draft.  [default: 16 for auto, which takes as many as pay; 5 for the others, for "
        "layer_skip what it was tuned to]",
    ),
    "corpus": click.option(
        "--corpus",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="A folder of texts, such as a code base, that lookup finds continuations in too.",
    ),
}

_MEMORY = {
    "remember": click.option(
        "--remember",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False, writable=True),
        callback=_out_file,
        help="Lookup also finds continuations in earlier prompts and answers, which FILE keeps.  "
        "[default: nothing is kept]",
    ),
}

_DRAFTER = {
    "drafter": click.option(
        "--drafter",
        type=click.Choice(DRAFTER_NAMES),
        help="Who guesses tokens: auto chooses at every step; null is plain decoding.  "
        "[default: what slipstream tune drafters found best, else auto]",
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


def engine_options(
    *, draft_model: bool = True, draft_length: bool = True, drafter: bool = True, memory: bool = False
) -> Decorator:
    """Gives the command --model and its kin (--draft-model, --num-speculative-tokens, --drafter, --remember), as one
    argument `engine_options`."""
    options = {
        **_MODEL,
        **(_DRAFT_MODEL if draft_model else {}),
        **(_DRAFT_LENGTH if draft_length else {}),
        **(_MEMORY if memory else {}),
        **(_DRAFTER if drafter else {}),
    }
    return _gather("engine_options", EngineOptions, options)


def sampling_options(*, max_tokens: int, reporting: bool = False) -> Decorator:
    """Gives the command --max-tokens, --temperature and their kin (and --logprobs and its kin), as one argument
    `params`."""
    return _gather("params", SamplingParams, {**_sampling(max_tokens), **(_REPORTING if reporting else {})})


def _gather(name: str, make: Callable[..., object], options: Mapping[str, Decorator]) -> Decorator:
    """A decorator that adds the options and hands the command what `make` builds of them, as argument `name`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def gathered(**values: Any) -> Any:
            chosen = {option: values.pop(option) for option in options}
            return command(**values, **{name: make(**chosen)})

        decorated: Command = gathered
        for option in reversed(list(options.values())):
            decorated = option(decorated)
        return decorated

    return decorate
