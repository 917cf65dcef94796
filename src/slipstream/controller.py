"""The drafter `auto`: at every step the drafts, and as many of their nodes, that give most tokens a second.

For one request with draft length g: tokens(g) = 1 + Σ_{k≤g} Π_{j≤k} a_j and seconds(g) = T(1 + g) + g · t_d, where a_j
is the estimate that position j is right given that j-1 was, T the measured cost of a target pass and t_d that of a
drafted token. The best g may be 0, which is plain decoding. In a batch, and in trees, the sum is over nodes: each is
worth the probability that its whole path is right, the best are taken first, and as many are kept as make
tokens / seconds greatest. Under load T rises with every row, and drafts end by themselves.

Sources that cost nothing, such as lookup, always propose, and their guesses are judged by what the target then says,
verified or not. One that runs a model proposes where it promises more than they do, and otherwise now and then, for at
most EXPLORATION of the time. Looking for drafts takes time too, behind a pass that left the caches cold: where it gains
less than it takes, the controller rests for some steps.

Sources: Leviathan et al. (2023) for the formula; Chen et al., "Sequoia" (2024) and Liu et al., "Optimizing Speculative
Decoding for Serving Large Language Models Using Goodput" (2024) for choosing drafts by expected tokens per second.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.cost import CostCurve
from slipstream.drafters.base import Drafter, History, ReadsLogits
from slipstream.types import ROOT, Draft

__all__ = ["GAIN", "Controller", "ModelSource", "worth"]

EXPLORATION = 0.01
"""Most of the time that is spent on drafts which don't promise a gain, and as much again on looking for them."""

LONGEST_REST = 3
"""Steps without a look: a copied passage is to be noticed soon."""

LOOK_MEMORY = 0.1
"""Weight of a new look in what one takes."""

GAIN = 1.05
"""A draft must promise so many times the tokens per second of doing without: drafts are made where estimates are high,
which are too high as likely as not, and plain decoding's speed needs no estimate."""

LEAST_DRAFTED, MOST_DRAFTED = 2, 8
"""Shortest and longest draft that a model is asked for. It may end a draft sooner by itself: how often it does can't be
seen of drafts of one token."""

HOPE = 0.9
"""Where not even guesses that are right so often would pay, under load, a model isn't explored."""

MOST_LOOKED_AT = 64
"""Nodes of all requests up to which is seen whether any could pay."""

SOON_READ = 5.0
"""A text is soon read that a draft model can catch up with in the time of so many plain passes, as long as no other
request waits: in a batch all do, and the time counts for each."""

HORIZON = 24
"""An answer is taken to go on for as many tokens as came: over so many is spread what catching up takes, which is then
paid for in vain once at most, as skis are bought once as much was spent on renting them. A text that is soon read isn't
waited for: its answer counts for so many tokens more. Answers to long ones are often short, or copied."""

UNKNOWN = 0.55
"""The chance that a model's guess is right, and that its draft goes on, before any was judged: a little less than what
a draft model of a third of the target's size reaches on text of all kinds."""

HOPED = 0.08
"""So much more often than in all requests are a model's guesses taken to be right in a text that is soon read. Texts
differ: in some it gains more than all requests tell, and in others it is asked no longer once it has been wrong."""


def worth(seconds: Callable[[int], float], requests: int) -> float:
    """What one request's token more is worth in a batch, in tokens of a plain pass. seconds: such a pass's by requests.

    It takes a row from a later pass for certain. The pass itself is spared only if all the others end sooner too, or
    give their place to one that waits. This is the mean of both; for a single request both are the same.
    """
    if requests == 1:
        return 1.0
    spared = seconds(requests) - seconds(requests - 1)
    return (1 + min(1.0, requests * spared / seconds(requests))) / 2


