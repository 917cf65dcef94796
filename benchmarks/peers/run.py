"""The systems that one would otherwise pick, beside Slipstream: the same prompts, weights and tokens, greedy.

    benchmarks/peers/install.sh
    python benchmarks/fetch_models.py
    python benchmarks/peers/run.py --weights gguf --data DIR --limit 4 --out gguf.json
    python benchmarks/peers/run.py --weights bf16 --data DIR --limit 4 --limit-of transformers=2 --out bf16.json
    python benchmarks/peers/run.py --weights gguf --made-up 512 --systems slipstream,llama_cpp --out prefill.json

Every system decodes each prompt plainly and in each of its speculative modes, and these outputs are held against its
own plain ones. A plain output that begins to repeat itself is cut there, and all modes of that system are timed on what
comes before, as in `slipstream bench generate`. Modes that can be loaded together take turns prompt by prompt, else
one comes after the other. Systems keep their default settings; those that have none for the number of drafted tokens
draft 5.

DIR holds spec_bench.jsonl and human_eval.jsonl. With --made-up N, prompts are N made-up tokens, decoded plainly and
without regard to the end of sequence: the speed of prefill and decoding alone, in --limit rounds.
Exit code 1 if a mode failed.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from export_bf16 import export
from process import Load, Peer, PeerError, System
from protocol import PLAIN, Answer, Request
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream import kernels
from slipstream.cli.render import counted, speedup_text, tracking, verdict_text
from slipstream.errors import ModelError, OptionError
from slipstream.files import cache_directory
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.tokenizer import Tokenizer
from slipstream.tools.bench_generate import LOOP, SHORTEST, loop_start
from slipstream.tools.conditions import Conditions
from slipstream.tools.suites import SUITES, read_suites, spread
from slipstream.tools.tally import first_difference, rate_ratio

HERE = Path(__file__).resolve().parent
MODEL, DRAFT_MODEL = (f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf" for size in ("1.5b", "0.5b"))
LLAMA_CPP = "plain draft_model ngram_simple ngram_map_k ngram_map_k4v ngram_mod ngram_cache"


def _peer(name: str, modes: str, weights: str, together: str) -> System:
    python = HERE.parents[1] / "build" / "peers" / name / "bin" / "python"
    return System((str(python), str(HERE / f"{name}_peer.py")), tuple(modes.split()), (weights,), together)


SYSTEMS = {
    "slipstream": System(
        (sys.executable, str(HERE / "slipstream_peer.py")),
        (PLAIN, "auto", "ngram", "draft_model"),
        ("gguf", "bf16"),
        "one process",
    ),
    "llama_cpp": _peer("llama_cpp", LLAMA_CPP, "gguf", "side by side"),
    "openvino": _peer("openvino", "plain ngram draft_model", "gguf", "side by side"),
    "transformers": _peer("transformers", "plain ngram draft_model", "bf16", "one process"),
    "vllm": _peer("vllm", "plain ngram suffix draft_model", "bf16", "in turn"),
}


@dataclass(frozen=True)
class Prompt:
    category: str
    tokens: list[int]


@dataclass(frozen=True)
class Work:
    """What a system is asked to do. cut: whether outputs end where they begin to repeat themselves."""

    prompts: list[Prompt]
    max_tokens: int
    eos: list[int]
    cut: bool = True


@dataclass
class Run:
    """What one mode did; its answers by the prompts' places in the work."""

    load_seconds: float | None = None
    error: str | None = None
    answers: dict[int, Answer] = field(default_factory=dict)


