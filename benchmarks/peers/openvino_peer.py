"""OpenVINO GenAI, which reads GGUF files itself: prompt lookup and a draft model. A process has one mode."""

import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import NUM_SPECULATIVE_TOKENS, Answer, Request, Stopwatch, serve


class Ticks(openvino_genai.StreamerBase):
    """Tells the stopwatch of each pass's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stopwatch = Stopwatch()

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        self.stopwatch.tick(len(token) if isinstance(token, list) else 1)
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def openvino_files(model: Path) -> Path:
    """The directory of OpenVINO's own files of a GGUF model, which it takes for a draft model alone. It writes them,
    with the weights as they are, beside the GGUF file that it reads, so it is shown that one in a place of ours."""
    folder = Path(__file__).resolve().parents[2] / "build" / "peers" / "models" / f"{model.stem}-openvino"
    if not (folder / "openvino_model.xml").exists():
        unfinished = folder.with_name(f".{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        (unfinished / model.name).symlink_to(model.resolve())
        openvino_genai.LLMPipeline(unfinished / model.name, "CPU", enable_save_ov_model=True)
        unfinished.rename(folder)
    return folder


def load(arguments: Namespace) -> tuple[str, Callable[[Request], Answer]]:
    (mode,) = arguments.modes
    cpu: dict[str, Any] = {"INFERENCE_NUM_THREADS": arguments.threads}
    options: dict[str, Any] = {}
    drafting: dict[str, int] = {}
    if mode == "ngram":
        options["prompt_lookup"] = True
        drafting = {"num_assistant_tokens": NUM_SPECULATIVE_TOKENS, "max_ngram_size": 3}
    elif mode == "draft_model":
        options["draft_model"] = openvino_genai.draft_model(openvino_files(Path(arguments.draft_model)), "CPU", **cpu)
        drafting = {"num_assistant_tokens": NUM_SPECULATIVE_TOKENS}
    pipeline = openvino_genai.LLMPipeline(arguments.model, "CPU", **cpu, **options)

    def answer(request: Request) -> Answer:
        config = openvino_genai.GenerationConfig(
            do_sample=False,
            max_new_tokens=request.max_tokens,
            stop_token_ids=set(request.eos),
            ignore_eos=not request.eos,
            **drafting,
        )
        prompt = np.array([request.prompt], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(np.ones_like(prompt)))
        streamer = Ticks()
        (tokens,) = pipeline.generate(inputs, config, streamer).tokens
        return streamer.stopwatch.answer(tokens, request.eos)

    return openvino_genai.get_version(), answer


if __name__ == "__main__":
    serve(load)
