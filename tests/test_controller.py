"""The controller: what it chooses, how fast it follows the text, and what its exploration may cost.

Time is that of a cost curve and texts are made up, so nothing here depends on the machine.
"""

from collections.abc import Sequence
from itertools import count, product
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import controller as module
from slipstream.controller import Controller, ModelSource
from slipstream.cost import ROWS, CostCurve
from slipstream.drafters import History
from slipstream.types import ROOT, Draft

FLAT = {1: 1.0, 16: 1.15}  # a memory-bound pass
STEEP = {1: 1.0, 16: 16.0}  # a compute-bound one


class Knowing:
    """Guesses the text's next tokens where `knows` says so, nonsense elsewhere."""

    name: ClassVar[str] = "knowing"

    def __init__(self, knows: Sequence[bool], confidence: float | None = None, name: str = "knowing") -> None:
        self.knows, self.confidence = knows, confidence
        self.name = name  # type: ignore[misc]
        self.asked: list[int] = []

    def start(self, history: History) -> History:
        return history

    def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
        self.asked += lengths
        drafts = []
        for history, length in zip(states, lengths, strict=True):
            at = len(history.tokens)
            tokens = [text(place) if self.knows[place] else -5 for place in range(at, at + length)]
            confidence = None if self.confidence is None else np.full(length, self.confidence, np.float32)
            drafts.append(Draft.chain(tokens, confidence=confidence))
        return drafts


def text(place: int) -> int:
    return 1000 + place


def history(length: int = 1, limit: int = 10_000) -> History:
    tokens = [text(place) for place in range(length)]
    return History(tokens, length, limit, sampler=None, cache=None)  # type: ignore[arg-type]


def run(auto: Controller, states: Sequence[object], steps: int, limit: int = 16) -> list[list[int]]:
    """Drafted nodes of each request at every step; commits what the text says."""
    drafted = []
    for _ in range(steps):
        drafts = auto.propose(states, [limit] * len(states))
        for state, draft in zip(states, drafts, strict=True):
            tokens = state.history.tokens
            node = ROOT
            while True:
                right = [
                    child
                    for child, parent in enumerate(draft.parents)
                    if parent == node and draft.tokens[child] == text(len(tokens))
                ]
                tokens.append(text(len(tokens)))
                if not right:
                    break
                (node,) = right
        drafted.append([len(draft) for draft in drafts])
    return drafted


def started(auto: Controller, count: int = 1) -> list[object]:
    return [auto.start(history()) for _ in range(count)]


def test_hopeless_guesses_end() -> None:
    auto = Controller([Knowing([False] * 1000)], None, CostCurve(STEEP))
    drafted = run(auto, started(auto), 100)
    assert all(count == [0] for count in drafted[20:])


def test_good_guesses_take_all_that_is_cheap() -> None:
    auto = Controller([Knowing([True] * 5000)], None, CostCurve(FLAT))
    assert run(auto, started(auto), 60)[-1] == [16]


def test_a_compute_bound_pass_is_not_worth_an_uncertain_guess() -> None:
    """T(r) = r: even a guess that is always right gains nothing, and one that is sometimes wrong loses."""
    auto = Controller([Knowing([place % 3 > 0 for place in range(1000)])], None, CostCurve(STEEP))
    assert run(auto, started(auto), 60)[-20:] == [[0]] * 20


def test_it_follows_the_text_from_novel_to_copied_and_back() -> None:
    knows = [200 <= place < 400 for place in range(2000)]
    auto = Controller([Knowing(knows)], None, CostCurve({1: 1.0, 8: 1.6, 16: 3.2}))
    (state,) = started(auto)
    at_step = []
    for _ in range(300):
        at = len(state.history.tokens)
        at_step.append((at, run(auto, [state], 1, limit=8)[0][0]))
    novel = [count for at, count in at_step if 30 < at < 195]
    copied = [count for at, count in at_step if 230 < at < 390]
    after = [count for at, count in at_step if at > 430]
    assert sum(novel) <= len(novel) // 10
    assert np.mean(copied) > 5
    assert sum(after[30:]) <= len(after) // 10
    first = next(place for place, (at, count) in enumerate(at_step) if at >= 200 and count)
    started_copy = next(place for place, (at, _) in enumerate(at_step) if at >= 200)
    assert first - started_copy <= 8
    ended = next(place for place, (at, _) in enumerate(at_step) if at >= 400)
    assert all(count == 0 for _, count in at_step[ended + 20 : ended + 40])


