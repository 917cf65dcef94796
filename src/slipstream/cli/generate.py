"""slipstream generate: answer one prompt."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from slipstream import Completion, Engine, Request, SamplingParams, TokenLogprob
from slipstream.cli.options import (
    EngineOptions,
    engine_options,
    examples,
    json_option,
    raw_option,
    sampling_options,
    system_option,
    text_value,
)
from slipstream.cli.prompts import read_standard_input
from slipstream.cli.render import figures, legend, note, stream, visible
from slipstream.errors import OptionError
from slipstream.tools.prompt_files import as_prompt

__all__ = ["completion_record", "generate"]


@click.command(
    short_help="Answer one prompt.",
    epilog=examples(
        'slipstream generate "Name the primary colours."',
        'slipstream generate "Count from 1 to 20." --show-drafts --max-tokens 80',
        'slipstream generate "Tell me a joke." --temperature 0.8 --top-p 0.95 --seed 7 --json',
        'echo "def add(a, b):" | slipstream generate - --raw --max-tokens 40 --stop "def "',
        """slipstream generate "Is the sky blue?" --regex "(yes|no)" --logprobs 3 --json""",
    ),
)
@click.argument("prompt", callback=text_value)
@system_option
@raw_option
@click.option(
    "--show-drafts",
    is_flag=True,
    help="Colour the text by who drafted it; without colour, mark {+accepted+} and [-rejected-].",
)
@json_option
@sampling_options(max_tokens=512, reporting=True)
@engine_options(memory=True)
def generate(
    prompt: str,
    system: str | None,
    raw: bool,
    show_drafts: bool,
    as_json: bool,
    params: SamplingParams,
    engine_options: EngineOptions,
) -> None:
    """Answer PROMPT, or what comes on standard input where PROMPT is a dash.

    The answer goes to standard output as it is made. Into a file or a pipe it goes alone and as plain text; on a
    terminal a line of figures follows. Ctrl-C ends it and keeps what is there. --json prints one object an answer,
    each on a line of its own.
    """
    if show_drafts and as_json:
        raise OptionError("--show-drafts is for reading and --json for scripts: use one of the two")
    if not as_json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise OptionError("--logprobs and --prompt-logprobs are for scripts: add --json")
    if show_drafts and params.n > 1:
        raise OptionError(f"--show-drafts shows one answer and --n is {params.n}: use one of the two")
    request = as_prompt(read_standard_input() if prompt == "-" else prompt, system=system, raw=raw)
    engine = engine_options.load()
    if as_json:
        for completion in engine.generate_batch([Request(request, params)]):
            click.echo(json.dumps(completion_record(engine, completion, params)))
        return
    if params.n > 1:
        for completion in engine.generate_batch([Request(request, params)]):
            text = visible(completion.text) if sys.stdout.isatty() else completion.text
            click.echo(f"--- {completion.index + 1} of {params.n}\n{text}")
            _say_if_cut_off(completion, params)
        return
    _, answer = stream(engine.stream(request, params), show_drafts=show_drafts)
    if answer is None:
        raise click.Abort
    _say_if_cut_off(answer, params)
    if show_drafts:
        note(legend(Console()))
    note(figures(answer, engine))


def _say_if_cut_off(completion: Completion, params: SamplingParams) -> None:
    """What a grammar was asked for is read by programs: they are told, on standard error, that some is missing."""
    if params.has_grammar and completion.finish_reason == "length":
        click.echo("The answer was cut off and isn't complete: allow more tokens with --max-tokens.", err=True)


def completion_record(engine: Engine, completion: Completion, params: SamplingParams) -> dict[str, Any]:
    """What --json prints."""
    usage, stats, timing = completion.usage, completion.speculation, completion.timing
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "index": completion.index,
        "logprobs": _logprobs(engine, completion.logprobs),
        "prompt_logprobs": _logprobs(engine, completion.prompt_logprobs),
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
        "speculation": {
            "drafter": stats.drafter,
            "verification": stats.verification,
            "num_speculative_tokens": stats.num_speculative_tokens,
            "tuned": engine.tuned is not None,
            "target_passes": stats.target_passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "rejected": stats.rejected,
            "unverified": stats.unverified,
            "mean_accepted_length": stats.mean_accepted_length,
            "acceptance_rate": stats.acceptance_rate,
        },
        "timing": {
            "load_seconds": engine.load_seconds,
            "prefill_seconds": timing.prefill_seconds,
            "decode_seconds": timing.decode_seconds,
            "tokens_per_second": timing.tokens_per_second,
        },
        "params": asdict(params),  # all that were in force: none comes from the model's generation_config
    }


def _logprobs(engine: Engine, entries: Sequence[TokenLogprob | None] | None) -> list[dict[str, Any] | None] | None:
    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token_id, "text": engine.tokenizer.decode([token_id]), "logprob": logprob}

    if entries is None:
        return None
    return [
        None if entry is None else {**one(entry.token_id, entry.logprob), "top": [one(*token) for token in entry.top]}
        for entry in entries
    ]
