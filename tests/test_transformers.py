"""Logits against transformers in fp32: each architecture on tiny random weights, and SmolLM2."""

from pathlib import Path

import numpy as np
import pytest

from slipstream import kernels
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.decoder import Decoder, Segment

pytestmark = pytest.mark.transformers

import tiny  # noqa: E402  (keeps the list of architectures in one place)


def logits(decoder: Decoder, tokens: list[int]) -> np.ndarray:
    """(tokens, vocab)"""
    cache = decoder.new_cache(len(tokens))
    return decoder.forward([Segment.chain(cache, tokens, num_logits=len(tokens))])


def relative_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.filterwarnings("default")
def test_tiny_models(tiny_models: dict[str, Path], architecture: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_models[architecture]
    tokens = np.random.default_rng(1).integers(0, 264, 200).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    ours = logits(Decoder(open_checkpoint(folder), "f32"), tokens)
    assert relative_distance(ours, theirs) < 1e-3
    wrong = np.roll(theirs, 1, axis=0)  # the test of the test
    assert relative_distance(wrong, theirs) > 0.05


@pytest.mark.filterwarnings("default")
def test_smollm2(smollm2_path: Path, tmp_path: Path) -> None:
    """transformers runs on the same weights, dequantised by the gguf package, not by us."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    checkpoint = open_checkpoint(smollm2_path)
    config = checkpoint.config
    tokens = checkpoint.tokenizer().encode_chat([{"role": "user", "content": "Name three rivers of Europe."}])
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rope_theta=100000.0,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=True,
        )
    )
    names = {name for name in model.state_dict() if name != "lm_head.weight"}
    state = {}
    import gguf

    for name in names:
        tensor = checkpoint.tensor(name)
        kind = gguf.GGMLQuantizationType[tensor.type]
        values = gguf.quants.dequantize(
            np.asarray(tensor.data).reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1), kind
        )
        values = values.reshape(tensor.shape)
        state[name] = torch.tensor(values if tensor.row_order is None else values[tensor.row_order])
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    ours = logits(Decoder(checkpoint, "f32"), tokens)
    assert relative_distance(ours, theirs) < 1e-3
    assert kernels.BACKEND in ("native", "reference")