def test_unverified_guesses_are_judged_by_what_follows() -> None:
    """Drafting nothing, it still finds out that guesses became right."""
    auto = Controller([Knowing([place > 300 for place in range(3000)])], None, CostCurve({1: 1.0, 16: 3.0}))
    (state,) = started(auto)
    while len(state.history.tokens) < 300:
        run(auto, [state], 1)
    assert run(auto, [state], 1) == [[0]]
    assert max(run(auto, [state], 12))[0] > 0


def test_requests_of_a_batch_get_what_their_text_is_worth() -> None:
    copied, novel = history(), history()
    drafter = Knowing([True] * 5000)
    auto = Controller([drafter], None, CostCurve({1: 1.0, 8: 1.3, 16: 2.6}))
    states = [auto.start(copied), auto.start(novel)]

    class Mixed(Knowing):
        def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
            drafts = super().propose(states, lengths)
            return [
                draft if state is copied else Draft.chain([-5] * len(draft))
                for state, draft in zip(states, drafts, strict=True)
            ]

    mixed = Mixed([True] * 5000)
    auto = Controller([mixed], None, CostCurve({1: 1.0, 8: 1.3, 16: 2.6}))
    states = [auto.start(copied), auto.start(novel)]
    last = run(auto, states, 60)[-1]
    assert last[0] >= 4
    assert last[1] == 0


def test_drafts_end_under_load() -> None:
    counts = {}
    for batch in (1, 4, 16):
        auto = Controller([Knowing([place % 4 > 0 for place in range(5000)])], None, CostCurve({1: 1, 8: 1.2, 64: 20}))
        counts[batch] = run(auto, started(auto, batch), 80)[-1]
    assert counts[1][0] >= 2
    assert sum(counts[16]) == 0


def test_the_worth_of_a_token_by_hand() -> None:
    """Of a pass that costs the same for all rows, a token spares nothing for certain; of rows that cost alike, all."""
    assert module._Pass(CostCurve({1: 1.0, 16: 1.0}), 4, 0).worth == 0.5
    assert module._Pass(CostCurve({1: 1.0, 16: 16.0}), 4, 0).worth == 1.0
    assert module._Pass(CostCurve({1: 1.0, 2: 1.5}), 2, 0).worth == pytest.approx((1 + 2 * 0.5 / 1.5) / 2)
    assert module._Pass(CostCurve({1: 1.0, 16: 1.0}), 1, 0).worth == 1.0


def test_nobody_is_asked_where_not_even_a_right_guess_pays() -> None:
    source = Knowing([True] * 5000)
    auto = Controller([source], None, CostCurve(STEEP))
    run(auto, started(auto, 8), 50)
    assert source.asked == []


@given(
    steps=st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9), requests=st.integers(1, 20), sunk=st.integers(0, 40)
)
def test_whether_any_draft_could_pay_shows_at_the_points_of_the_curve(
    steps: list[float], requests: int, sunk: int
) -> None:
    target = module._Pass(
        CostCurve(dict(zip(ROWS, (1 + sum(steps[:at]) for at in range(9)), strict=True))), requests, sunk
    )
    assert target.could_pay() == any(target.pays(nodes, nodes) for nodes in range(1, module.MOST_LOOKED_AT + 1))


