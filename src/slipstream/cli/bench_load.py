"""slipstream bench load: what a server does when many ask at once."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from slipstream import OptionError
from slipstream.cli.options import ListOf, examples, json_option, out_option, text_value
from slipstream.cli.prompts import requests_of
from slipstream.cli.render import counted, loading, table, visible
from slipstream.files import write_whole
from slipstream.tools.prompt_files import SourcedPrompt

__all__ = ["bench_load_command"]

CONCURRENCY = (1, 2, 4, 8)
REQUESTS = 32
DURATION = 60.0


class _Finite(click.FloatRange):
    """A number in a range that is neither infinite nor nan."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        number: float = super().convert(value, parameter, context)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", parameter, context)


POSITIVE = _Finite(min=0, min_open=True)


def _seconds_option(option: str, default: float, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(option, metavar="S", type=POSITIVE, default=default, show_default=True, help=text)


@click.command(
    "load",
    short_help="A server under load.",
    epilog=examples(
        "slipstream bench load --url http://127.0.0.1:8080",
        "slipstream bench load --url http://127.0.0.1:8080 --concurrency 1,4 --requests 8 --max-tokens 32 --json",
        "slipstream bench load --url http://127.0.0.1:8080 --rate 0.5,1 --duration 30 --out load.json",
    ),
)
@click.option(
    "--url", metavar="URL", required=True, callback=text_value, help="Where the server is, such as http://host:8080."
)
@click.option(
    "--api",
    type=click.Choice(["chat", "completions"]),
    default="chat",
    show_default=True,
    help="Ask /v1/chat/completions or /v1/completions.",
)
@click.option(
    "--model", metavar="NAME", callback=text_value, help="Which model to ask.  [default: the first the server lists]"
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="OPENAI_API_KEY",
    help="The server's key; others may see it in a command line.  [default: the environment's OPENAI_API_KEY]",
)
@click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Prompts as for slipstream compare; sent in turn, over and over.  [default: a few built-in prompts]",
)
@click.option(
    "--concurrency",
    metavar="N,M",
    type=ListOf(click.IntRange(min=1)),
    help="Closed loop: clients that ask again as soon as they are answered, one level after another.  "
    "[default: 1,2,4,8 without --rate]",
)
@click.option(
    "--requests",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Requests at each level of --concurrency, of all clients together.  [default: {REQUESTS}]",
)
@click.option(
    "--rate",
    metavar="R,S",
    type=ListOf(POSITIVE),
    help="Open loop: requests a second that arrive at random, answered or not.  [default: closed loop]",
)
@click.option(
    "--duration",
    metavar="S",
    type=POSITIVE,
    help=f"Seconds for which they arrive at each level of --rate.  [default: {DURATION:g}]",
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most tokens to answer with.",
)
@click.option(
    "--temperature",
    metavar="T",
    type=_Finite(min=0),
    default=0.0,
    show_default=True,
    help="0 takes the likeliest token each time; higher is more varied.",
)
@_seconds_option("--timeout", 300.0, "Give a request up after S seconds.")
@_seconds_option("--ttft-limit", 1.0, "Goodput: most seconds to the first token.")
@_seconds_option("--itl-limit", 0.1, "Goodput: most seconds between tokens, on a request's average.")
@out_option
@json_option
def bench_load_command(
    url: str,
    api: Literal["chat", "completions"],
    model: str | None,
    api_key: str | None,
    prompts: Path | None,
    concurrency: Sequence[int] | None,
    requests: int | None,
    rate: Sequence[float] | None,
    duration: float | None,
    max_tokens: int,
    temperature: float,
    timeout: float,
    ttft_limit: float,
    itl_limit: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Put load on a server with the OpenAI API, ours or another, and measure what its users would see.

    Prompts come round again, so a server that caches them reads each only once. Ctrl-C shows what was measured until
    then.
    """
    from slipstream.tools.bench_load import ClosedLoop, Load, OpenLoop, bench_load  # httpx2 is slow to import

    if requests is not None and rate is not None and concurrency is None:
        raise OptionError("--requests is for --concurrency: with --rate, say how long by --duration")
    if duration is not None and rate is None:
        raise OptionError("--duration is for --rate: give one, or say how many by --requests")
    if concurrency is None and rate is None:
        concurrency = CONCURRENCY
    levels: list[ClosedLoop | OpenLoop] = [ClosedLoop(count, requests or REQUESTS) for count in concurrency or ()]
    levels += [OpenLoop(per_second, duration or DURATION) for per_second in rate or ()]
    conversations = requests_of(prompts, None, raw=False)
    load = Load(
        url,
        api,
        [conversation.prompt if api == "chat" else _text(conversation) for conversation in conversations],
        model=model,
        api_key=api_key,
        max_tokens=max_tokens,
        temperature=temperature,
        timeout=timeout,
        ttft_limit=ttft_limit,
        itl_limit=itl_limit,
    )
    with loading() as progress:
        result = bench_load(load, levels, progress)
    if out is not None:
        write_whole(out, f"{json.dumps(result)}\n".encode())
    if as_json:
        click.echo(json.dumps(result))
    else:
        _show(result, [level.name for level in levels])
    if result["interrupted"]:
        raise click.exceptions.Exit(130)


def _text(conversation: SourcedPrompt) -> str:
    """The text of a conversation that is a single message."""
    messages = [message for message in conversation.prompt if isinstance(message, Mapping)]
    if len(messages) != 1:
        raise OptionError(
            f"{conversation.where}: it has several messages, which --api completions can't send: use --api chat"
        )
    return str(messages[0]["content"])


def _show(result: dict[str, Any], names: Sequence[str]) -> None:
    console = Console(highlight=False, markup=False)
    levels = dict(zip(names, result["levels"], strict=False))  # fewer levels than names after Ctrl-C
    console.print(f"{visible(result['model'])} at {visible(result['url'])} ({result['api']})", soft_wrap=True)
    times = table([""], ["first token, ms", "between tokens, ms", "request, s"])
    for name, level in levels.items():
        times.add_row(
            name,
            _spread(level["time_to_first_token"], 1e3, 0),
            _spread(level["time_between_tokens"], 1e3, 1),
            _spread(level["latency"], 1, 2),
        )
    console.print(times)
    console.print("(each: 50th / 90th / 99th percentile)\n")
    rates = table([""], ["answered", "failed", "tokens/s", "requests/s", "tokens/chunk", "goodput"])
    for name, level in levels.items():
        goodput = level["goodput"]
        rates.add_row(
            name,
            str(level["completed"]),
            str(sum(level["errors"].values())),
            f"{level['output_tokens_per_second']:.1f}",
            f"{level['requests_per_second']:.2f}",
            "" if level["tokens_per_chunk"] is None else f"{level['tokens_per_chunk']:.2f}",
            f"{goodput['share']:.0%}, {goodput['requests_per_second']:.2f}/s",
        )
    console.print(rates)
    for line in _remarks(result, levels):
        console.print(visible(line), soft_wrap=True)


def _spread(percentiles: Mapping[str, float | None], factor: float, decimals: int) -> str:
    return " / ".join("-" if value is None else f"{value * factor:.{decimals}f}" for value in percentiles.values())


def _remarks(result: dict[str, Any], levels: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """What else there is to know about the figures, a line each."""
    limits = next(iter(levels.values()))["goodput"]
    yield (
        f"goodput: the requests with the first token within {limits['ttft_limit']:g} s "
        f"and {limits['itl_limit']:g} s or less between tokens"
    )
    if result["tokens_counted"] == "chunks":
        yield "the server doesn't tell how many tokens it sends: each chunk is counted as one"
    for name, level in levels.items():
        if level["errors"]:
            yield f"{name}, failed: " + ", ".join(f"{count} by {kind}" for kind, count in level["errors"].items())
    for name, level in levels.items():
        risen = [
            f"{counter} +{increase:.0f}"
            for counter, increase in (level["speculation"] or {}).items()
            if "position=" not in counter  # one for each place in a draft is for scripts
        ]
        if risen:
            yield f"{name}: {', '.join(risen)}"
    if not any(level["speculation"] for level in levels.values()):
        yield "the server publishes no counters of speculation under /metrics"
    if result["interrupted"]:
        yield f"stopped by Ctrl-C after {counted(len(levels), 'level')}, of which the last may be incomplete"
