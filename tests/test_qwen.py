"""The Qwen2.5-Coder pair, where benchmarks/fetch_models.py has put it: K-quants for real, and a real draft model."""

import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream import Engine, Request, SamplingParams
from slipstream.files import cache_directory
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.decoder import Decoder, Segment

pytestmark = pytest.mark.qwen

CODE = """def has_close_pair(numbers, threshold):
    for index, first in enumerate(numbers):
        for other, second in enumerate(numbers):
            if index != other and abs(first - second) < threshold:
                return True
    return False
"""
CHATS = [
    [{"role": "user", "content": f"Add type hints and a docstring to this function:\n\n{CODE}"}],
    [{"role": "user", "content": "What is a hash table? Two sentences."}],
]


@pytest.fixture(scope="module")
def pair() -> dict[str, Path]:
    paths = {size: cache_directory() / f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf" for size in ("1.5b", "0.5b")}
    for path in paths.values():
        if not path.exists():
            pytest.skip(f"{path.name} isn't here: {Path(sys.executable).name} benchmarks/fetch_models.py fetches it")
    return paths


@pytest.fixture(scope="module")
def engine(pair: dict[str, Path]) -> Engine:
    return Engine.load(pair["1.5b"], draft_model=pair["0.5b"])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_identical_and_fewer_passes(engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=80)
    for chat in CHATS:
        plain = engine.generate(chat, params, drafter="null")
        for completion in engine.generate_batch([Request(chat, params, name) for name in engine.drafter_names]):
            assert completion.token_ids == plain.token_ids
    drafted = engine.generate(CHATS[0], params, drafter="draft_model").speculation
    assert drafted.acceptance_rate > 0.5
    assert engine.generate(CHATS[0], params, drafter="ngram").speculation.accepted > 0


@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_own_precision_against_fp32(pair: dict[str, Path], size: str) -> None:
    checkpoint = open_checkpoint(pair[size])
    tokens = checkpoint.tokenizer().encode(CODE)
    own, exact = (
        decoder.forward([Segment.chain(decoder.new_cache(len(tokens)), tokens, num_logits=len(tokens))])
        for decoder in (Decoder(checkpoint, "auto"), Decoder(checkpoint, "f32"))
    )
    assert np.sqrt(np.mean((own - exact) ** 2)) / exact.std() < 0.04
    assert np.mean(own.argmax(axis=1) == exact.argmax(axis=1)) > 0.9