def test_drafts_that_give_less_than_they_promise_end() -> None:
    """Guesses that are right where nobody drafts and wrong where they are drafted: only the yield can tell."""

    class Contrary(Knowing):
        def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
            return [Draft.chain([-5], confidence=np.array([0.95], np.float32)) for _ in states]

    auto = Controller([Contrary([])], None, CostCurve({1: 1.0, 2: 1.7}))
    auto._luck.share = lambda kind, expected: 0.95  # type: ignore[method-assign]
    state = started(auto)[0]
    state.luck.share = lambda kind, expected: 0.95
    drafted = run(auto, [state], 60)
    assert drafted[0] == [1]
    assert drafted[-1] == [0]


def test_a_chunk_of_a_prompt_makes_no_guess_worth_more() -> None:
    """A pass that also reads a prompt is long; that doesn't make a row cheaper than the token that it may give."""
    auto = Controller([Knowing([place % 10 == 0 for place in range(5000)])], None, CostCurve(STEEP))
    state = started(auto)[0]
    run(auto, [state], 50)
    (draft,) = auto.propose([state], [16], requests=4, sunk=250)
    assert len(draft) == 0


trees = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.floats(0.01, 0.99)), max_size=4), min_size=1, max_size=3
)  # of each request: (how far back the parent is, share)
curves = st.lists(st.floats(0.01, 3), min_size=15, max_size=15)


@given(trees, curves, st.integers(0, 2), st.integers(0, 20))
def test_no_other_choice_of_nodes_is_faster(
    shape: list[list[tuple[int, float]]], increments: list[float], others: int, sunk: int
) -> None:
    seconds = dict(enumerate(np.cumsum(increments).tolist(), 1))
    auto = Controller([], None, CostCurve(seconds))
    joined = []
    for nodes in shape:
        tree = module._Tree()
        parents = [at - back if back else ROOT for at, (back, _) in enumerate(nodes)]
        parents = [parent if parent >= 0 else ROOT for parent in parents]
        tree.add(
            Draft(np.arange(len(nodes), dtype=np.int32), np.array(parents, np.int32)), [share for _, share in nodes]
        )
        joined.append(tree)
    requests = len(shape) + others
    target = module._Pass(auto.cost, requests, sunk)
    chosen = auto._choose([tree.best(16) for tree in joined], target)

    def rate(choice: Sequence[Sequence[int]]) -> float:
        gain = sum(tree.chances()[node] for tree, nodes in zip(joined, choice, strict=True) for node in nodes)
        rows = sum(map(len, choice))
        margin = auto.cost(requests + sunk + rows) - auto.cost(requests + sunk)
        return (requests + gain * target.worth) / (auto.cost(requests) + margin)

    for tree, nodes in zip(joined, chosen, strict=True):
        assert all(tree.parents[node] in (ROOT, *nodes) for node in nodes)  # whole paths

    def prefixes(tree: module._Tree) -> list[list[int]]:
        subsets = product((False, True), repeat=len(tree.tokens))
        picked = [[node for node, taken in enumerate(subset) if taken] for subset in subsets]
        return [nodes for nodes in picked if all(tree.parents[node] in (ROOT, *nodes) for node in nodes)]

    fastest = max(rate(choice) for choice in product(*map(prefixes, joined)))
    assert rate(chosen) * module.GAIN >= fastest * (1 - 1e-9)


def model_source(knows: Sequence[bool], seconds: float) -> ModelSource:
    return ModelSource(Knowing(knows, name="model"), CostCurve({1: seconds}), catches_up=False)


def clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes every draft pass take so long, as the controller measures it."""
    ticks = count(0.0, seconds)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))


def test_a_model_drafts_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model_source([True] * 5000, 0.1)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    auto = Controller([Knowing([False] * 5000)], source, CostCurve(FLAT))
    assert run(auto, started(auto), 30)[-1] == [module.MOST_DRAFTED]


def test_a_model_s_passes_are_as_slow_as_the_target_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that were measured while the machine was busy don't keep a model from being used when it no longer is."""
    clock(monkeypatch, 0.0005)
    source = ModelSource(Knowing([True] * 5000, name="model"), CostCurve({1: 0.9}), catches_up=False)
    auto = Controller([], source, CostCurve({1: 1.0, 16: 1.1}))
    states = started(auto)
    run(auto, states, 20)
    assert source.drafter.asked == []  # a draft costs nearly what it saves
    for _ in range(40):
        auto.cost.observe(1, 0.5)
    auto.propose(states, [16])
    assert source.cost(1) == pytest.approx(0.45, rel=0.1)


