"""The cross-request store: what it finds, what it forgets, whom it serves, and its file."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from test_ngram import Conversation
from test_suffix_automaton import occurrences

from slipstream import Engine, SamplingParams
from slipstream.drafters.base import Models
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.store import DIGEST_BYTES, LOOKBACK, MAGIC, MAX_FILE_BYTES, Store
from slipstream.errors import ModelError, OptionError
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.tokenizer import Tokenizer


class Vocabulary:
    """As much of a tokenizer as a store of ids needs."""

    def __init__(self, size: int = 60_000, first: str = "0") -> None:
        self.vocab_size = size
        self.first = first

    def token_string(self, token: int) -> str:
        return str(token) if token else self.first


TOKENIZER = Vocabulary(300)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return open_checkpoint(tiny.make(tmp_path_factory.mktemp("store"))).tokenizer()


def stored(*texts: list[int], max_tokens: int = 1000) -> Store:
    store = Store(TOKENIZER, max_tokens=max_tokens)
    for text in texts:
        store.add(text)
    return store


def longest(store: Store, tokens: list[int]) -> int:
    with store.lock:
        return store.reader(tokens).longest().length


def texts_of(store: Store, folder: Path) -> list[int]:
    """All its tokens, by way of its file."""
    store.save(folder / "store")
    return file_of(folder / "store")


def file_of(path: Path) -> list[int]:
    """All tokens in a store's file."""
    return memoryview(path.read_bytes()[len(MAGIC) + 2 * DIGEST_BYTES :]).cast("i").tolist()


def test_the_longest_match_in_any_text() -> None:
    store = stored([1, 2, 3, 4], [9, 2, 3, 5])
    assert longest(store, [7, 1, 2, 3]) == 3
    assert longest(store, [7, 9, 2, 3]) == 3
    assert longest(store, [4, 9]) == 1  # no match goes from one text into the next
    assert longest(store, [8]) == 0
    assert longest(Store(TOKENIZER), [8]) == 0


@given(st.lists(st.lists(st.integers(0, 2), max_size=15), max_size=6), st.lists(st.integers(0, 2), max_size=20))
def test_against_a_search_by_hand(texts: list[list[int]], history: list[int]) -> None:
    store = stored(*texts)
    found = [size for size in range(1, len(history) + 1) if any(occurrences(t, history[-size:]) for t in texts)]
    assert longest(store, history) == max(found, default=0)


def test_a_reader_goes_on_while_texts_come_and_go() -> None:
    rng = random.Random(1)
    store = stored(max_tokens=80)
    history: list[int] = []
    reader = store.reader(history)
    for _ in range(60):
        store.add([rng.randrange(3) for _ in range(rng.randrange(12))])
        history.append(rng.randrange(3))
        assert reader.longest() == store.reader(history).longest()
    assert reader.longest().length > 1


def test_a_new_reader_looks_back_so_far() -> None:
    text = [token % 300 for token in range(3 * LOOKBACK)]
    assert longest(stored(text), text) == LOOKBACK


def test_the_oldest_is_forgotten() -> None:
    store = stored(max_tokens=40)
    for text in range(20):
        store.add([text] * 4)
        assert len(store) <= 40
    assert longest(store, [19] * 4) == 4
    assert longest(store, [14] * 4) == 4  # at least three quarters stay
    assert longest(store, [0] * 4) == 0


def test_memory_is_bounded_over_a_million_tokens() -> None:
    store = Store(Vocabulary(60_000), max_tokens=4000)
    rng = random.Random(2)
    text = [rng.randrange(60_000) for _ in range(50_000)]
    for _ in range(20):
        store.add(text)
        states = [segment.automaton.num_states for segment in store._segments]
        assert len(store) <= 4000
        assert sum(states) <= 2 * 4000
    assert len(store) >= 3000


def test_bad_values() -> None:
    with pytest.raises(OptionError, match="max_tokens of a store is 3: use at least 4"):
        Store(TOKENIZER, max_tokens=3)
    store = stored()
    for token in (-1, 300, 1 << 40):
        with pytest.raises(OptionError, match=f"token id {token}: use ids from 0 to 299"):
            store.add([1, 2, token])
    assert len(store) == 0


