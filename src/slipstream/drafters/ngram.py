"""Prompt lookup: what followed the longest ending of the history that occurred before, in the prompt or in the output
(or in a store of other texts), may follow it again.

Source: Saxena, "Prompt Lookup Decoding" (2023); Yang et al., "Inference with Reference" (2023); on a suffix structure,
with frequencies and trees: Oliaro et al., "SuffixDecoding" (2024); Hu et al., "SAM Decoding" (2024). How far to trust a
count is estimated as in prediction by partial matching: Cleary and Witten, "Data Compression Using Adaptive Coding and
Partial String Matching" (1984).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

from slipstream.drafters.base import History, Models
from slipstream.drafters.best_first import likeliest_tree
from slipstream.drafters.store import Reader
from slipstream.drafters.suffix_automaton import ROOT_STATE, Match, SuffixAutomaton
from slipstream.errors import ModelError
from slipstream.types import NO_TOKEN, Draft

__all__ = ["NgramDrafter"]

LEAST_PROBABILITY = 0.2
"""A node is drafted if it is likely enough to be accepted: less wouldn't pay for its row in the target's pass."""

FIRST_DOUBT = 2.0
"""What a request begins with. Over answers to questions, summaries and code edits, it makes the estimated probabilities
about what they turn out to be, for matches of one token and of many."""

LEARNING_RATE = 0.2


@dataclass(slots=True, eq=False)
class _Lookup:
    """A request's history as an automaton, and how much it is to be trusted.

    The probability that a token follows a match of length n is estimated as count / (total + doubt / n): the share of
    the times that it did, less a doubt, which fades as the match grows, for something that never did. The request's own
    luck moves the doubt: each token of the output by how far the estimate for the likeliest one was off. So drafts grow
    where the text does repeat itself, and stop, short matches first, where it doesn't.
    """

    history: History
    automaton: SuffixAutomaton
    reader: Reader | None  # of the store
    doubt: float = FIRST_DOUBT

    def catch_up(self) -> None:
        """Takes in the tokens that came since the last call. The output's also tell how good the guesses are."""
        tokens, automaton = self.history.tokens, self.automaton
        for at in range(len(automaton), len(tokens)):
            if at >= self.history.num_prompt_tokens:
                self._compare(tokens[at])
            automaton.append(tokens[at])

    def _compare(self, token: int) -> None:
        match = self._own_match()
        total, followers = match.automaton.followers(match.state, LEAST_PROBABILITY)
        if match.length and followers:
            best = followers[0]
            error = best.times / (total + self.doubt / match.length) - (best.token == token)
            self.doubt *= math.exp(LEARNING_RATE * error)

    def match(self) -> Match:
        """The longest match of the history's ending; of equals, the history's own."""
        own = self._own_match()
        stored = self.reader.longest() if self.reader else own
        return stored if stored.length > own.length else own

    def _own_match(self) -> Match:
        state = self.automaton.longest_repeat
        return Match(self.automaton, state, self.automaton.length(state))

    def draft(self, length: int) -> Draft:
        """The likeliest nodes, at most `length`, of the tree of all that may follow: a chain unless counts compete."""
        automaton, state, matched = self.match()

        def followers(place: tuple[int, int], chance: float) -> Iterator[tuple[float, int, tuple[int, int]]]:
            state, matched = place
            while state != ROOT_STATE and automaton.is_end(state):  # a copy that runs into the present
                state = automaton.suffix(state)  # goes on with its own beginning
                matched = automaton.length(state)
            if state == ROOT_STATE:
                return
            total, found = automaton.followers(state, LEAST_PROBABILITY)
            for times, _, token, after in found:
                share = times / (total + self.doubt / matched)
                if chance * share >= LEAST_PROBABILITY and token != NO_TOKEN:  # where a stored text ends
                    yield share, token, (after, matched + 1)

        return likeliest_tree((state, matched), followers, length)


class NgramDrafter:
    """Copies what followed the longest match, as far as that is likely to be right; a tree where counts compete."""

    name: ClassVar[str] = "ngram"

    def __init__(self, models: Models) -> None:
        self.store = models.store
        if self.store is not None and not self.store.fits(models.tokenizer):
            raise ModelError("the store holds tokens of another tokenizer than the model's: make one with this model's")

    def start(self, history: History) -> _Lookup:
        return _Lookup(
            history, SuffixAutomaton(), self.store.reader(history.tokens) if self.store is not None else None
        )

    def propose(self, states: Sequence[_Lookup], lengths: Sequence[int]) -> list[Draft]:
        for state in states:
            state.catch_up()
        with nullcontext() if self.store is None else self.store.lock:
            return [state.draft(length) for state, length in zip(states, lengths, strict=True)]