def test_a_model_rests_where_lookup_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 0.1)
    source = model_source([True] * 5000, 0.1)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    auto = Controller([Knowing([True] * 5000)], source, CostCurve(FLAT))
    run(auto, started(auto), 20)
    source.drafter.asked.clear()
    run(auto, started(auto), 50)
    assert sum(source.drafter.asked) * 0.1 <= 70 * 1.15 * module.EXPLORATION  # now and then, to see whether it still is


@pytest.mark.parametrize("share", [0.1, 0.5, 2.0])
def test_exploration_is_bounded(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """A model that is never right costs little more than EXPLORATION once that is known, whatever its passes cost."""
    clock(monkeypatch, share)
    source = model_source([False] * 5000, share)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    auto = Controller([], source, CostCurve({1: 1.0, 2: 1.5}))
    states = started(auto)
    run(auto, states, 20)
    source.drafter.asked.clear()
    run(auto, states, 1000)
    assert sum(source.drafter.asked) * share <= 1020 * 1.0 * module.EXPLORATION + share


class Timed(Knowing):
    """Takes a share of a second of a pass, 1 s, to look."""

    def __init__(self, knows: Sequence[bool], monkeypatch: pytest.MonkeyPatch, share: float) -> None:
        super().__init__(knows, confidence=0.9)
        self.seconds, self.share = 0.0, share
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.seconds)

    def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
        self.seconds += self.share
        return super().propose(states, lengths)


def test_looking_for_what_is_not_there_takes_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Timed([False] * 5000, monkeypatch, share=0.03)
    auto = Controller([drafter], None, CostCurve(FLAT))
    states = started(auto)
    run(auto, states, 200)
    drafter.seconds = 0.0
    run(auto, states, 1000)
    assert drafter.seconds <= 1000 * 1.0 * module.EXPLORATION
    drafter.knows = [True] * 20_000
    assert max(run(auto, states, 20))[0] > 0  # and what begins to be there is found


def test_looking_that_pays_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Timed([True] * 20_000, monkeypatch, share=0.03)
    auto = Controller([drafter], None, CostCurve(FLAT))
    assert [16] * 40 == [count for (count,) in run(auto, started(auto), 50)[10:]]


def test_a_text_that_a_model_was_wrong_about_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model is right elsewhere, what it was wrong about in this text counts less the longer ago it was."""
    source = model_source([not 300 <= place < 420 for place in range(5000)], 0.2)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    clock(monkeypatch, 0.001)
    auto = Controller([], source, CostCurve({1: 1.0, 8: 1.2}))
    auto._explored = float("inf")  # no trying for the sake of it
    (state,) = started(auto)
    at_step = []
    for _ in range(260):
        at = len(state.history.tokens)
        at_step.append((at, run(auto, [state], 1)[0][0]))
    assert [count for at, count in at_step if 325 < at < 420] == [0] * 94
    again = next(at for at, count in at_step if at >= 420 and count)
    assert again < 430


def test_a_poor_draft_of_a_model_that_pays_brings_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uneven(Knowing):
        """Every other draft is one that the model itself doesn't believe in, and wrong."""

        def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
            drafts = super().propose(states, lengths)
            if len(self.asked) % 2:
                return drafts
            return [Draft.chain([-5], confidence=np.array([0.05], np.float32)) for _ in drafts]

    source = ModelSource(Uneven([True] * 5000, 0.95, "model"), CostCurve({1: 0.05}), catches_up=False)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    clock(monkeypatch, 0.05)
    auto = Controller([], source, CostCurve({1: 1.0, 2: 1.2, 8: 2.0}))
    run(auto, started(auto), 100)
    assert len(source.drafter.asked) == 100