class Trial:
    """One system's modes on the same prompts."""

    def __init__(self, name: str, system: System, work: Work) -> None:
        self.name = name
        self.system = system
        self.work = work
        self.version: str | None = None
        self.runs = {mode: Run() for mode in system.modes}
        self.looped: set[int] = set()
        self.too_short: set[int] = set()
        self._lengths: dict[int, int] = {}  # what all modes get as max_tokens, for each prompt that is timed

    def run(self, load: Load) -> "Trial":
        """Does the work. A mode that fails has its error recorded, and the others go on."""
        for processes in self.system.rounds():
            with ExitStack() as stack:
                peers = {mode: peer for modes in processes for mode, peer in self._start(modes, load, stack)}
                if peers:
                    for place in tracking(range(len(self.work.prompts)), f"{self.name}: {', '.join(peers)}"):
                        self._take_turns(peers, place)
        plain = self.runs[PLAIN]
        for run in self.runs.values():
            if not plain.answers and run.error is None:
                run.error = f"no plain output to compare with: {plain.error or 'all of them were too short'}"
        return self

    def record(self) -> dict[str, Any]:
        """The system's part of the result, as JSON types."""
        categories = dict.fromkeys(prompt.category for prompt in self.work.prompts)
        return {
            "version": self.version,
            "modes": {
                mode: {
                    "load_seconds": run.load_seconds,
                    "error": run.error,
                    "categories": {category: self._figures(mode, category) for category in categories},
                    "overall": self._figures(mode),
                }
                for mode, run in self.runs.items()
            },
        }

    def _start(self, modes: Sequence[str], load: Load, stack: ExitStack) -> Iterator[tuple[str, Peer]]:
        """Starts a process and lets each of its modes decode a little: what only a first pass pays for is nobody's
        time. The prompt is one read backwards, for some systems draft from what they saw in earlier requests."""
        try:
            peer = Peer(self.system, modes, load)
        except PeerError as error:
            for mode in modes:
                self.runs[mode].error = str(error)
            return
        stack.callback(peer.close)
        self.version = peer.version
        for mode in modes:
            self.runs[mode].load_seconds = peer.load_seconds
            self._ask(peer, mode, self.work.prompts[0].tokens[::-1], LOOP)
            yield mode, peer

    def _take_turns(self, peers: Mapping[str, Peer], place: int) -> None:
        """Decodes a prompt in every mode that is loaded: plainly first, the others in an order that rotates."""
        if PLAIN in peers:
            self._decode_plainly(peers[PLAIN], place)
        if place not in self._lengths:
            return
        prompt = self.work.prompts[place].tokens
        others = [mode for mode in peers if mode != PLAIN]
        for turn in range(len(others)):
            mode = others[(place + turn) % len(others)]
            answer = self._ask(peers[mode], mode, prompt, self._lengths[place])
            if answer:
                self.runs[mode].answers[place] = answer

    def _decode_plainly(self, peer: Peer, place: int) -> None:
        """Finds out how many tokens are to be timed, and times them."""
        prompt, length = self.work.prompts[place].tokens, self.work.max_tokens
        answer = self._ask(peer, PLAIN, prompt, length)
        start = loop_start(answer.token_ids) if answer and self.work.cut else None
        if start is not None:
            self.looped.add(place)
            length = start
        if answer and min(length, len(answer.token_ids)) < SHORTEST:
            self.too_short.add(place)
            return
        if start is not None:
            answer = self._ask(peer, PLAIN, prompt, length)
        if answer:
            self.runs[PLAIN].answers[place] = answer
            self._lengths[place] = length

    def _ask(self, peer: Peer, mode: str, prompt: list[int], max_tokens: int) -> Answer | None:
        """None from a mode that has failed, now or before."""
        run = self.runs[mode]
        if run.error is None:
            try:
                return peer.ask(Request(mode, prompt, max_tokens, self.work.eos))
            except PeerError as error:
                run.error = str(error)
        return None

    def _figures(self, mode: str, category: str | None = None) -> dict[str, Any]:
        """Figures of one category, or of all; those that there is nothing to take from are None."""

        def chosen(place: int) -> bool:
            return category in (None, self.work.prompts[place].category)

        plain, run = self.runs[PLAIN], self.runs[mode]
        answers = {place: answer for place, answer in run.answers.items() if chosen(place)}
        passes = [answer.passes for answer in answers.values() if answer.passes is not None]
        figures: dict[str, Any] = {
            "prompts": len(answers),
            "looped": sum(map(chosen, self.looped)),
            "too_short": sum(map(chosen, self.too_short)),
            **dict.fromkeys(("tokens_per_second", "prefill_tokens_per_second", "mean_accepted_length")),
            **dict.fromkeys(("speedup_over_own_plain", "identical", "first_difference")),
        }
        if answers:
            prompt_tokens = sum(len(self.work.prompts[place].tokens) for place in answers)
            prefill_seconds = sum(answer.prefill_seconds for answer in answers.values())
            figures["tokens_per_second"] = _rate(*answers.values())
            figures["prefill_tokens_per_second"] = rate_ratio(prompt_tokens, prefill_seconds)
            if len(passes) == len(answers):
                figures["mean_accepted_length"] = sum(answer.committed for answer in answers.values()) / sum(passes)
        if answers and mode != PLAIN:
            pairs = [(place, plain.answers[place], answer) for place, answer in answers.items()]
            figures["speedup_over_own_plain"] = statistics.median(
                rate_ratio(_rate(answer), _rate(own)) for _, own, answer in pairs
            )
            differences = [first_difference(place, own.token_ids, answer.token_ids) for place, own, answer in pairs]
            found = [difference for difference in differences if difference]
            figures["identical"] = not found
            figures["first_difference"] = asdict(found[0]) if found else None
        return figures


