"""python model_pass.py TINY_MODELS DEFAULT_MODEL OUT: what the models compute here, as arrays in the file OUT (.npz).

TINY_MODELS is a folder with models that tiny.make wrote; "wide" among them runs with quantised weights too.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from requantised import QUANTISED, Requantised

from slipstream import Engine, SamplingParams
from slipstream.models.checkpoint import Checkpoint, open_checkpoint
from slipstream.models.decoder import Decoder, Segment
from slipstream.models.rotation import Rotations, inverse_frequencies
from slipstream.types import ROOT

PROMPT = "The cat sat on the mat. The dog sat on the mat. The"


def logits(checkpoint: Checkpoint, dtype: str) -> NDArray[np.float32]:
    """Of a prompt in one pass, of the token behind it, and of a tree of drafted ones: (rows, vocab)."""
    decoder = Decoder(checkpoint, dtype)
    tokens = checkpoint.tokenizer().encode(PROMPT)
    cache = decoder.new_cache(len(tokens) + 8)
    outputs = []
    for fed in (tokens, tokens[:1]):
        outputs.append(decoder.forward([Segment.chain(cache, fed, num_logits=len(fed))]))
        cache.keep(range(len(fed)))
    parents = np.array([ROOT, 0, 0, 1, 2], np.int32)
    tree = Segment(cache, np.array(tokens[: len(parents)], np.int32), parents, len(parents))
    return np.concatenate([*outputs, decoder.forward([tree])])


def results(tiny_models: Path, default_model: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    rotations = Rotations(inverse_frequencies(1e6, 128), 1.0).at(np.arange(20_000, dtype=np.int32))
    yield "rope, 20,000 positions", np.stack(rotations)
    for folder in sorted(tiny_models.iterdir()):
        for dtype in ("f32", "bf16", "int8"):
            yield f"{folder.name}, {dtype}", logits(open_checkpoint(folder), dtype)
        engine = Engine.load(folder)
        for temperature in (0.0, 0.9):
            params = SamplingParams(max_tokens=32, temperature=temperature, top_p=0.9, seed=1)
            tokens = engine.generate(PROMPT, params, drafter="ngram").token_ids
            yield f"{folder.name}, tokens at temperature {temperature}", np.array(tokens)
    for kind in QUANTISED:
        yield f"wide, {kind}", logits(Requantised(open_checkpoint(tiny_models / "wide"), kind), "auto")
    yield default_model.name, logits(open_checkpoint(default_model), "auto")


if __name__ == "__main__":
    np.savez(sys.argv[3], **dict(results(Path(sys.argv[1]), Path(sys.argv[2]))))
