"""Output that follows a grammar: which tokens may come next, and which must.

llguidance computes the masks. A request's matcher is moved to whatever output is asked about: tokens that the two don't
share are rolled back, the others consumed. So the answer is a function of the output alone, drafters may ask about
outputs that never come to be, and nothing needs to be told what was rejected.
"""

import json
from collections.abc import Callable, Collection, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from slipstream.checks import one_line, shown
from slipstream.errors import OptionError
from slipstream.types import SamplingParams
from slipstream.vocabulary import Vocabulary

__all__ = ["Grammar", "GrammarCompiler"]

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written, unless the schema's own "x-guidance" says otherwise. Free white space would let small models
write nothing else, and leave fewer tokens that can be foreseen."""


MOST_COUNTED = 1000
"""How far beyond what is allowed the tokens that a grammar needs are counted, to say so in an error."""


class Grammar:
    """One request's grammar. All answers depend on their arguments alone; `output` is what was emitted, or may be."""

    def __init__(self, start: LLMatcher, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._start = start
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._matcher = start.deep_copy()
        self._output: list[int] = []  # what the matcher has consumed
        self._allowed: NDArray[np.bool_] | None = None  # after self._output

    def copy(self) -> "Grammar":
        """The same grammar, for another request."""
        return Grammar(self._start, self._vocab_size, self._eos_ids)

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Which tokens may follow, (vocab,). The end-of-sequence tokens are among them where the grammar may end."""
        if not self._move_to(output):
            return np.zeros(self._vocab_size, bool)
        if self._allowed is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._allowed = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
            if self._matcher.is_error():  # a dead end, or a limit on the matcher's work
                self._allowed[:] = False
        return self._allowed

    def is_whole(self, output: Sequence[int]) -> bool:
        """Whether the output follows the grammar to its end, so that nothing but an end-of-sequence token may come."""
        follows = np.flatnonzero(self.allowed(list(output))).tolist()
        return bool(follows) and self._eos_ids.issuperset(follows)

    def forced(self, output: Sequence[int]) -> list[int]:
        """Tokens that spell the text that must follow. The model may split it otherwise: they are good guesses."""
        return list(self._matcher.compute_ff_tokens()) if self._move_to(output) else []

    def count_valid(self, output: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, one after the other, the token that ends the output included."""
        return self._matcher.validate_tokens(list(tokens)) if self._move_to(output) else 0

    def _move_to(self, output: Sequence[int]) -> bool:
        """Brings the matcher behind output; False where the grammar doesn't go that far."""
        if self._matcher.is_error():  # which it would never leave
            self._matcher, self._output, self._allowed = self._start.deep_copy(), [], None
        same = _common_prefix(self._output, output)
        if same < len(self._output):
            self._matcher.rollback(len(self._output) - same)
            del self._output[same:]
            self._allowed = None
        for token in output[same:]:
            if token in self._eos_ids or not self._matcher.try_consume_tokens([token]):
                return False
            self._output.append(token)
            self._allowed = None
        return not self._matcher.is_error()


class GrammarCompiler:
    """Turns requests' grammars into matchers over one vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        control_ids: Collection[int],
        eos_ids: Collection[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        """encode: text to the tokens that spell exactly it."""
        self._vocabulary = vocabulary
        self._control_ids = control_ids
        self._eos_ids = sorted(eos_ids)
        self._encode = encode
        self._tokenizer: LLTokenizer | None = None

    def compile(self, params: SamplingParams, max_tokens: int) -> Grammar | None:
        """The grammar that a request asks for; None where it asks for none.

        Raises OptionError for one that can't be read, that no text follows, that only the empty text follows, or that
        needs more than max_tokens tokens for what every text of it begins with.
        """
        name = next((name for name in ("json_schema", "regex", "grammar") if getattr(params, name) is not None), None)
        if name is None:
            return None
        if not self._eos_ids:
            raise OptionError(f"{name} needs an end-of-sequence token, and this model has none: leave {name} out")
        value = getattr(params, name)

        def refuse(reason: str, remedy: str) -> OptionError:
            return OptionError(f"{name} is {shown(value)}: {one_line(reason, 300)}: {remedy}")

        try:
            matcher = LLMatcher(self._ll_tokenizer(), _SOURCES[name](value), log_level=0)
        except (TypeError, ValueError, RecursionError) as error:
            raise refuse(str(error), f"give a valid {name}") from None
        if matcher.is_error():
            raise refuse(_first_reason(matcher.get_error()), f"give a valid {name}")
        grammar = Grammar(matcher, len(self._vocabulary), self._eos_ids)
        output = self._compulsory(grammar, max_tokens + MOST_COUNTED)
        follows = np.flatnonzero(grammar.allowed(output))
        may_end = any(token in self._eos_ids for token in follows)
        if not len(follows):
            raise refuse("no text follows it", f"give a {name} that some text follows")
        if not output and may_end and set(follows.tolist()) <= set(self._eos_ids):
            raise refuse("only the empty text follows it", f"give a {name} that some text follows")
        needed = len(output) + (not may_end)
        if needed > max_tokens:
            raise refuse(f"it needs at least {needed} tokens and {max_tokens} are allowed", "allow more")
        return grammar

    def _compulsory(self, grammar: Grammar, most: int) -> list[int]:
        """The tokens that every output begins with, at most this many."""
        output: list[int] = []
        while len(output) < most:
            follows = grammar.forced(output)  # all at once, where the text is certain
            if not follows:
                follows = np.flatnonzero(grammar.allowed(output)).tolist()
                if len(follows) != 1 or follows[0] in self._eos_ids:
                    break
            output += follows
        return output[:most]

    def _ll_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                _Wrapper(self._vocabulary.texts, self._control_ids, self._eos_ids, self._encode),  # type: ignore[arg-type]
                n_vocab=len(self._vocabulary),
                eos_token=self._eos_ids,
            )
        return self._tokenizer


def _first_reason(error: str) -> str:
    """One line of a report of several."""
    first, *others = error.splitlines()
    if not first.endswith(":"):
        return first
    return next(
        (line.removeprefix("error: ") for line in others if line.startswith("error: ")), first.removesuffix(":")
    )


class _Wrapper:
    """The shape in which llguidance takes a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        control_ids: Collection[int],
        eos_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        # 0xFF never occurs in text: tokens without text are named so that none of them can be part of a match.
        self.tokens = [text or b"\xff<%d>" % token for token, text in enumerate(vocabulary)]
        self.special_token_ids = sorted(control_ids)
        self.eos_token_id = eos_ids[0]
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def _json_grammar(schema: object) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    json.loads(text)  # says where, if it is none
    return LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE)  # type: ignore[arg-type]


_SOURCES: dict[str, Callable[..., str]] = {
    "json_schema": _json_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "grammar": LLMatcher.grammar_from_lark,
}


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two outputs begin with in common."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])
