"""Tokenizers that differ, for a target and a draft model that don't share theirs."""

from collections.abc import Sequence

import tiny
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from slipstream.models.encoders import HuggingFaceEncoder
from slipstream.models.tokenizer import Tokenizer

OTHER = (" in", "he", "hi", "nd", " a", "the", "日", "😀")
"""Pieces that tiny.tokenizer() lacks, or has of other parts."""


def byte_level(pieces: Sequence[str | bytes], special: Sequence[str] = tiny.SPECIAL) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that merges each piece from left to right, its ids the other way round than tiny's."""
    spelling = {bytes([byte]): letter for letter, byte in _bytes().items()}
    merges: list[tuple[str, str]] = []
    for piece in pieces:
        data = piece.encode() if isinstance(piece, str) else piece
        letters = [spelling[data[at : at + 1]] for at in range(len(data))]
        merges += [("".join(letters[:at]), letters[at]) for at in range(1, len(letters))]
    merges = list(dict.fromkeys(merges))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    vocab = {token: number for number, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*special])
    return made


def ours(backend: tokenizers.Tokenizer, bos: str | None = None) -> Tokenizer:
    bos_token_id = None if bos is None else backend.token_to_id(bos)
    encoder = HuggingFaceEncoder(backend)
    return Tokenizer(encoder, backend.get_vocab(), bos_token_id=bos_token_id, eos_token_ids=(), chat_template=None)


def _bytes() -> dict[str, int]:
    plain = ours(tiny.tokenizer())
    return {
        string: plain.token_bytes(token)[0] for token in range(256) if (string := plain.token_string(token)) is not None
    }
