"""A suffix automaton over tokens: which endings of a growing sequence occurred in it before, and what followed them.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). Used for speculation by Hu et
al., "SAM Decoding" (2024), and, as a suffix tree, by Oliaro et al., "SuffixDecoding" (2024).
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["NO_STATE", "ROOT_STATE", "Follower", "Match", "SuffixAutomaton"]

ROOT_STATE = 0
"""The state of the empty sequence."""

NO_STATE = -1
NO_FOLLOWER, SEVERAL_FOLLOWERS = -2, -3  # instead of a token, which is -1 (a separator) or more

MAX_UPDATES = 32
"""Most suffixes whose counts an appended token updates."""

MAX_FANOUT = 64
"""A state that more different tokens followed tells little, and looking through them takes long."""


class Follower(NamedTuple):
    """A token that followed a state's sequences: how often, the most recent time (the length that the whole sequence
    had with it), and the state that it leads to."""

    times: int
    recent: int
    token: int
    state: int


class SuffixAutomaton:
    """Every subsequence of what was appended, in at most two states a token. Appending is O(1) amortised.

    A state stands for the subsequences that end at the same places; `length(state)` is the longest of them, and its
    suffix link leads to the longest ending of it that also occurs elsewhere. So the link of the state of everything
    that was appended is the longest ending that occurred before, at any length: `longest_repeat`.

    A state also counts its occurrences and knows the most recent one. To keep both right, an appended token has to
    update every state on its path of suffix links: a handful in text, but all of them in a sequence that repeats one
    token. The update therefore ends after MAX_UPDATES states, from the longest on. Where more endings than that repeat,
    the counts of the shorter ones are too low, and their latest occurrence is an earlier one; nothing reads them while
    longer ones match.

    Most states have one follower; these keep it in arrays, and only the others have a dict. That makes 100 to 300 bytes
    a token, depending on the text.
    """

    __slots__ = ("_counts", "_followers", "_last", "_lengths", "_links", "_only_state", "_only_token", "_recent")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._lengths = array("i", [0])
        self._links = array("i", [NO_STATE])
        self._counts = array("i", [0])
        self._recent = array("i", [0])
        self._only_token = array("i", [NO_FOLLOWER])
        self._only_state = array("i", [NO_STATE])
        self._followers: dict[int, dict[int, int]] = {}  # of states with several: token → state
        self._last = ROOT_STATE
        self.extend(tokens)

    def __len__(self) -> int:
        """How many tokens were appended."""
        return self._lengths[self._last]

    @property
    def num_states(self) -> int:
        return len(self._lengths)

    @property
    def longest_repeat(self) -> int:
        """The state of the longest ending that also occurred earlier; ROOT_STATE if none did."""
        return max(self._links[self._last], ROOT_STATE)

    def is_end(self, state: int) -> bool:
        """Whether nothing has followed the state's sequences: they occur where everything ends, and only there."""
        return self._only_token[state] == NO_FOLLOWER

    def length(self, state: int) -> int:
        """Length of the longest sequence that the state stands for."""
        return self._lengths[state]

    def suffix(self, state: int) -> int:
        """The state of the longest ending of the state's sequences that occurs in more places."""
        return self._links[state]

    def step(self, state: int, token: int) -> int:
        """The state after `token` follows; NO_STATE where it never did."""
        only = self._only_token[state]
        if only == token:
            return self._only_state[state]
        if only == SEVERAL_FOLLOWERS:
            return self._followers[state].get(token, NO_STATE)
        return NO_STATE

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Reads a token of another sequence, of which the longest ending that occurs here has this state and length.
        Returns those of the longest ending with the token. Holds as long as nothing is appended."""
        while (after := self.step(state, token)) == NO_STATE and state != ROOT_STATE:
            state = self._links[state]
            length = self._lengths[state]
        return (ROOT_STATE, 0) if after == NO_STATE else (after, length + 1)

    def followers(self, state: int, least_share: float = 0.0) -> tuple[int, list[Follower]]:
        """How often anything followed the state's sequences, and what did in at least this share of the cases, the most
        frequent first, the most recent first on ties. (0, []) if more than MAX_FANOUT different tokens did."""
        counts, recent = self._counts, self._recent
        token = self._only_token[state]
        if token == NO_FOLLOWER:
            return 0, []
        if token != SEVERAL_FOLLOWERS:
            only = self._only_state[state]
            return counts[only], [Follower(counts[only], recent[only], token, only)]
        following = self._followers[state]
        if len(following) > MAX_FANOUT:
            return 0, []
        total = sum(map(counts.__getitem__, following.values()))
        least = least_share * total
        frequent = [
            Follower(counts[after], recent[after], token, after)
            for token, after in following.items()
            if counts[after] >= least
        ]
        return total, sorted(frequent, reverse=True)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        lengths, links, only_token, only_state = self._lengths, self._links, self._only_token, self._only_state
        followers = self._followers
        length = lengths[self._last] + 1
        new = self._add(length, links[ROOT_STATE], 1, length)
        state, after = self._last, NO_STATE
        while state != NO_STATE:  # the endings that `token` never followed
            only = only_token[state]
            if only == NO_FOLLOWER:
                only_token[state], only_state[state] = token, new
            elif only == token:
                after = only_state[state]
                break
            elif only == SEVERAL_FOLLOWERS:
                following = followers[state]
                after = following.get(token, NO_STATE)
                if after != NO_STATE:
                    break
                following[token] = new
            else:
                followers[state] = {only: only_state[state], token: new}
                only_token[state] = SEVERAL_FOLLOWERS
            state = links[state]
        if after == NO_STATE:
            links[new] = ROOT_STATE
        elif lengths[after] == lengths[state] + 1:
            links[new] = after
        else:
            links[new] = self._split(state, token, after)
        self._last = new
        self._note_occurrence(links[new], length)

    def _split(self, state: int, token: int, after: int) -> int:
        """Parts the sequences of `after` that now have one more place to end at, those up to `state` and `token`, from
        the longer ones. Returns their new state."""
        links, only_token, only_state, followers = self._links, self._only_token, self._only_state, self._followers
        split = self._add(self._lengths[state] + 1, links[after], self._counts[after], self._recent[after])
        only_token[split], only_state[split] = only_token[after], only_state[after]
        if only_token[after] == SEVERAL_FOLLOWERS:
            followers[split] = followers[after].copy()
        links[after] = split
        while state != NO_STATE and self.step(state, token) == after:
            if only_token[state] == token:
                only_state[state] = split
            else:
                followers[state][token] = split
            state = links[state]
        return split

    def _add(self, length: int, link: int, count: int, recent: int) -> int:
        self._lengths.append(length)
        self._links.append(link)
        self._counts.append(count)
        self._recent.append(recent)
        self._only_token.append(NO_FOLLOWER)
        self._only_state.append(NO_STATE)
        return len(self._lengths) - 1

    def _note_occurrence(self, state: int, end: int) -> None:
        links, counts, recent = self._links, self._counts, self._recent
        for _ in range(MAX_UPDATES):
            if state <= ROOT_STATE:
                break
            counts[state] += 1
            recent[state] = end
            state = links[state]


class Match(NamedTuple):
    """An ending that occurs in an automaton: its state there and its length in tokens."""

    automaton: SuffixAutomaton
    state: int
    length: int