@dataclass(frozen=True, slots=True)
class _Pass:
    """The target pass that drafts are chosen for.

    requests  all that run, each of which gets a token or more
    sunk      rows that it has whatever is drafted, besides the requests' last tokens: chunks of prompts, drafts of
              other drafters. They make it long, but a token isn't worth more for that: rows behind them count at the
              margin
    """

    cost: CostCurve
    requests: int
    sunk: int

    def seconds(self, nodes: float) -> float:
        rows = self.requests + self.sunk
        return self.cost(self.requests) + self.cost(rows + round(nodes)) - self.cost(rows)

    @property
    def worth(self) -> float:
        return worth(self.cost, self.requests)

    def pays(self, nodes: float, tokens: float, drafting: float = 0.0) -> bool:
        """Whether so many nodes would, if they gave so many tokens and took so many seconds to draft."""
        plain = self.requests / self.seconds(0)
        return (self.requests + self.worth * tokens) / (self.seconds(nodes) + drafting) > GAIN * plain

    def could_pay(self) -> bool:
        """Whether any number of nodes would, if all of them were right. Between the curve's points tokens and seconds
        are linear in nodes, and their ratio is greatest at one of the points."""
        rows = self.requests + self.sunk
        points = [point - rows for point in self.cost.rows if rows < point < rows + MOST_LOOKED_AT]
        return any(self.pays(nodes, nodes) for nodes in (*points, MOST_LOOKED_AT))


class _Luck:
    """How often guesses were right, by kind; the last `memory` of a kind count most. What is expected counts as `prior`
    guesses."""

    def __init__(self, memory: float, prior: float) -> None:
        self._memory = memory
        self._keep = 1 - 1 / memory
        self._prior = prior
        self._counts: dict[tuple[str, int], tuple[float, float, float]] = {}  # recent: right, judged; judged in all

    def add(self, kind: tuple[str, int], right: bool) -> None:
        hits, judged, total = self._counts.get(kind, (0.0, 0.0, 0.0))
        self._counts[kind] = (hits * self._keep + right, judged * self._keep + 1, total + 1)

    def fade(self, kind: tuple[str, int], tokens: int) -> None:
        """Lets what was judged count less, now that so many tokens came of which none was."""
        if kind in self._counts:
            hits, judged, total = self._counts[kind]
            self._counts[kind] = (hits, judged, min(total, self._memory) * FADING**tokens)

    def share(self, kind: tuple[str, int], expected: float) -> float:
        """The share of right ones, drawn towards what is expected as long as few were judged."""
        counts = self._counts.get(kind)
        if counts is None:
            return expected
        hits, judged, total = counts
        return (self._prior * expected + total * hits / judged) / (self._prior + total)


FADING = 0.92
"""What remains, with each further token of a text, of what a model's guesses in it said of those to come. Else a
request in which they were wrong a few times in a row would do without them to its end."""


class _Yield:
    """What drafts gave, as a share of what was expected of them, by how many requests ran. Estimates that are right on
    the whole are too high where they are picked for being high: the more a row costs, the fewer are picked."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}  # expected, got

    def add(self, requests: int, expected: float, got: int) -> None:
        sums = self._sums.get(requests, (YIELD_PRIOR, YIELD_PRIOR))
        self._sums[requests] = (sums[0] * YIELD_KEEP + expected, sums[1] * YIELD_KEEP + got)

    def __call__(self, requests: int) -> float:
        expected, got = self._sums.get(requests, (1.0, 1.0))
        return min(1.0, got / expected)


YIELD_PRIOR, YIELD_KEEP = 10.0, 0.99
"""Tokens that got what was expected, to begin with; and what remains of the sums with each further draft."""

OF_ALL, OF_REQUEST, OF_DRAFTS = (200.0, 10.0), (8.0, 4.0), (24.0, 8.0)
"""Memory and prior of an estimate over all requests; of guesses within a request, whose text may change from line to
line; and of a model's drafts in it taken together, which change less."""

WHOLE, GOES_ON = -1, -2
"""Kinds of a source's guesses taken together: whether they were right, an early end of its draft being a wrong one; and
whether a draft had one more where it was asked for."""


