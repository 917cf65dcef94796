"""The tokenizer of a GGUF file, rebuilt from its metadata so that it encodes as the original does."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from slipstream.errors import ModelError
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.config import ModelConfig
from slipstream.models.encoders import HuggingFaceEncoder, SentencePieceEncoder
from slipstream.models.end_tokens import WELL_KNOWN
from slipstream.models.tokenizer import Tokenizer, add_around

__all__ = ["tokenizer_from_gguf"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

# What begins a turn or a text; what ends one is in end_tokens.
_WELL_KNOWN_STARTS = (
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<bos>",
    "<s>",
    "[INST]",
    "[/INST]",
)
_CONTROL_SHAPE = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>").fullmatch

# How the published tokenizers split text before merging (facts from their tokenizer.json files).
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_LLAMA3_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN_PATTERN = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Splits by pattern, then writes each byte as a character."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


class _Splitting(NamedTuple):
    """What tokenizer.ggml.pre stands for."""

    make: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False  # text is brought into normal form C first
    ignore_merges: bool = False  # a word that is a token is taken whole, whether or not merges lead there
    adds_bos: bool = False  # unless the file says otherwise


_LLAMA3 = _Splitting(lambda: _split(_LLAMA3_PATTERN), ignore_merges=True, adds_bos=True)
_SPLITTINGS = {
    "gpt-2": _Splitting(_gpt2),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _Splitting(lambda: _split(_QWEN2_PATTERN), nfc=True),
    "smollm": _Splitting(_smollm),
    "tekken": _Splitting(lambda: _split(_TEKKEN_PATTERN), ignore_merges=True, adds_bos=True),
}
# SmolLM3 has Llama 3's tokenizer without BOS. Its files bear the name of another such model, whose own may differ.
_SMOLLM3_SPLITTINGS = _SPLITTINGS | {"smaug-bpe": _LLAMA3._replace(adds_bos=False)}


def tokenizer_from_gguf(metadata: Mapping[str, Any], config: ModelConfig) -> Tokenizer:
    """Raises ModelError, by name, for a kind of tokenizer that can't be rebuilt exactly."""
    return _Rebuilder(metadata, config).tokenizer()


