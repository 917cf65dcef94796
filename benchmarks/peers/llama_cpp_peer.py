"""llama.cpp, as the package xllamacpp brings it: its server in this process. A process has one mode.

The modes are its speculative types that need no weights of their own kind, each with the settings it has by default.
"""

import json
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import xllamacpp
from protocol import Answer, Request, serve, up_to_end


def load(arguments: Namespace) -> tuple[str, Callable[[Request], Answer]]:
    (mode,) = arguments.modes
    types = xllamacpp.common_speculative_type
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    if mode == "draft_model":
        params.speculative.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = arguments.draft_model
        threads = params.speculative.draft.cpuparams, params.speculative.draft.cpuparams_batch
        for cpu in threads:
            cpu.n_threads = arguments.threads
    elif mode != "plain":
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{mode.upper()}")]
    server = xllamacpp.Server(params)

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        """Its own endpoint, over HTTP: the functions of the package speak OpenAI's, which has no token ids."""
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.listening_address}/completion", data, headers)
        ) as response:
            return json.load(response)

    def answer(request: Request) -> Answer:
        result = complete(
            {
                "prompt": request.prompt,
                "n_predict": request.max_tokens,
                "temperature": 0,
                "cache_prompt": False,
                "return_tokens": True,
                "ignore_eos": not request.eos,
            }
        )
        timings = result["timings"]
        if timings["prompt_n"] != len(request.prompt):
            raise RuntimeError(f"{len(request.prompt)} prompt tokens were asked for, {timings['prompt_n']} fed")
        committed = timings["predicted_n"]
        return Answer(
            token_ids=up_to_end(result["tokens"], request.eos),
            prefill_seconds=timings["prompt_ms"] / 1000,
            decode_seconds=timings["predicted_ms"] / 1000,
            decoded=committed - 1,
            committed=committed,
            passes=committed - timings.get("draft_n_accepted", 0),
        )

    return f"xllamacpp {version('xllamacpp')}", answer


if __name__ == "__main__":
    serve(load)
