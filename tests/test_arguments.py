"""Every argument of the public API: whatever it is given, a result comes, or a SlipstreamError of one line."""

import array
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import Engine, OptionError, Request, SamplingParams, SlipstreamError, kernels
from slipstream.drafters import Models
from slipstream.drafters.store import Store

PARAMS = SamplingParams(max_tokens=2)


class Hostile:
    """A value whose every way of being looked at raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


WRONG: list[Any] = [
    *(None, True, False, 0, 1, -1, -3, 2, 10**30, 10**5000, 2**64, 1.5, -0.5, math.nan, math.inf, 1e-320, 1j),
    *("", "x", "null", "3", "\0", "~nobody-of-this-name/x", "a" * 5000, "\ud800", "two\nlines"),
    *(b"", b"ab", bytearray(b"ab"), memoryview(b"ab"), array.array("i", [1, 2])),
    *([], [1], [[1]], [True], [None], [1.0], ["a"], [1, "a"], [[]], [{}], [{"role": 1}], [b"a"], [2**70], [-1]),
    *((), (1,), {}, {1: 1}, {"a": {}}, {1}, range(3), iter([1, 2]), object(), Hostile(), [Hostile()], int, len),
    *(np.int64(1), np.uint64(2**64 - 1), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("x"), np.array(3)),
    *(np.array([1, 2]), np.array([1.0]), np.ones((2, 2), int), np.array([]), np.array(["a"]), np.array([True])),
    *(Path(), Path("nowhere"), PARAMS, [PARAMS], Request("a"), [Request("a", PARAMS)]),
]
anything = st.one_of(
    st.sampled_from(WRONG),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=6,
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("arguments") / "model", max_position_embeddings=64)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.load(folder, drafter="ngram", remember=True)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files that a name such as "x" makes go to a folder of the test's own, and threads are as before."""
    monkeypatch.chdir(tmp_path)
    before = kernels.threads()
    yield
    kernels.set_threads(before)


