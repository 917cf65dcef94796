"""Each weight type in its own precision against the same weights dequantised to fp32, on real text: what the integer
kernels add is the rounding of activations to 8 bits, and a packing error would show as a hundred times that."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray
from requantised import QUANTISED, Requantised

from slipstream.cli.prompts import BUILT_IN
from slipstream.models.checkpoint import Checkpoint, open_checkpoint
from slipstream.models.decoder import Decoder, Segment

TEXT = "\n\n".join(prompt.text for prompt in reversed(BUILT_IN))


def logits(checkpoint: Checkpoint, dtype: str, tokens: list[int]) -> NDArray[np.float64]:
    """(tokens, vocab)"""
    decoder = Decoder(checkpoint, dtype)
    segment = Segment.chain(decoder.new_cache(len(tokens)), tokens, num_logits=len(tokens))
    return decoder.forward([segment]).astype(np.float64)


def loss(scores: NDArray[np.float64], tokens: list[int]) -> float:
    """Mean negative log-likelihood of each token given those before it."""
    scores = scores - scores.max(axis=1, keepdims=True)
    normal = np.log(np.exp(scores).sum(axis=1))
    return float(np.mean(normal[:-1] - scores[np.arange(len(tokens) - 1), tokens[1:]]))


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Root mean square of the difference, relative to the spread of the logits."""
    return float(np.sqrt(np.mean((one - other) ** 2)) / other.std())


@pytest.mark.parametrize("kind", [name for name in QUANTISED if not name.endswith("_K")])
def test_smollm2(smollm2_path: Path, kind: str) -> None:
    checkpoint = Requantised(open_checkpoint(smollm2_path), kind)
    tokens = checkpoint.tokenizer().encode(TEXT)[:160]
    own, exact = logits(checkpoint, "auto", tokens), logits(checkpoint, "f32", tokens)
    assert 0 < distance(own, exact) < 0.05
    assert abs(loss(own, tokens) - loss(exact, tokens)) < 0.02
    assert loss(exact, tokens) < 4.5  # the text is understood: the distance was measured on a working model
    assert np.mean(own.argmax(axis=1) == exact.argmax(axis=1)) > 0.9


@pytest.mark.parametrize("kind", [name for name in QUANTISED if name.endswith("_K")])
def test_blocks_of_256(tmp_path: Path, kind: str) -> None:
    """SmolLM2's width isn't a multiple of 256; the Qwen files (tests/test_qwen.py) have these types for real."""
    folder = tiny.make(tmp_path, hidden_size=256, intermediate_size=512)
    checkpoint = Requantised(open_checkpoint(folder), kind)
    tokens = checkpoint.tokenizer().encode(TEXT)[:160]
    own, exact = logits(checkpoint, "auto", tokens), logits(checkpoint, "f32", tokens)
    assert 0 < distance(own, exact) < 0.03


def test_int8_is_close_to_the_float_model(smollm2_path: Path) -> None:
    checkpoint = Requantised(open_checkpoint(smollm2_path), "F32")
    tokens = checkpoint.tokenizer().encode(TEXT)[:160]
    assert distance(logits(checkpoint, "int8", tokens), logits(checkpoint, "f32", tokens)) < 0.06
