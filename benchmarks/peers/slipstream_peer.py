"""Slipstream itself, in the same harness as its peers. Modes are its drafters, all on one engine."""

from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import version

from protocol import PLAIN, Answer, Request, serve

from slipstream import Engine, SamplingParams


def load(arguments: Namespace) -> tuple[str, Callable[[Request], Answer]]:
    engine = Engine.load(arguments.model, draft_model=arguments.draft_model, threads=arguments.threads)

    def answer(request: Request) -> Answer:
        params = SamplingParams(
            max_tokens=request.max_tokens, stop_token_ids=tuple(request.eos), ignore_eos=not request.eos
        )
        drafter = "null" if request.mode == PLAIN else request.mode
        completion = engine.generate(request.prompt, params, drafter=drafter)
        timing, stats = completion.timing, completion.speculation
        return Answer(
            token_ids=list(completion.token_ids),
            prefill_seconds=timing.prefill_seconds,
            decode_seconds=timing.decode_seconds,
            decoded=round(timing.tokens_per_second * timing.decode_seconds),
            committed=stats.committed,
            passes=stats.target_passes,
        )

    return version("slipstream"), answer


if __name__ == "__main__":
    serve(load)