class _Rebuilder:
    def __init__(self, metadata: Mapping[str, Any], config: ModelConfig) -> None:
        self.metadata = metadata
        self.config = config
        self.strings = self._strings("tokens")
        self.types = self._list("token_type", int)
        if len(self.types) != len(self.strings):
            raise ModelError(f"the tokenizer has {len(self.strings)} tokens and {len(self.types)} token types")
        if len(self.strings) > config.vocab_size:
            raise ModelError(
                f"the tokenizer has {len(self.strings)} tokens, more than the embedding's {config.vocab_size} rows: "
                f"they don't belong together"
            )
        # Padding up to a round number is written as [PAD123]: no tokens of the original.
        self.vocabulary = {
            string: token_id
            for token_id, (string, kind) in enumerate(zip(self.strings, self.types, strict=True))
            if kind != _UNUSED or string != f"[PAD{token_id}]"
        }
        if len(set(self.strings)) < len(self.strings):
            repeated = next(string for string, count in Counter(self.strings).items() if count > 1)
            raise ModelError(f"token {repeated!r:.40} occurs twice in the tokenizer: the file is damaged")

    def _list(self, name: str, kind: type) -> list[Any]:
        values = self.metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or not set(map(type, values)) <= {kind}:
            raise ModelError(
                f"GGUF metadata has no proper list tokenizer.ggml.{name}: the file has no usable tokenizer"
            )
        return values

    def _strings(self, name: str) -> list[str]:
        try:
            return [value.decode("utf-8") for value in self._list(name, bytes)]
        except UnicodeDecodeError as error:
            raise ModelError(f"tokenizer.ggml.{name} has {error.object!r:.40}, which isn't valid UTF-8") from None

    def _flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise ModelError(f"GGUF metadata: tokenizer.ggml.{name} = {value!r:.40} should be true or false")
        return value

    def _string_of(self, role: str) -> str | None:
        token_id = self.metadata.get(f"tokenizer.ggml.{role}_token_id")
        return self.strings[token_id] if isinstance(token_id, int) and 0 <= token_id < len(self.strings) else None

    def tokenizer(self) -> Tokenizer:
        kind = self.metadata.get("tokenizer.ggml.model")
        if kind not in ("gpt2", "llama"):
            raise ModelError(
                f"tokenizer.ggml.model = {kind!r:.40}: this kind of tokenizer isn't supported; gpt2 and llama are"
            )
        template = self.metadata.get("tokenizer.chat_template")
        names = {f"{role}_token": self._string_of(role) for role in ("bos", "eos")}
        merges = self._merges() if kind == "gpt2" else []
        mistyped = self._mistyped_controls(template, {left + right for left, right in merges})
        for token_id in mistyped:
            self.types[token_id] = _CONTROL
        return Tokenizer(
            self._byte_level(merges) if kind == "gpt2" else self._sentence_piece(),
            self.vocabulary,
            bos_token_id=self.config.bos_token_id,
            eos_token_ids=self.config.eos_token_ids,
            chat_template=None if template is None else ChatTemplate(template, names),
            remarks=[_remark([self.strings[token_id] for token_id in mistyped])] if mistyped else [],
        )

    def _mistyped_controls(self, template: object, merged: Set[str]) -> list[int]:
        """The tokens that the file calls text, or unused, and that are control tokens by their well-known names, or by
        what the chat template writes. No token that merges lead to is one: it is a piece of text."""
        written = template if isinstance(template, str) else ""
        return [
            token_id
            for string, token_id in self.vocabulary.items()
            if self.types[token_id] in (_NORMAL, _UNUSED)
            and string not in merged
            and (string in WELL_KNOWN or string in _WELL_KNOWN_STARTS or (_CONTROL_SHAPE(string) and string in written))
        ]

    def _around(self, adds_bos: bool) -> tuple[int | None, int | None]:
        """The tokens that are put before and after every text. adds_bos: whether BOS is, unless the file says so."""
        bos = self.config.bos_token_id if self._flag("add_bos_token", adds_bos) else None
        eos = self.metadata.get("tokenizer.ggml.eos_token_id") if self._flag("add_eos_token", False) else None
        return bos, eos

    def _merges(self) -> list[tuple[str, str]]:
        merges = [merge.split(" ") for merge in self._strings("merges")]
        if wrong := [merge for merge in merges if len(merge) != 2]:
            raise ModelError(f"merge {' '.join(wrong[0])!r:.40} of the tokenizer isn't a pair: the file is damaged")
        return [(left, right) for left, right in merges]

    def _byte_level(self, merges: list[tuple[str, str]]) -> HuggingFaceEncoder:
        name = self.metadata.get("tokenizer.ggml.pre")
        splittings = _SMOLLM3_SPLITTINGS if self.config.architecture == "smollm3" else _SPLITTINGS
        if name not in splittings:
            raise ModelError(
                f"tokenizer.ggml.pre = {name!r:.40}: how it splits text isn't known, so it can't be rebuilt "
                f"exactly; known are {', '.join(splittings)}: use the model's safetensors directory instead"
            )
        splitting = splittings[name]
        try:
            backend = tokenizers.Tokenizer(
                models.BPE(vocab=self.vocabulary, merges=merges, ignore_merges=splitting.ignore_merges)
            )
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(f"the tokenizer's merges don't fit its tokens: {str(error)!r:.200}") from None
        if splitting.nfc:
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = splitting.make()
        backend.decoder = decoders.ByteLevel()
        # Control and user-defined tokens are found in the text before anything else is done with it.
        for kinds, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
            added = [
                AddedToken(self.strings[token_id], special=special, normalized=False)
                for token_id, kind in enumerate(self.types)
                if kind in kinds
            ]
            backend.add_tokens(added)
        bos, eos = self._around(splitting.adds_bos)
        if bos is not None or eos is not None:
            add_around(backend, bos, eos)
        return HuggingFaceEncoder(backend)

    def _sentence_piece(self) -> SentencePieceEncoder:
        scores = self._list("scores", float)
        if len(scores) != len(self.strings):
            raise ModelError(f"the tokenizer has {len(self.strings)} tokens and {len(scores)} scores")
        made_of_pieces = [
            score
            for string, score, kind in zip(self.strings, scores, self.types, strict=True)
            if kind == _NORMAL and len(string) > 1
        ]
        if len(made_of_pieces) > 1 and len(set(made_of_pieces)) == 1:
            raise ModelError(
                f"all tokens of the tokenizer have the score {made_of_pieces[0]:g}: the file has lost the order in "
                f"which the original merges them: use another GGUF file or the model's safetensors directory"
            )
        has_charsmap = "tokenizer.ggml.precompiled_charsmap" in self.metadata
        charsmap = self._list("precompiled_charsmap", int) if has_charsmap else []
        bos, eos = self._around(adds_bos=True)
        return SentencePieceEncoder(
            list(zip(self.strings, scores, self.types, strict=True)),
            add_space_prefix=self._flag("add_space_prefix", True),
            remove_extra_whitespaces=self._flag("remove_extra_whitespaces", False),
            precompiled_charsmap=bytes(value & 0xFF for value in charsmap),
            before=[] if bos is None else [bos],
            after=[] if eos is None else [eos],
        )


def _remark(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"the file calls {shown} text; read as control tokens, which the names and the chat template say they are"