def harmless(call: Callable[[], object]) -> None:
    """Raises where the call neither returns within 20 seconds nor raises a SlipstreamError of one line."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    for error in caught:
        if not isinstance(error, SlipstreamError):
            raise error
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "name",
    "model draft_model dtype threads drafter num_speculative_tokens max_batch_size corpus remember progress".split(),
)
def test_load(folder: Path, name: str) -> None:
    def load(value: object) -> None:
        given = {"model": folder, "drafter": "ngram", name: value}
        Engine.load(**given).generate([1], PARAMS)

    for value in WRONG:
        if not (name == "progress" and callable(value)):  # what a caller's own function raises is the caller's
            harmless(lambda value=value: load(value))


@pytest.mark.parametrize(
    "name",
    [
        "models",
        "model_name",
        "drafter",
        "num_speculative_tokens",
        "max_batch_size",
        "remember",
        "load_seconds",
        "tuned",
    ],
)
def test_an_engine_of_parts(engine: Engine, name: str) -> None:
    def build(value: object) -> None:
        given: dict[str, Any] = {"models": Models(engine.target, engine.tokenizer), "drafter": "ngram", name: value}
        Engine(**given).generate([1], PARAMS)

    for value in WRONG:
        harmless(lambda value=value: build(value))


FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize("name", FIELDS)
def test_sampling_parameters(engine: Engine, name: str) -> None:
    for value in WRONG:
        given = {"max_tokens": 2, name: value}
        harmless(lambda given=given: engine.generate_batch([Request("the", SamplingParams(**given))]))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FIELDS), value=anything)
def test_any_sampling_parameter(engine: Engine, name: str, value: Any) -> None:
    given = {"max_tokens": 2, name: value}
    harmless(lambda: engine.generate_batch([Request("the", SamplingParams(**given))]))


@pytest.mark.parametrize("name", ["prompt", "params", "drafter", "num_speculative_tokens"])
def test_requests(engine: Engine, name: str) -> None:
    for value in WRONG:
        given = {"prompt": "the", "params": PARAMS, name: value}
        harmless(lambda given=given: engine.generate_batch([Request(**given)]))
        harmless(lambda given=given: engine.generate(**given))
        harmless(lambda given=given: list(engine.stream(**given)))


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    return schema


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


GRAMMARS: dict[str, list[Any]] = {
    "json_schema": [
        *({}, {"type": "nothing"}, {"$ref": "#"}, {"$ref": "#/x"}, {"$ref": "http://nowhere"}, circular()),
        *(deep(100), deep(5000), {(1, 2): 3}, {"enum": [Hostile()]}, {"const": math.nan}, {"items": 3}),
        *({"pattern": "("}, {"type": "string", "pattern": "(a{999}){999}"}, {"type": "string", "minLength": 10**9}),
        *({"minLength": -1}, {"type": "integer", "minimum": "x"}, {"type": "integer", "minimum": 10**30}),
        *({"required": ["a"] * 3}, "[" * 10**5, "nul", "NaN", "\ud800", "3", "[]"),
    ],
    "regex": [
        *("(", "(" * 10**5, "a{999}", "(a|a)*" * 500, "\\p{Nowhere}", "(?<=a)b", "[z-a]", "\ud800"),
    ],
    "grammar": [
        *("start: start", "start: a\na: start", "start:", "x", 'start: "a"' * 99, "start: /(/", "\ud800", "%ignore"),
    ],
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(engine: Engine, name: str) -> None:
    for value in GRAMMARS[name]:
        given = {"max_tokens": 2, name: value}
        harmless(lambda given=given: engine.generate("the", SamplingParams(**given)))


def test_batches(engine: Engine) -> None:
    for value in WRONG:
        harmless(lambda value=value: engine.generate_batch(value))
        harmless(lambda value=value: engine.generate_batch([value]))
        harmless(lambda value=value: list(engine.stream_batch([Request("a", PARAMS), value])))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=anything)
def test_any_prompt(engine: Engine, prompt: Any) -> None:
    harmless(lambda: engine.generate(prompt, PARAMS))
    harmless(lambda: engine.generate([{"role": "user", "content": prompt}], PARAMS))


def test_stores(engine: Engine, tmp_path: Path) -> None:
    tokenizer = engine.tokenizer
    Store(tokenizer).save(tmp_path / "saved")
    for value in WRONG:
        for call in (
            lambda value: Store(value).add([1]),
            lambda value: Store(tokenizer, max_tokens=value).add([1, 2]),
            lambda value: Store(tokenizer).add(value),
            lambda value: Store(tokenizer).fits(value),
            lambda value: Store(tokenizer).save(value),
            lambda value: Store.load(value, tokenizer),
            lambda value: Store.load(tmp_path / "saved", value),
            lambda value: Store.load(tmp_path / "saved", tokenizer, max_tokens=value),
            lambda value: Store.from_folder(tmp_path, value),
            lambda value: Store.from_folder(tmp_path, tokenizer, max_tokens=value),
            lambda value: Store.from_folder(tmp_path, tokenizer, progress=value),
        ):
            if not callable(value):
                harmless(lambda call=call, value=value: call(value))


# What is right is taken, and what is wrong is named ------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        (5, 6, 7),
        range(5, 8),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], np.uint8),
        [np.int32(5), 6, np.uint64(7)],
        array.array("i", [5, 6, 7]),
    ],
)
def test_ids_of_all_kinds(engine: Engine, prompt: Any) -> None:
    assert engine.generate(prompt, PARAMS).token_ids == engine.generate([5, 6, 7], PARAMS).token_ids


def test_numpy_numbers_are_numbers(engine: Engine) -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(7),
        seed=np.uint64(3),
        max_tokens=np.int8(4),
        logit_bias={np.int64(9): np.float64(1)},
        stop_token_ids=np.array([260]),
    )
    same = SamplingParams(temperature=0.5, top_k=7, seed=3, max_tokens=4, logit_bias={9: 1.0}, stop_token_ids=(260,))
    assert params == same
    assert {type(value) for value in (params.temperature, params.top_k, params.seed)} == {int, float}
    assert engine.generate("a", params, num_speculative_tokens=np.int64(2)).token_ids


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (None, "the prompt is None: a prompt is a text, a list of token ids or a list of chat messages"),
        (b"ab", "the prompt is b'ab', which may be text or ids: decode it, or give a list of ids"),
        (bytearray(b"ab"), "decode it"),
        (memoryview(b"ab"), "decode it"),
        ([True, False], "the prompt has True in it"),
        ([1, [2]], r"the prompt has \[2\] in it"),
        ([1.0], "the prompt has 1.0 in it"),
        (np.ones((2, 2), int), r"array of int64 of shape \(2, 2\)"),
        (np.array([1.5]), "array of float64"),
        (np.array([True]), "array of bool"),
        (np.array([], int), "the prompt is empty"),
        ({"role": "user", "content": "a"}, "the prompt is {.*}: a prompt is"),
        (iter([1]), "the prompt is <list_iterator.*>: a prompt is"),
    ],
)
def test_prompts_are_named(engine: Engine, prompt: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        engine.generate(prompt, PARAMS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0: use 1 or more"),
        ({"max_batch_size": -3}, "max_batch_size is -3"),
        ({"num_speculative_tokens": 2.5}, r"num_speculative_tokens is 2.5: use 0 \(no drafts\) or more"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"num_speculative_tokens": "3"}, "num_speculative_tokens is '3'"),
        ({"drafter": 5}, "drafter is 5"),
        ({"drafter": ""}, "there is no drafter ''"),
        ({"draft_model": ""}, "draft_model is ''"),
        ({"model": None}, "model is None: give a model's name or path"),
        ({"model": ""}, "model is ''"),
        ({"threads": 0}, "threads is 0: use 1 to 256"),
        ({"dtype": np.float32}, "dtype is <class 'numpy.float32'>: use auto or"),
        ({"corpus": 3}, "corpus is 3"),
        ({"remember": 3}, "remember is 3: use True, False or the path of a file"),
        ({"progress": "bar"}, "progress is 'bar': give a function"),
    ],
)
def test_options_of_load_are_named(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Engine.load(**({"model": folder} | options))


def test_errors_stay_short() -> None:
    with pytest.raises(OptionError, match=r"top_k is \[0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\]"):
        SamplingParams(top_k=list(range(10**6)))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="seed is of type int"):
        SamplingParams(seed=10**5000)
    with pytest.raises(OptionError, match="min_p is <Hostile instance at"):
        SamplingParams(min_p=Hostile())  # type: ignore[arg-type]
