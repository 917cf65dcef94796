"""Draws how the drafter auto follows a text that changes from novel to copied and back.

    python benchmarks/controller_trace.py --model MODEL [--draft-model MODEL] --plot trace.svg

The model is asked to explain something, to repeat a piece of code, and to explain something else. The plot shows, for
every target pass, how many tokens were drafted and how many of them accepted, and where the answer copies the prompt.
Needs the extra [plot].
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from slipstream import Engine, SamplingParams
from slipstream.cli.render import loading
from slipstream.tools.plots import check_plot_file

CODE = '''\
class Thermostat:
    """Keeps a room between two temperatures."""

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high
        self.heating = False

    def observe(self, temperature: float) -> bool:
        if temperature < self.low:
            self.heating = True
        elif temperature > self.high:
            self.heating = False
        return self.heating
'''
TASK = f"""Do three things, one after the other.
1. Explain in three sentences what hysteresis is.
2. Repeat the following code exactly, in a code block.
3. Explain in three sentences why ships float.

```python
{CODE}```"""
COPIED = 8
"""A token counts as copied within a run of so many tokens that the prompt has as well."""


@dataclass(frozen=True)
class Step:
    """One target pass."""

    drafted: int
    accepted: int
    committed: int


def main() -> None:
    options = parse()
    check_plot_file(options.plot)
    with loading() as progress:
        engine = Engine.load(options.model, draft_model=options.draft_model, dtype=options.dtype, progress=progress)
    prompt = engine.tokenizer.encode_chat([{"role": "user", "content": TASK}])
    params = SamplingParams(max_tokens=400)
    for _ in range(2):  # the first lets the estimates over all requests settle, as they have in a running server
        steps, output = [], []
        for step in engine.stream(prompt, params, drafter="auto"):
            accepted = sum(piece.origin == "draft" for piece in step.pieces)
            steps.append(Step(accepted + len(step.rejected), accepted, len(step.pieces)))
            output += [piece.token_id for piece in step.pieces]
    print(engine.tokenizer.decode(output))
    copied = in_prompt(output, prompt)
    draw(options.plot, steps, copied, f"{engine.model_name}, drafter auto")
    for name, wanted in (("copied", True), ("novel", False)):
        chosen = [step for step, share in zip(steps, shares(steps, copied), strict=True) if (share > 0.5) == wanted]
        drafted = sum(step.drafted for step in chosen) / len(chosen)
        committed = sum(step.committed for step in chosen) / len(chosen)
        print(f"{name}: {len(chosen)} passes; tokens in each: {drafted:.1f} drafted, {committed:.1f} committed")


def in_prompt(output: list[int], prompt: list[int]) -> list[bool]:
    """Whether each token of the output lies within a run of COPIED tokens that the prompt has."""
    runs = {tuple(prompt[at : at + COPIED]) for at in range(len(prompt) - COPIED + 1)}
    copied = [False] * len(output)
    for at in range(len(output) - COPIED + 1):
        if tuple(output[at : at + COPIED]) in runs:
            copied[at : at + COPIED] = [True] * COPIED
    return copied


def shares(steps: list[Step], copied: list[bool]) -> list[float]:
    """What share of each pass's tokens is copied."""
    found, at = [], 0
    for step in steps:
        found.append(sum(copied[at : at + step.committed]) / max(1, step.committed))
        at += step.committed
    return found


def draw(path: Path, steps: list[Step], copied: list[bool], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots()
    passes = range(1, len(steps) + 1)
    for at, share in zip(passes, shares(steps, copied), strict=True):
        if share > 0.5:
            axes.axvspan(at - 0.5, at + 0.5, color="C0", alpha=0.15, linewidth=0)
    accepted = [step.accepted for step in steps]
    rejected = [step.drafted - step.accepted for step in steps]
    axes.bar(passes, accepted, width=0.8, color="C2", label="drafted and accepted")
    axes.bar(passes, rejected, width=0.8, bottom=accepted, color="C3", alpha=0.6, label="drafted and rejected")
    axes.axvspan(-2, -1, color="C0", alpha=0.15, label="the answer copies the prompt")
    axes.set(xlabel="target pass", ylabel="tokens", title=title, xlim=(0, len(steps) + 1))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help="a .svg, .png or .pdf file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