def _rate(*answers: Answer) -> float:
    """Decoded tokens a second, of all answers together."""
    return rate_ratio(sum(answer.decoded for answer in answers), sum(answer.decode_seconds for answer in answers))


def read_prompts(tokenizer: Tokenizer, data: Path, categories: Sequence[str], limit: int) -> list[Prompt]:
    """At most `limit` prompts of each of the suites' categories, or of the named ones, as this model's tokens."""
    suite_prompts = read_suites(list(SUITES), data, limit)
    known = dict.fromkeys(prompt.category for prompt in suite_prompts)
    for category in categories:
        if category not in known:
            raise OptionError(f"--categories has {category!r}: use some of {', '.join(known)}, with commas between")
    return [
        Prompt(found.category, tokenizer.encode_chat(found.prompt))
        for found in suite_prompts
        if not categories or found.category in categories
    ]


def made_up(tokens: int, rounds: int, vocab_size: int) -> list[Prompt]:
    """Prompts of as many tokens, each of others, so that no cache of an earlier one helps."""
    return [
        Prompt("made up", [(1000 + 104_729 * turn + 7919 * at) % vocab_size for at in range(tokens)])
        for turn in range(rounds)
    ]


def thinned(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """At most `limit` of each category's prompts, spread evenly over them."""
    chosen = []
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        of_category = [prompt for prompt in prompts if prompt.category == category]
        chosen += [of_category[place] for place in spread(len(of_category), limit)]
    return chosen


def table(result: Mapping[str, Any]) -> Table:
    """The figures over all categories, for people."""
    shown = Table(title=f"{result['model']}, {result['weights']}", title_justify="left")
    shown.add_column("System, mode", no_wrap=True)
    for heading in ("Tokens/s", "× own plain", "Same tokens", "Mean accepted length", "Prefill tokens/s"):
        shown.add_column(heading, justify="right")
    for name, system in result["systems"].items():
        prompts = system["modes"][PLAIN]["overall"]["prompts"]
        shown.add_section()
        shown.add_row(Text(f"{name}, {counted(prompts, 'prompt')}", "bold"))
        for mode, run in system["modes"].items():
            overall = run["overall"]
            ratio, identical = overall["speedup_over_own_plain"], overall["identical"]
            shown.add_row(
                f"  {mode}",
                Text("failed", "red") if run["error"] else _number(overall["tokens_per_second"], ".1f"),
                "" if ratio is None else speedup_text(ratio),
                "" if identical is None else verdict_text(identical),
                _number(overall["mean_accepted_length"], ".2f"),
                _number(overall["prefill_tokens_per_second"], ".0f"),
            )
    return shown


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the record goes, as JSON")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--data", type=Path, metavar="DIR", help="the directory of the suites' files")
    prompts.add_argument("--made-up", type=_positive, metavar="N", help="prompts of N made-up tokens")
    parser.add_argument("--weights", choices=("gguf", "bf16"), default="gguf", help="[default: gguf, as in the file]")
    parser.add_argument(
        "--systems", type=_names, default=[], metavar="A,B", help="[default: all that read the weights]"
    )
    parser.add_argument("--categories", type=_names, default=[], metavar="A,B", help="[default: all]")
    parser.add_argument("--limit", type=_positive, default=5, metavar="N", help="prompts per category [default: 5]")
    limit_of = "fewer prompts for a slow system; may be repeated"
    parser.add_argument("--limit-of", type=_limit_of, action="append", default=[], metavar="SYSTEM=N", help=limit_of)
    parser.add_argument("--max-tokens", type=_positive, default=64, metavar="N", help="[default: 64]")
    parser.add_argument("--model", type=Path, default=cache_directory() / MODEL, help=f"[default: {MODEL}]")
    parser.add_argument("--draft-model", type=Path, default=cache_directory() / DRAFT_MODEL, help="[default: the 0.5b]")
    parser.add_argument("--threads", type=_positive, default=os.cpu_count(), metavar="N", help="[default: all cores]")
    timeout = "seconds that loading, or one answer, may take [default: 1200]"
    parser.add_argument("--timeout", type=_positive, default=1200, metavar="N", help=timeout)
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it is {number}: use 1 or more")
    return number


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _limit_of(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, _positive(number)


def chosen_systems(names: Sequence[str], weights: str) -> dict[str, System]:
    """The named systems, or all that read these weights. Raises OptionError for a name that isn't one of those."""
    fit = {name: system for name, system in SYSTEMS.items() if weights in system.weights}
    for name in names:
        if name not in fit:
            raise OptionError(f"--systems has {name!r}: with --weights {weights} use some of {', '.join(fit)}")
    return {name: system for name, system in fit.items() if not names or name in names}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures, and writes the result into options.out after every system. Raises ModelError, OptionError."""
    systems = chosen_systems(options.systems, options.weights)
    limits = dict.fromkeys(systems, options.limit) | dict(options.limit_of)
    for name in limits.keys() - systems.keys():
        raise OptionError(f"--limit-of has {name!r}, which isn't run: use some of {', '.join(systems)}")
    checkpoint = open_checkpoint(options.model)
    tokenizer = checkpoint.tokenizer()
    if options.data:
        prompts = read_prompts(tokenizer, options.data, options.categories, options.limit)
        eos = sorted(tokenizer.eos_token_ids)
        work = Work(prompts, options.max_tokens, eos)
    else:
        work = Work(made_up(options.made_up, options.limit, tokenizer.vocab_size), options.max_tokens, [], cut=False)
        systems = {name: replace(system, modes=(PLAIN,)) for name, system in systems.items()}
    model, draft_model = options.model, options.draft_model
    if options.weights == "bf16":
        model, draft_model = export(model), export(draft_model)
    longest = max(len(prompt.tokens) for prompt in work.prompts) + work.max_tokens
    context = -(-(longest + 64) // 256) * 256  # with room for a draft, and round as some systems want it
    load = Load(model, draft_model, context, options.threads, options.timeout)
    kernels.set_threads(options.threads)
    conditions = Conditions.now()
    result: dict[str, Any] = {
        "kind": "peers",
        "environment": {},
        "model": checkpoint.name,
        "weights": options.weights,
        "max_tokens": options.max_tokens,
        "prompts_per_category": options.limit,
        "systems": {},
    }
    for name, system in systems.items():
        own = replace(work, prompts=thinned(work.prompts, limits[name]))
        record = Trial(name, system, own).run(load).record()
        result["systems"][name] = {"prompts_per_category": limits[name], **record}
        result["environment"] = conditions.environment()
        options.out.write_text(json.dumps(result, indent=1))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        result = run(options)
    except (ModelError, OptionError) as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(highlight=False)
    console.print(table(result))
    for warning in result["environment"]["warnings"]:
        console.print(f"Not a quiet measurement: {warning}.")
    failed = [
        f"{name}, {mode}: {run['error']}"
        for name, system in result["systems"].items()
        for mode, run in system["modes"].items()
        if run["error"]
    ]
    for line in failed:
        console.print(Text(line, "red"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