@dataclass(slots=True, eq=False)
class _Walk:
    """A draft on its way of being judged: its nodes down to `node` were right, `position` is that of the next token."""

    draft: Draft
    children: dict[int, list[int]]
    wanted: int  # nodes that were asked for
    position: int
    node: int = ROOT


@dataclass(slots=True, eq=False)
class _State:
    history: History
    inner: dict[str, Any]  # each source's own state
    read: int = 0  # tokens that the model of a source has read, its own last draft among them
    luck: _Luck = field(default_factory=lambda: _Luck(*OF_REQUEST))
    draft_luck: _Luck = field(default_factory=lambda: _Luck(*OF_DRAFTS))
    walks: dict[str, _Walk] = field(default_factory=dict)
    length: int = 0  # of the history when it last got a draft
    expected: float = 0.0  # tokens that were expected of that draft

    @property
    def unread(self) -> int:
        return len(self.history.tokens) - self.read


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A drafter that runs a model. cost is that of its passes; catches_up says whether it must first read what was
    committed since it was last asked."""

    drafter: Drafter
    cost: CostCurve
    catches_up: bool

    def catch_up(self, state: _State) -> float:
        """Seconds for reading what it hasn't, beyond the token that it reads anyhow."""
        return self.cost(state.unread) - self.cost(1) if self.catches_up and state.unread > 1 else 0.0

    def could_pay(self, target: _Pass, count: int) -> bool:
        """Whether drafts for so many requests would pay if they were as good as can be hoped."""
        tokens = rows = 0.0
        for length in range(1, MOST_DRAFTED + 1):
            tokens += count * HOPE**length
            rows += count * HOPE ** (length - 1)
            if target.pays(rows, tokens, self.seconds([HOPE] * count, length)):
                return True
        return False

    def seconds(self, goes_on: Sequence[float], length: int) -> float:
        """Expected seconds of drafting `length` tokens for each request, together, where drafts go on with these
        probabilities: until the last one has ended."""
        seconds = 0.0
        for depth in range(length):
            growing = [share**depth for share in goes_on]
            any_grows = 1 - prod(1 - chance for chance in growing)
            seconds += any_grows * self.cost(round(sum(growing) / any_grows)) if any_grows else 0.0
        return seconds


@dataclass(slots=True, eq=False)
class _Tree:
    """The drafts of one request's sources, joined: nodes in order of creation, parents first."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # that a node is right where its parent is
    places: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) → node

    def add(self, draft: Draft, shares: Sequence[float]) -> None:
        """Joins a draft in; where it holds a node that is there already, the better estimate counts."""
        mine: list[int] = []
        for token, parent, share in zip(draft.tokens.tolist(), draft.parents.tolist(), shares, strict=True):
            under = mine[parent] if parent != ROOT else ROOT
            node = self.places.setdefault((under, token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(under)
                self.shares.append(share)
            else:
                self.shares[node] = max(self.shares[node], share)
            mine.append(node)

    def chances(self) -> list[float]:
        """The probability of each node's whole path."""
        chances: list[float] = []
        for parent, share in zip(self.parents, self.shares, strict=True):
            chances.append(share * (chances[parent] if parent != ROOT else 1.0))
        return chances

    def best(self, limit: int) -> list[tuple[float, int]]:
        """(chance, node) of the `limit` likeliest nodes, the likeliest first; a parent comes before its children."""
        return sorted(((-chance, node) for node, chance in enumerate(self.chances())))[:limit]

    def pruned(self, nodes: Sequence[int]) -> Draft:
        """The draft of these nodes."""
        kept = sorted(nodes)
        place = {node: at for at, node in enumerate(kept)}
        parents = [place[self.parents[node]] if self.parents[node] != ROOT else ROOT for node in kept]
        return Draft(np.array([self.tokens[node] for node in kept], np.int32), np.array(parents, np.int32))