def test_a_model_is_not_explored_where_it_cannot_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 0.01)
    source = model_source([True] * 5000, 0.01)
    auto = Controller([], source, CostCurve(STEEP))
    run(auto, started(auto), 500)
    assert source.drafter.asked == []


def test_a_long_unread_text_is_not_read_for_exploration(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 0.01)
    source = ModelSource(Knowing([True] * 5000, name="model"), CostCurve({1: 0.001, 2: 0.002}), catches_up=True)
    auto = Controller([], source, CostCurve({1: 1.0, 2: 1.8}))
    state = auto.start(history(1000))  # a second to read
    run(auto, [state], 90)
    assert source.drafter.asked == []
    run(auto, [state], 40)
    assert source.drafter.asked


def reading_model(monkeypatch: pytest.MonkeyPatch) -> tuple[ModelSource, Controller]:
    """A model that is always right and reads 100 tokens in the time of a plain one; its controller."""
    clock(monkeypatch, 0.1)
    source = ModelSource(Knowing([True] * 5000, name="model"), CostCurve({1: 0.1, 2: 0.11}), catches_up=True)
    auto = Controller([], source, CostCurve(FLAT))
    return source, auto


def test_a_long_prompt_is_read_once_the_answer_proves_long(monkeypatch: pytest.MonkeyPatch) -> None:
    source, auto = reading_model(monkeypatch)
    state = auto.start(history(1600))  # reading takes as long as 16 plain tokens, and spares 40% of each to come
    run(auto, [state], 30)
    assert source.drafter.asked == []
    run(auto, [state], 30)
    assert source.drafter.asked


def test_a_short_prompt_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source, auto = reading_model(monkeypatch)
    run(auto, [auto.start(history(200))], 1)
    assert source.drafter.asked
    source.drafter.asked.clear()
    auto.propose([auto.start(history(200))], [16], requests=8)  # seven others would wait for it
    assert source.drafter.asked == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3), st.integers(1, 4))
def test_drafting_takes_until_the_last_draft_ends(goes_on: list[float], length: int) -> None:
    source = ModelSource(Knowing([]), CostCurve({1: 1.0, 2: 1.0}), catches_up=True)
    expected = 0.0
    for ends in product(range(1, length + 1), repeat=len(goes_on)):
        chance = 1.0
        for share, end in zip(goes_on, ends, strict=True):
            chance *= share ** (end - 1) * (1.0 if end == length else 1 - share)
        expected += chance * max(ends)
    assert source.seconds(goes_on, length) == pytest.approx(expected)


def test_a_draft_of_the_rule_rejection_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawn(Knowing):
        def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
            return [
                Draft.chain(draft.tokens.tolist(), np.ones((len(draft), 1)))
                for draft in super().propose(states, lengths)
            ]

    source = ModelSource(Drawn([place % 2 == 0 for place in range(5000)], name="model"), CostCurve({1: 0.01}), False)
    monkeypatch.setattr(source.cost, "observe", lambda rows, seconds: None)
    auto = Controller([Knowing([True] * 5000)], source, CostCurve(FLAT))
    for _ in range(10):
        state = started(auto)[0]
        (draft,) = auto.propose([state], [16])
        assert draft.probs is None or len(draft) == source.drafter.asked[-1]


def test_drafts_join_into_one_tree() -> None:
    tree = module._Tree()
    tree.add(Draft.chain([1, 2, 3]), [0.9, 0.8, 0.7])
    tree.add(Draft(np.array([1, 4, 2], np.int32), np.array([ROOT, ROOT, 0], np.int32)), [0.5, 0.4, 0.95])
    assert (tree.tokens, tree.parents) == ([1, 2, 3, 4], [ROOT, 0, 1, ROOT])
    assert tree.shares == [0.9, 0.95, 0.7, 0.4]
    assert tree.chances() == pytest.approx([0.9, 0.855, 0.5985, 0.4])
    pruned = tree.pruned([3, 0])
    assert (pruned.tokens.tolist(), pruned.parents.tolist()) == ([1, 4], [ROOT, ROOT])
