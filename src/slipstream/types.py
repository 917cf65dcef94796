"""The records that travel through Slipstream. Plain data: no model, no cache, no I/O.

Words (see docs/structure.md): a *drafter* proposes a *draft*; the *target* scores it in one pass; *verify* gives a
*verdict*; *commit* appends the emitted tokens and rolls the cache back.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import OptionError

__all__ = [
    "NO_TOKEN",
    "ROOT",
    "Completion",
    "Draft",
    "FinishReason",
    "LogprobsOf",
    "Message",
    "Origin",
    "Piece",
    "Prompt",
    "Request",
    "SamplingParams",
    "SpeculationStats",
    "StepOutput",
    "Timing",
    "TokenLogprob",
    "Usage",
    "Verdict",
    "Verification",
]

Message = Mapping[str, str]
"""One turn of a chat: {"role": "user", "content": "…"}."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Text taken as it is, token ids, or chat messages (which go through the model's chat template)."""

FinishReason = Literal["stop", "length", "blocked"]
Origin = Literal["draft", "target", "prompt"]
LogprobsOf = Literal["raw", "processed"]
Verification = Literal["match", "rejection"]

ROOT = -1
"""The parent of a draft's first nodes: the last committed token."""

NO_TOKEN = -1
"""What is chosen where bans and grammar leave no token: it ends the completion."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution becomes tokens, and when a completion ends.

    What changes the distribution is applied in this order (docs/lossless.md defines each step), at every output
    position, looking at the prompt and the output before it:

    repetition_penalty    divides the positive logits of tokens in prompt and output, multiplies the negative; 1 is off
    frequency_penalty     is subtracted from a token's logit for each time that it is in the output
    presence_penalty      is subtracted from the logit of each token that is in the output
    penalty_window        how many of the last tokens these three look at; None is all
    logit_bias            token id → what is added to its logit
    no_repeat_ngram_size  bans tokens that would complete an n-gram already in prompt or output; 0 is off
    bad_words             texts that the output never contains, however they are split into tokens
    min_tokens            bans what ends a completion until so many tokens are out
    json_schema, regex, grammar  the output is a word of this JSON schema (a mapping or JSON text), regular expression,
                          or grammar in Lark's notation; at most one of the three
    temperature           0 is greedy: arg-max, lowest id on exact ties, whatever the filters that follow
    top_k                 keep the k most likely tokens; 0 keeps all
    top_p                 keep the smallest set of most likely tokens whose probability reaches top_p; 1 keeps all
    min_p                 drop tokens less likely than min_p times the likeliest; 0 keeps all
    typical_p             keep the smallest set of tokens of most nearly average information whose probability reaches
                          typical_p; 1 keeps all

    How the token is drawn:

    seed          0 to 2**64 - 1; None draws one, which the completion reports
    n             completions of the same prompt, with seeds derived from this one
    verification  "match": the same tokens whatever drafts; "rejection": the same distribution (see docs/lossless.md)

    Where a completion ends:

    max_tokens      most tokens to emit; None is as many as the context holds
    stop            strings that end the completion; neither they nor anything after them is part of it
    stop_token_ids  tokens that do
    ignore_eos      go on past the model's end-of-sequence tokens

    What is reported:

    logprobs         log-probabilities of the emitted tokens and of this many likeliest ones at each position, to 20;
                     0 is those of the emitted alone, None none
    logprobs_of      "raw": of the model's own distribution; "processed": of the one that the token was drawn from
                     (at temperature 0: as at temperature 1 without filters)
    prompt_logprobs  the same for the prompt's tokens, always raw
    echo             the prompt is the beginning of the completion: of its text, ids and logprobs

    Raises OptionError at construction for a value outside these ranges, or options that contradict each other.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int | None = None
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    seed: int | None = None
    n: int = 1
    verification: Verification = "match"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "raw"
    prompt_logprobs: int | None = None
    echo: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words", "stop_token_ids"):
            value = getattr(self, name)
            if isinstance(value, (str, bytes)):
                raise OptionError(f"{name} is a tuple of strings, not the string {value!r}: write {name}=({value!r},)")
            _require(isinstance(value, Iterable), name, value, "use a tuple")
            object.__setattr__(self, name, tuple(value))
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "use a mapping of ids to numbers")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for name, (kind, holds, remedy) in _RULES.items():
            value = getattr(self, name)
            right_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            _require(right_kind and holds(value), name, value, remedy)
        self._check_together()

    @property
    def has_grammar(self) -> bool:
        return not (self.json_schema is None and self.regex is None and self.grammar is None)

    def _check_together(self) -> None:
        grammars = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        conflicts = [
            (len(grammars) > 1, f"{' and '.join(grammars)} are given", "use one of them"),
            (
                bool(grammars) and self.ignore_eos,
                f"ignore_eos and {' '.join(grammars)} are given",
                "a grammar ends with the end-of-sequence token: leave ignore_eos out",
            ),
            (
                self.max_tokens is not None and self.min_tokens > self.max_tokens,
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}",
                "use no more than max_tokens",
            ),
            (
                self.penalty_window is not None
                and (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) == (1, 0, 0),
                f"penalty_window is {self.penalty_window} and there is no penalty",
                "give one, or leave penalty_window out",
            ),
            (
                self.logprobs is None and self.logprobs_of == "processed",
                "logprobs_of is 'processed' and logprobs None",
                "say how many logprobs you want, or leave logprobs_of out",
            ),
        ]
        for conflict, what, remedy in conflicts:
            if conflict:
                raise OptionError(f"{what}: {remedy}")


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high and math.isfinite(value)


def _optional(low: int, high: float) -> Callable[[Any], bool]:
    return lambda value: value is None or low <= value <= high


def _texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and value and _is_unicode(value) for value in values)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


_REAL = (int, float, np.integer, np.floating)
_INTEGER = (int, np.integer)
_MAYBE_INTEGER = (*_INTEGER, NoneType)
_INFINITY = math.inf
_GRAMMAR_REMEDY = "give some text, or leave it out"

_RULES: dict[str, tuple[type | tuple[type, ...], Callable[[Any], bool], str]] = {
    "temperature": (_REAL, _number(0, _INFINITY), "use 0 (greedy) or more"),
    "top_k": (_INTEGER, _number(0, _INFINITY), "use 0 (all tokens) or more"),
    "top_p": (_REAL, lambda value: 0 < value <= 1, "use a value above 0 and up to 1"),
    "min_p": (_REAL, _number(0, 1), "use a value from 0 to 1"),
    "typical_p": (_REAL, lambda value: 0 < value <= 1, "use a value above 0 and up to 1"),
    "repetition_penalty": (_REAL, _number(0.01, 100), "use a value from 0.01 to 100; 1 is no penalty"),
    "frequency_penalty": (_REAL, _number(-100, 100), "use a value from -100 to 100; 0 is no penalty"),
    "presence_penalty": (_REAL, _number(-100, 100), "use a value from -100 to 100; 0 is no penalty"),
    "penalty_window": (_MAYBE_INTEGER, _optional(1, _INFINITY), "use 1 or more, or leave it out for all tokens"),
    "no_repeat_ngram_size": (_INTEGER, _number(0, _INFINITY), "use 0 (off) or more"),
    "logit_bias": (
        dict,
        lambda value: all(
            isinstance(token, _INTEGER) and isinstance(bias, _REAL) and -100 <= bias <= 100
            for token, bias in value.items()
        ),
        "use token ids and numbers from -100 to 100",
    ),
    "bad_words": (tuple, _texts, "use texts that aren't empty"),
    "min_tokens": (_INTEGER, _number(0, _INFINITY), "use 0 or more"),
    "json_schema": (
        (Mapping, str, NoneType),
        lambda value: not isinstance(value, str) or value.strip() != "",
        _GRAMMAR_REMEDY,
    ),
    "regex": ((str, NoneType), lambda value: value is None or value != "", _GRAMMAR_REMEDY),
    "grammar": ((str, NoneType), lambda value: value is None or value.strip() != "", _GRAMMAR_REMEDY),
    "seed": (_MAYBE_INTEGER, _optional(0, 2**64 - 1), "use 0 to 2**64 - 1"),
    "n": (_INTEGER, _number(1, 128), "use 1 to 128"),
    "verification": (str, lambda value: value in ("match", "rejection"), "use match or rejection"),
    "max_tokens": (_MAYBE_INTEGER, _optional(0, _INFINITY), "use 0 or more, or leave it out"),
    "stop": (tuple, _texts, "use texts; a stop string can't be empty"),
    "stop_token_ids": (tuple, lambda value: all(isinstance(token, _INTEGER) for token in value), "use token ids"),
    "ignore_eos": (bool, lambda value: True, "use True or False"),
    "logprobs": (_MAYBE_INTEGER, _optional(0, 20), "use 0 to 20, or leave it out for none"),
    "logprobs_of": (str, lambda value: value in ("raw", "processed"), "use raw or processed"),
    "prompt_logprobs": (_MAYBE_INTEGER, _optional(0, 20), "use 0 to 20, or leave it out for none"),
    "echo": (bool, lambda value: True, "use True or False"),
}
"""What each option may be: its types, its range, and what to say otherwise."""


def _require(holds: bool, name: str, value: object, remedy: str) -> None:
    if not holds:
        raise OptionError(f"{name} is {value!r}: {remedy}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. None for drafter or num_speculative_tokens means the engine's own setting."""

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    drafter: str | None = None
    num_speculative_tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Guessed tokens as a tree: node i holds tokens[i] and follows node parents[i] < i, or the last committed token
    where parents[i] is ROOT. A chain is the tree in which each node's parent is the one before. Children of one node
    hold different tokens.

    probs are the processed distributions that the tokens of a chain were drawn from, for the rule "rejection" alone;
    None where the tokens weren't drawn at random. confidence is the drafter's own estimate that a node is right where
    its parent is; None where it has none.
    """

    tokens: NDArray[np.int32]  # (n,)
    parents: NDArray[np.int32]  # (n,)
    probs: NDArray[np.float64] | None = None  # (n, vocab)
    confidence: NDArray[np.float32] | None = None  # (n,)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        probs: NDArray[np.float64] | None = None,
        confidence: NDArray[np.float32] | None = None,
    ) -> "Draft":
        """The draft that guesses tokens one after the other."""
        count = len(tokens)
        parents = np.arange(-1, count - 1, dtype=np.int32)
        return cls(np.asarray(tokens, np.int32).reshape(count), parents, probs, confidence)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one request's draft.

    accepted  the draft's nodes that were kept, from the root down
    tokens    the tokens to commit: those of the accepted nodes, then the target's own next token (the corrected token
              after a rejection, the bonus token after a fully accepted path); the last may be NO_TOKEN
    """

    accepted: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log-probability of one token, and the likeliest tokens at its position with theirs, the likeliest
    first, lower ids first on ties. `top` lacks tokens that the distribution gives no probability."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """One emitted token with the text that it completes (empty while a character is still split across tokens)."""

    token_id: int
    text: str
    origin: Origin
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class SpeculationStats:
    """Counters of one request, defined in slipstream.metrics. drafted = accepted + rejected + unverified, always."""

    drafter: str
    num_speculative_tokens: int
    target_passes: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    unverified: int = 0
    verification: Verification = "match"
    drafted_by_depth: list[int] = field(default_factory=list)  # position 1 of a draft first
    accepted_by_depth: list[int] = field(default_factory=list)  # as long

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per target pass that decoded (so it counts the corrected or bonus token); 0 without one."""
        return self.committed / self.target_passes if self.target_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """For each position of a draft, how often it was accepted when the one before it was."""
        by_depth = zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)
        return tuple(accepted / drafted for accepted, drafted in by_depth)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request: prefill up to its first token, decode from there to its last."""

    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. Decoding token_ids gives text, except that text ends exactly where a stop string begins (and
    that an echoed prompt which ends in half a character isn't joined with the output).

    finish_reason    "stop" (end-of-sequence token, stop token or stop string, none of which is in token_ids or text),
                     "length" (max_tokens or the context limit), or "blocked" (bans and grammar left no token to go on)
    seed             the seed in force, drawn if the request gave none: with it the same output can be had again
    index            which of the request's n completions this is
    logprobs         one entry for each of token_ids, where the request asked for them
    prompt_logprobs  one for each token of the prompt; the first, which follows nothing, has None

    With echo, text, token_ids and logprobs begin with the prompt's; usage counts both apart.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    usage: Usage
    speculation: SpeculationStats
    timing: Timing
    index: int = 0
    logprobs: tuple[TokenLogprob | None, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one pass added to one request.

    pieces      tokens now certain to be part of the completion (a possible stop string is held back)
    rejected    text of the drafted tokens that this pass turned down, in draft order
    completion  the finished request, in its last StepOutput only
    index       which of the request's n completions this belongs to
    """

    request_id: int
    pieces: tuple[Piece, ...]
    rejected: tuple[str, ...]
    completion: Completion | None = None
    index: int = 0