def test_a_drafter_takes_the_longer_match() -> None:
    store = stored([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    with_store = Conversation([4, 100, 1, 2, 3, 4], store=_serving(store))
    assert with_store.propose(3).tokens.tolist() == [5, 6, 7]
    assert Conversation([4, 100, 1, 2, 3, 4]).propose(3).tokens.tolist() == [100]
    own = Conversation([1, 2, 3, 4, 200, 201, 1, 2, 3, 4], store=_serving(store))
    assert own.propose(2).tokens.tolist() == [200, 201]  # of equals, the history's own


def test_a_draft_ends_where_a_text_ends() -> None:
    store = stored(list(range(1, 30)), list(range(50, 60)))
    draft = Conversation(list(range(1, 28)), store=_serving(store)).propose(8)
    assert draft.tokens.tolist() == [28, 29]


def test_what_is_learnt_is_found_at_once() -> None:
    store = stored()
    conversation = Conversation([5, 6, 7, 8], store=_serving(store))
    assert len(conversation.propose(4)) == 0
    store.add([5, 6, 7, 8, 9, 10])
    assert conversation.propose(4).tokens.tolist() == [9, 10]


def test_stores_are_separate() -> None:
    ours, theirs = stored([1, 2, 3, 4]), stored([5, 6, 7, 8])
    assert longest(ours, [5, 6, 7]) == 0
    assert longest(theirs, [1, 2, 3]) == 0


def test_a_store_for_another_tokenizer_is_refused() -> None:
    for other in (Vocabulary(301), Vocabulary(300, first="zero")):
        with pytest.raises(ModelError, match="tokens of another tokenizer"):
            NgramDrafter(SimpleNamespace(store=stored(), tokenizer=other))
    NgramDrafter(SimpleNamespace(store=stored(), tokenizer=Vocabulary(300)))


def test_several_threads() -> None:
    store = stored(max_tokens=400)
    conversation = Conversation([1, 2, 3], store=_serving(store))
    errors: list[BaseException] = []

    def learn(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(100):
                store.add([rng.randrange(4) for _ in range(20)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    rng = random.Random(9)
    for _ in range(200):
        conversation.say(rng.randrange(4))
        for parent, token in zip(*_lists(conversation.propose(5)), strict=True):
            assert parent >= -1
            assert 0 <= token < 4
    for thread in threads:
        thread.join()
    assert not errors
    assert len(store) <= 400


def test_the_output_stays_the_same(tmp_path: Path) -> None:
    """A model's own outputs in the store make fewer passes, and nothing else."""
    folder = tiny.make(tmp_path / "model")
    engine = Engine.load(folder, drafter="ngram")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = engine.generate("the thing", params, drafter="null")
    store = Store(engine.tokenizer)
    store.add(plain.token_ids)
    remembering = Engine(Models(engine.target, engine.tokenizer, store=store), drafter="ngram")
    with_store = remembering.generate("the thing", params)
    assert with_store.token_ids == plain.token_ids
    without = engine.generate("the thing", params)
    assert with_store.speculation.target_passes < without.speculation.target_passes


def test_saved_and_loaded(tmp_path: Path) -> None:
    store = stored([1, 2, 3, 4], [5], [], max_tokens=20)
    path = tmp_path / "store"
    store.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    loaded = Store.load(path, TOKENIZER, max_tokens=20)
    assert texts_of(loaded, tmp_path) == texts_of(store, tmp_path) == [1, 2, 3, 4, -1, 5, -1, -1]
    assert longest(loaded, [1, 2, 3]) == 3
    assert texts_of(Store.load(path, TOKENIZER, max_tokens=8), tmp_path) == [1, 2, 3, 4, -1, 5, -1, -1]
    assert texts_of(Store.load(path, TOKENIZER, max_tokens=4), tmp_path) == [-1, 5, -1, -1]
    Store(TOKENIZER).save(path)
    assert len(Store.load(path, TOKENIZER)) == 0


def test_writers_of_one_file_keep_what_the_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first, second = Store(TOKENIZER), Store(TOKENIZER)  # before there is a file
    first.add([1, 2])
    second.add([3, 4])
    first.update(path)
    assert path.stat().st_mode & 0o777 == 0o600
    second.update(path)
    assert file_of(path) == [1, 2, -1, 3, 4, -1]
    third, fourth = Store.load(path, TOKENIZER), Store.load(path, TOKENIZER)
    third.add([5])
    fourth.add([6])
    fourth.update(path)
    third.update(path)
    third.update(path)  # nothing is new
    fourth.add([7])
    fourth.update(path)
    assert file_of(path) == [1, 2, -1, 3, 4, -1, 6, -1, 5, -1, 7, -1]


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def write(token: int) -> None:
        store = Store(TOKENIZER)
        for _ in range(4):
            store.add([token])
            store.update(path)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert sorted(file_of(path)) == [-1] * 16 + [token for token in range(4) for _ in range(4)]


def test_an_updated_file_holds_no_more_than_the_store_may(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stored([1, 2, 3], [4, 5, 6], max_tokens=8).update(path)
    later = Store(TOKENIZER, max_tokens=8)
    later.add([7, 8, 9])
    later.update(path)
    assert file_of(path) == [4, 5, 6, -1, 7, 8, 9, -1]
    full = stored([11, 12, 13], [14, 15, 16], [17, 18, 19], max_tokens=8)  # has forgotten the first
    full.update(path)
    assert file_of(path) == [14, 15, 16, -1, 17, 18, 19, -1]


def test_a_link_to_a_store_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("store")
    stored([1, 2]).update(tmp_path / "link")
    stored([3]).update(tmp_path / "store")
    assert (tmp_path / "link").is_symlink()
    assert file_of(tmp_path / "link") == [1, 2, -1, 3, -1]


def test_an_update_that_fails_can_be_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("somebody's letter")
    store = stored([1, 2])
    with pytest.raises(ModelError, match="is not a Slipstream store"):
        store.update(path)
    assert path.read_text() == "somebody's letter"
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OptionError, match="is not a regular file, so it can't be read again"):
            store.update(special)
        with pytest.raises(OptionError, match="is not a regular file"):
            Store.load(special, TOKENIZER)
    with pytest.raises(OptionError, match=r"can't be written to .*nowhere.*No such file"):
        store.update(tmp_path / "nowhere" / "store")
    store.update(tmp_path / "new")
    assert file_of(tmp_path / "new") == [1, 2, -1]


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(OptionError, match="can't be read"):
        Store.load(path, TOKENIZER)
    with pytest.raises(OptionError, match="can't be written"):
        stored().save(tmp_path / "nowhere" / "store")
    stored([1, 2, 3]).save(path)
    whole = path.read_bytes()
    flipped = whole[:-8] + b"\x01" + whole[-7:]
    for damaged in (whole[:-1], whole[:-4], whole + b"\0\0\0\0", flipped, whole[: len(MAGIC)]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="is damaged: delete it"):
            Store.load(path, TOKENIZER)
    for foreign in (b"", b"slipstream", b"PK\x03\x04" + whole):
        path.write_bytes(foreign)
        with pytest.raises(ModelError, match="is not a Slipstream store"):
            Store.load(path, TOKENIZER)
    path.write_bytes(whole)
    for other in (Vocabulary(301), Vocabulary(300, first="zero")):
        with pytest.raises(ModelError, match="made with another tokenizer"):
            Store.load(path, other)
    assert len(Store.load(path, TOKENIZER)) == 4


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    stored([1, 2, 3]).save(path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OptionError, match=r"can't be written to .*Permission denied"):
        stored([4, 5, 6, 7]).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    assert longest(Store.load(path, TOKENIZER), [1, 2, 3]) == 3


def test_a_folder(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "c.txt").write_text("the thing in the hand")
    (tmp_path / "b" / "a.py").write_text("print('the hand')")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / "link.txt").symlink_to(tmp_path / "c.txt")
    large = tmp_path / "large.txt"
    large.write_text("a" * (MAX_FILE_BYTES + 1))
    calls: list[tuple[str, int, int]] = []
    store = Store.from_folder(tmp_path, tokenizer, progress=lambda *call: calls.append(call))
    assert store.left_out == (large,)
    assert calls[0] == ("reading texts", 0, 6)
    assert calls[-1] == ("reading texts", 6, 6)
    expected = [*tokenizer.spell("print('the hand')"), -1, *tokenizer.spell("the thing in the hand"), -1]
    assert texts_of(store, tmp_path) == expected


def test_a_folder_that_is_too_large_or_no_use(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in "abc":
        (tmp_path / name).write_text("xyz")
    for max_tokens in (8, 9, 11):
        store = Store.from_folder(tmp_path, tokenizer, max_tokens=max_tokens)
        assert texts_of(store, tmp_path.parent) == [*tokenizer.spell("xyz"), -1] * 2
        assert store.left_out == (tmp_path / "c",)
    with pytest.raises(OptionError, match="missing can't be read"):
        Store.from_folder(tmp_path / "missing", tokenizer)
    with pytest.raises(OptionError, match="can't be read"):
        Store.from_folder(tmp_path / "a", tokenizer)
    (tmp_path / "bare").mkdir()
    with pytest.raises(OptionError, match="holds no text that fits"):
        Store.from_folder(tmp_path / "bare", tokenizer)


def _lists(draft: object) -> tuple[list[int], list[int]]:
    return draft.parents.tolist(), draft.tokens.tolist()  # type: ignore[attr-defined]


class _serving:
    """The store, for a drafter whose tokenizer is of no interest."""

    def __init__(self, store: Store) -> None:
        self.lock, self.reader = store.lock, store.reader

    def fits(self, tokenizer: object) -> bool:
        return True


def test_an_engine_looks_up_in_a_corpus(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    plain = Engine.load(tiny_models["llama"], drafter="null")
    answer = plain.generate("ab", SamplingParams(max_tokens=40, ignore_eos=True))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("nothing of use " * 3)
    engine = Engine.load(tiny_models["llama"], drafter="ngram", corpus=tmp_path / "texts", remember=True)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    first, second = engine.generate("ab", params), engine.generate("ab", params)
    assert answer.token_ids == first.token_ids == second.token_ids
    assert second.speculation.target_passes < first.speculation.target_passes / 2  # it remembers the answer


def test_an_engine_remembers_nothing_unless_asked(tiny_models: dict[str, Path]) -> None:
    engine = Engine.load(tiny_models["llama"], drafter="ngram")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    first, second = engine.generate("ab", params), engine.generate("ab", params)
    assert second.speculation.target_passes == first.speculation.target_passes
