"""Times lookup behind long histories: microseconds a proposed token, and a token that is taken in.

    python benchmarks/lookup_cost.py

The history is Python's own standard library, in the default model's tokens. It grows a token at a time, as in decoding
without a hit, and after each the drafter proposes. That is the most that a token can cost: accepted ones share a call.
"""

import argparse
import statistics
import sysconfig
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slipstream import Engine, SamplingParams
from slipstream.cli.render import loading, tracking
from slipstream.drafters import DRAFTERS, History, Models
from slipstream.sampling import Sampler

STEPS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="tokens of history")
    parser.add_argument("--drafts", type=int, nargs="+", default=[5, 16], help="most tokens in a draft")
    options = parser.parse_args()
    with loading() as progress:
        engine = Engine.load(drafter="null", progress=progress)
    tokens = standard_library(engine, max(options.lengths) + STEPS)
    table = Table(
        "History", "Draft length", "µs a step", "µs a proposed token", "Proposed a step", "µs a token taken in"
    )
    runs = [(length, draft) for length in options.lengths for draft in options.drafts]
    for length, draft in tracking(runs, "Looking up"):
        table.add_row(f"{length:,}", str(draft), *measured(engine, tokens[: length + STEPS], length, draft))
    Console().print(table)


def measured(engine: Engine, tokens: list[int], length: int, draft: int) -> list[str]:
    """A row's figures. Those a step are medians; those a proposed token, all steps' time over what they proposed."""
    drafter = DRAFTERS["ngram"](Models(engine.target, engine.tokenizer))
    sampler = Sampler(SamplingParams(), seed=0, num_prompt_tokens=length)
    history = History(tokens[:length], length, len(tokens), sampler, engine.target.new_cache(1))
    started = time.perf_counter()
    state = drafter.start(history)
    drafter.propose([state], [draft])
    taking_in = (time.perf_counter() - started) / length
    seconds, proposed = [], 0
    for token in tokens[length:]:
        history.tokens.append(token)
        started = time.perf_counter()
        (found,) = drafter.propose([state], [draft])
        seconds.append(time.perf_counter() - started)
        proposed += len(found)
    figures = (statistics.median(seconds) * 1e6, sum(seconds) / proposed * 1e6, proposed / STEPS, taking_in * 1e6)
    return [f"{figure:.1f}" for figure in figures]


def standard_library(engine: Engine, count: int) -> list[int]:
    """So many tokens of its source files, one after the other by name."""
    tokens: list[int] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tokens += engine.tokenizer.spell(path.read_text(errors="replace"))
        if len(tokens) >= count:
            break
    return tokens[:count]


if __name__ == "__main__":
    main()
