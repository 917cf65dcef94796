"""The records that travel through Slipstream. Plain data: no model, no cache, no I/O.

Words (see docs/structure.md): a *drafter* proposes a *draft*; the *target* scores it in one pass; *verify* gives a
*verdict*; *commit* appends the emitted tokens and rolls the cache back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.checks import (
    FLAG,
    Rule,
    check,
    checked,
    instance,
    is_integer,
    number,
    one_of,
    plain,
    several,
    shown,
)
from slipstream.errors import OptionError
from slipstream.messages import Message, checked_messages

__all__ = [
    "NO_TOKEN",
    "NUM_SPECULATIVE_TOKENS",
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

Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | Sequence[Message]
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
                          or grammar in Lark's notation; at most one of the three. What it leaves open stays open: a
                          number has any number of digits, and max_tokens may cut it off (Completion.finish_reason)
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
            several_of = several(f"use a tuple: {name}=({shown(value)},)")
            object.__setattr__(self, name, tuple(checked(name, value, several_of)))
        object.__setattr__(self, "logit_bias", dict(checked("logit_bias", self.logit_bias, _BIASES)))
        for name, value in check(_RULES, {name: getattr(self, name) for name in _RULES}).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "logit_bias", {int(token): plain(bias) for token, bias in self.logit_bias.items()})
        object.__setattr__(self, "stop_token_ids", tuple(map(int, self.stop_token_ids)))
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


def _texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and value and _is_unicode(value) for value in values)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _some_text(*others: type) -> Rule:
    return Rule((str,), lambda text: text.strip() != "", "give some text, or leave it out").or_else(*others).or_none()


_SHARE = number(0, 1, "use a value above 0 and up to 1", above=True)
_COUNTED = number(-100, 100, "use a value from -100 to 100; 0 is no penalty")
_LOGPROBS = number(0, 20, "use 0 to 20, or leave it out for none", whole=True).or_none()
_BIAS = number(-100, 100, "use token ids and numbers from -100 to 100")
_BIASES = instance(Mapping, "use a mapping of ids to numbers")

_RULES: dict[str, Rule] = {
    "temperature": number(0, math.inf, "use 0 (greedy) or more"),
    "top_k": number(0, math.inf, "use 0 (all tokens) or more", whole=True),
    "top_p": _SHARE,
    "min_p": number(0, 1, "use a value from 0 to 1"),
    "typical_p": _SHARE,
    "repetition_penalty": number(0.01, 100, "use a value from 0.01 to 100; 1 is no penalty"),
    "frequency_penalty": _COUNTED,
    "presence_penalty": _COUNTED,
    "penalty_window": number(1, math.inf, "use 1 or more, or leave it out for all tokens", whole=True).or_none(),
    "no_repeat_ngram_size": number(0, math.inf, "use 0 (off) or more", whole=True),
    "logit_bias": Rule(
        (dict,),
        lambda biases: all(is_integer(token) and _BIAS.allows(bias) for token, bias in biases.items()),
        _BIAS.remedy,
    ),
    "bad_words": Rule((tuple,), _texts, "use texts that aren't empty"),
    "min_tokens": number(0, math.inf, "use 0 or more", whole=True),
    "json_schema": _some_text(Mapping),
    "regex": Rule((str,), lambda text: text != "", "give some text, or leave it out").or_none(),
    "grammar": _some_text(),
    "seed": number(0, 2**64 - 1, "use 0 to 2**64 - 1", whole=True).or_none(),
    "n": number(1, 128, "use 1 to 128", whole=True),
    "verification": one_of("match", "rejection"),
    "max_tokens": number(0, math.inf, "use 0 or more, or leave it out", whole=True).or_none(),
    "stop": Rule((tuple,), _texts, "use texts; a stop string can't be empty"),
    "stop_token_ids": Rule((tuple,), lambda ids: all(map(is_integer, ids)), "use token ids"),
    "ignore_eos": FLAG,
    "logprobs": _LOGPROBS,
    "logprobs_of": one_of("raw", "processed"),
    "prompt_logprobs": _LOGPROBS,
    "echo": FLAG,
}
"""What each option may be."""


NUM_SPECULATIVE_TOKENS = number(0, math.inf, "use 0 (no drafts) or more", whole=True).or_none()
"""What num_speculative_tokens may be, for a request and for an engine."""

_REQUEST_RULES = {
    "params": instance(SamplingParams, "use SamplingParams(…)"),
    "drafter": instance(str, "use a drafter's name, or leave it out").or_none(),
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. None for drafter or num_speculative_tokens means the engine's own setting.

    Raises OptionError at construction for a prompt that is none of what Prompt lists, or a value of another type.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    drafter: str | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _checked_prompt(self.prompt))
        for name, value in check(_REQUEST_RULES, {name: getattr(self, name) for name in _REQUEST_RULES}).items():
            object.__setattr__(self, name, value)


def _checked_prompt(prompt: object) -> str | tuple[int, ...] | tuple[Message, ...]:
    """A prompt in one of three forms."""
    remedy = "a prompt is a text, a list of token ids or a list of chat messages"
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise OptionError(f"the prompt is {shown(prompt)}, which may be text or ids: decode it, or give a list of ids")
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1 or not (prompt.size == 0 or np.issubdtype(prompt.dtype, np.integer)):
            raise OptionError(f"the prompt is an array of {prompt.dtype} of shape {prompt.shape}: use integers, (n,)")
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence):
        raise OptionError(f"the prompt is {shown(prompt)}: {remedy}")
    if not len(prompt):
        raise OptionError("the prompt is empty: give it at least one token")
    kinds = set(map(type, prompt))
    if all(issubclass(kind, Mapping) for kind in kinds):
        return tuple(checked_messages(prompt))
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        return tuple(map(int, prompt))
    wrong = next((item for item in prompt if not isinstance(item, Mapping) and not is_integer(item)), prompt[0])
    raise OptionError(f"the prompt has {shown(wrong)} in it: {remedy}, not a mixture")


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
                     "length" (max_tokens or the context limit), or "blocked" (bans and grammar left no token to go on).
                     Under a grammar "length" says that more could have come: the text of a JSON object or array isn't
                     whole. One that is whole has "stop", even where its last token is the last that max_tokens allows
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
