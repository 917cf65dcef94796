"""transformers: assisted decoding with a draft model, and prompt lookup. All modes on one loaded model."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import transformers
from protocol import NUM_SPECULATIVE_TOKENS, Answer, Request, Stopwatch, serve
from transformers.generation.streamers import BaseStreamer


class Ticks(BaseStreamer):
    """Tells the stopwatch of each pass's tokens; the first thing that a streamer gets is the prompt."""

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()
        self.has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self.has_prompt:
            self.stopwatch.tick(value.numel())
        self.has_prompt = True

    def end(self) -> None:
        pass


def load(arguments: Namespace) -> tuple[str, Callable[[Request], Answer]]:
    torch.set_num_threads(arguments.threads)

    def model(path: str) -> Any:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        loaded.generation_config = transformers.GenerationConfig()  # a request alone says where it ends
        return loaded

    target = model(arguments.model)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "ngram": {"prompt_lookup_num_tokens": NUM_SPECULATIVE_TOKENS},
    }
    if "draft_model" in arguments.modes:
        options["draft_model"] = {"assistant_model": model(arguments.draft_model)}

    def answer(request: Request) -> Answer:
        prompt = torch.tensor([request.prompt])
        streamer = Ticks()
        output = target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.max_tokens,
            eos_token_id=request.eos or None,
            pad_token_id=0,
            streamer=streamer,
            **options[request.mode],
        )
        return streamer.stopwatch.answer(output[0, len(request.prompt) :].tolist(), request.eos)

    return transformers.__version__, answer


if __name__ == "__main__":
    serve(load)