class Controller:
    """Chooses among drafters, as one drafter. Its estimates over all requests hold no text: only how often guesses of
    each kind were right."""

    name: ClassVar[str] = "auto"

    def __init__(self, free: Sequence[Drafter], with_model: ModelSource | None, cost: CostCurve) -> None:
        """free: drafters whose proposals cost next to nothing; cost: of the target's passes, kept up to date by the
        caller, through `cost.observe`."""
        self.cost = cost
        self._free = {drafter.name: drafter for drafter in free}
        self._with_model = with_model
        self._drafters = dict(self._free)
        if with_model is not None:
            self._drafters[with_model.drafter.name] = with_model.drafter
        self._readers = {name: reader for name, reader in self._drafters.items() if isinstance(reader, ReadsLogits)}
        self._level = cost.level
        self._luck = _Luck(*OF_ALL)
        self._yield = _Yield()
        self._elapsed = 0.0
        self._explored = 0.0
        self._look = 0.0  # seconds that it takes to look for a request's draft, without a model's passes
        self._rest = 0  # steps to come without a look

    def start(self, history: History) -> _State:
        return _State(history, {name: drafter.start(history) for name, drafter in self._drafters.items()})

    def observe(self, state: _State, tokens: Sequence[int], logits: Sequence[NDArray[np.float32]]) -> None:
        for name, drafter in self._readers.items():
            drafter.observe(state.inner[name], tokens, logits)

    def propose(
        self, states: Sequence[Any], lengths: Sequence[int], requests: int | None = None, sunk: int = 0
    ) -> list[Draft]:
        """One draft for each request, chosen together. requests and sunk are those of _Pass: all requests that run,
        by default these, and the rows that the pass has anyhow."""
        target = _Pass(self.cost, len(states) if requests is None else requests, sunk)
        plain = target.seconds(0)
        self._elapsed += plain
        # Where not even right guesses pay, there is nothing to look for.
        if self._rest or not target.could_pay():
            self._rest = max(0, self._rest - 1)
            for state in states:
                state.expected = 0.0
            return [Draft.chain(()) for _ in states]
        started = time.perf_counter()
        seen = all(state.length for state in states)
        for state in states:
            self._judge(state)
            if state.expected:
                self._yield.add(target.requests, state.expected, len(state.history.tokens) - state.length - 1)
        trees = [_Tree() for _ in states]
        for name, drafter in self._free.items():
            drafts = drafter.propose([state.inner[name] for state in states], lengths)
            for state, tree, draft, length in zip(states, trees, drafts, lengths, strict=True):
                self._join(name, state, tree, draft, length)
        best = [tree.best(length) for tree, length in zip(trees, lengths, strict=True)]
        asked, drawn, drafting = False, dict[int, Draft](), 0.0
        if self._with_model:
            asked, drawn, drafting = self._ask_model(states, trees, best, lengths, target)
            for at, draft in drawn.items():  # the rule "rejection": no choice among nodes by what was drawn
                trees[at] = _Tree()
                target = replace(target, sunk=target.sunk + len(draft))
            if drafting:
                best = [tree.best(length) for tree, length in zip(trees, lengths, strict=True)]
        chosen = self._choose(best, target)
        for state, ranked, nodes in zip(states, best, chosen, strict=True):
            state.length = len(state.history.tokens)
            state.expected = -sum(minus_chance for minus_chance, _ in ranked[: len(nodes)])
        if asked:  # a draft that turned out poor doesn't mean that the next will
            self._rest = 0
        elif seen:  # a first look also reads the prompt
            looking = time.perf_counter() - started - drafting
            self._look += LOOK_MEMORY * (looking / len(states) - self._look)
            tokens = self._yield(target.requests) * target.worth * sum(state.expected for state in states)
            spared = plain * (1 + tokens / target.requests) - target.seconds(sum(map(len, chosen)))
            lost = self._look * len(states) - spared
            self._rest = min(LONGEST_REST, int(lost / (EXPLORATION * plain))) if lost > 0 else 0
        return [drawn[at] if at in drawn else tree.pruned(chosen[at]) for at, tree in enumerate(trees)]

    # Estimates --------------------------------------------------------------------------------------------------

    def _judge(self, state: _State) -> None:
        """Follows the drafts of earlier steps along what was committed since, as far as that goes."""
        tokens = state.history.tokens
        for name, walk in list(state.walks.items()):
            while True:
                children = walk.children.get(walk.node, ())
                if not children:
                    if len(walk.draft) < walk.wanted:
                        self._count(state, (name, WHOLE), False)
                    del state.walks[name]
                    break
                if walk.position == len(tokens):
                    break
                right = None
                for node in children:
                    hit = int(walk.draft.tokens[node]) == tokens[walk.position]
                    self._count(state, (name, _bucket(walk.draft, node)), hit)
                    right = node if hit else right
                self._count(state, (name, WHOLE), right is not None)
                if right is None:
                    del state.walks[name]
                    break
                walk.node, walk.position = right, walk.position + 1

    def _count(self, state: _State, kind: tuple[str, int], right: bool) -> None:
        _luck_of(state, kind).add(kind, right)
        self._luck.add(kind, right)

    def _share(self, state: _State, kind: tuple[str, int], claim: float) -> float:
        return _luck_of(state, kind).share(kind, self._luck.share(kind, claim))

    def _join(self, name: str, state: _State, tree: _Tree, draft: Draft, wanted: int) -> None:
        """Adds a source's draft to the request's tree, and begins to judge it unless an earlier one still is."""
        if name not in state.walks and len(draft):
            children: dict[int, list[int]] = {}
            for node, parent in enumerate(draft.parents.tolist()):
                children.setdefault(parent, []).append(node)
            state.walks[name] = _Walk(draft, children, wanted, len(state.history.tokens))
        claims = _claims(draft)
        tree.add(draft, [self._share(state, (name, _bucket(draft, node)), claims[node]) for node in range(len(draft))])

    # Choices ----------------------------------------------------------------------------------------------------

    def _choose(self, best: Sequence[Sequence[tuple[float, int]]], target: _Pass) -> list[list[int]]:
        """The nodes of each request that together give most tokens a second, the likeliest first."""
        nodes = sorted((chance, at, rank) for at, ranked in enumerate(best) for rank, (chance, _) in enumerate(ranked))
        chosen: list[list[int]] = [[] for _ in best]
        tokens = float(target.requests)
        least = GAIN * tokens / target.seconds(0)
        worth, gives = 0, self._yield(target.requests) * target.worth
        for count, (minus_chance, _, _) in enumerate(nodes, 1):
            tokens -= minus_chance * gives
            rate = tokens / target.seconds(count)
            if rate > least:
                least, worth = rate, count
        for _, at, rank in nodes[:worth]:
            chosen[at].append(best[at][rank][1])
        return chosen

    def _ask_model(
        self,
        states: Sequence[_State],
        trees: Sequence[_Tree],
        free: Sequence[Sequence[tuple[float, int]]],
        lengths: Sequence[int],
        target: _Pass,
    ) -> tuple[bool, dict[int, Draft], float]:
        """Lets the model draft for the requests where that promises more than the free drafts do, joins what it
        proposes into their trees, and returns whether it does, the drafts that must stay whole, and the seconds that
        its passes took."""
        source = self._with_model
        assert source is not None
        # What made the target's passes slower or faster since the last time did so to those of a model that rested.
        source.cost.level *= self.cost.level / self._level
        self._level = self.cost.level
        name = source.drafter.name
        asked, length = self._plan(source, states, free, lengths, target)
        for at, state in enumerate(states):
            if at not in asked:
                for kind in (WHOLE, GOES_ON):
                    state.draft_luck.fade((name, kind), len(state.history.tokens) - state.length)
        exploring = not asked
        if exploring:
            least, at = min((source.catch_up(state) + source.cost(1), at) for at, state in enumerate(states))
            affordable = self._explored + least <= EXPLORATION * self._elapsed
            if not affordable or not source.could_pay(target, len(states)):
                return False, {}, 0.0
            asked, length = [at], 1
        wanted = [min(length, lengths[at]) for at in asked]
        started = time.perf_counter()
        drafts = source.drafter.propose([states[at].inner[name] for at in asked], wanted)
        seconds = time.perf_counter() - started
        self._explored += seconds * exploring
        if all(states[at].unread <= 2 for at in asked):
            passes = max(1, *map(len, drafts))
            source.cost.observe(len(asked), seconds / passes)
        whole = {}
        for at, draft, count in zip(asked, drafts, wanted, strict=True):
            states[at].read = len(states[at].history.tokens) + len(draft)
            if draft.probs is not None:
                whole[at] = draft
            for drafted in range(1, min(count, len(draft) + 1)):
                self._count(states[at], (name, GOES_ON), len(draft) > drafted)
            self._join(name, states[at], trees[at], draft, count)
        return not exploring, whole, seconds

    def _plan(
        self,
        source: ModelSource,
        states: Sequence[_State],
        free: Sequence[Sequence[tuple[float, int]]],
        lengths: Sequence[int],
        target: _Pass,
    ) -> tuple[list[int], int]:
        """Which requests to ask the model for, and for how many tokens; none where free drafts promise more."""
        name = source.drafter.name
        at_most = SOON_READ * target.seconds(0) / target.requests
        reads = [source.catch_up(state) for state in states]
        soon_read = [seconds < at_most for seconds in reads]
        right = [
            self._share(state, (name, WHOLE), UNKNOWN) + HOPED * (soon and not state.read)
            for state, soon in zip(states, soon_read, strict=True)
        ]
        goes_on = [self._share(state, (name, GOES_ON), UNKNOWN) for state in states]
        chances = [[-minus_chance for minus_chance, _ in ranked] for ranked in free]
        copied = [chances[at][: len(nodes)] for at, nodes in enumerate(self._choose(free, target))]
        # What whole drafts gave in the past needs no correction: their nodes weren't picked for being promising.
        whole, gives = target.worth, self._yield(target.requests) * target.worth
        copied_tokens, copied_rows = gives * sum(map(sum, copied)), sum(map(len, copied))
        best_rate = GAIN * (target.requests + copied_tokens) / target.seconds(copied_rows)
        given_up = [gives * sum(shares) for shares in copied]
        left = [
            min(state.history.position + HORIZON * soon, state.history.limit - len(state.history.tokens))
            for state, soon in zip(states, soon_read, strict=True)
        ]
        catch_ups = [seconds / max(1, count) for seconds, count in zip(reads, left, strict=True)]
        best: tuple[list[int], int] = ([], 0)
        most = max(lengths)
        for length in range(min(LEAST_DRAFTED, most), min(MOST_DRAFTED, most) + 1):
            asked: list[int] = []
            tokens, rows, catch_up = target.requests + copied_tokens, float(copied_rows), 0.0
            for at, limit in enumerate(lengths):
                drafted = min(length, limit)
                guessed = whole * sum(right[at] ** depth for depth in range(1, drafted + 1))
                reading = catch_ups[at] * (1 + guessed)
                # More than lookup by as much as reading takes, and more than lookup would have for as many rows.
                if guessed - given_up[at] > reading * best_rate and guessed > gives * sum(chances[at][:drafted]):
                    asked.append(at)
                    tokens += guessed - given_up[at]
                    rows += sum(goes_on[at] ** depth for depth in range(drafted)) - len(copied[at])
                    catch_up += reading
            if asked:
                drafting = source.seconds([goes_on[at] for at in asked], length)
                rate = tokens / (target.seconds(rows) + drafting + catch_up)
                if rate > best_rate:
                    best_rate, best = rate, (asked, length)
        return best


def _luck_of(state: _State, kind: tuple[str, int]) -> _Luck:
    return state.draft_luck if kind[1] in (WHOLE, GOES_ON) else state.luck


def _claims(draft: Draft) -> list[float]:
    return [UNKNOWN] * len(draft) if draft.confidence is None else draft.confidence.tolist()


def _bucket(draft: Draft, node: int) -> int:
    """Guesses of about the same confidence are judged together."""
    return 0 if draft.confidence is None else min(9, int(draft.confidence[node] * 10))
