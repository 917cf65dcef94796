"""Stored results of the benchmarks, read and checked before anything is drawn of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import OptionError

__all__ = ["KINDS", "Result", "read_results"]


@dataclass(frozen=True, slots=True)
class Result:
    """What one file holds. file: its name; data: what KINDS names for its kind, with None for what may be absent."""

    file: str
    kind: str
    data: dict[str, Any]


# Shapes: a record is a dict from its keys to shapes, a list of one shape is a list of any length. Keys that aren't
# named are left out: a benchmark may store more than the report shows.


@dataclass(frozen=True, slots=True)
class _Scalar:
    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Map:
    """A dict with keys of the file's choice."""

    values: Any
    key: _Scalar


@dataclass(frozen=True, slots=True)
class _Maybe:
    """Of the shape, or null, or absent, which reads as null."""

    shape: Any


@dataclass(frozen=True, slots=True)
class _Choice:
    """A record whose shape follows from its value of `key`."""

    key: str
    shapes: dict[str, Any]


_TEXT = _Scalar("a text", lambda value: isinstance(value, str))
_ANY = _Scalar("anything", lambda value: True)
_FLAG = _Scalar("true or false", lambda value: isinstance(value, bool))
_NUMBER = _Scalar(
    "a number from 0",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15,
)
_COUNT = _Scalar("a whole number in quotes", lambda value: value.isdecimal() and len(value) < 10)
_QUARTILES = _Scalar(
    "two numbers", lambda value: isinstance(value, list) and len(value) == 2 and all(map(_NUMBER.holds, value))
)

_ENVIRONMENT = {
    **dict.fromkeys(["processor", "isa", "system", "python", "slipstream"], _TEXT),
    "threads": _NUMBER,
    "date": _Maybe(_TEXT),
    "commit": _Maybe(_TEXT),
    "quiet": _Maybe(_FLAG),
    "warnings": _Maybe([_TEXT]),
    "numpy": _Maybe(_TEXT),
    "tokenizers": _Maybe(_TEXT),
    "read_bandwidth_gbps": _Maybe({"before": _NUMBER, "after": _NUMBER}),
}
_DRAFTERS = _Map(
    {
        **dict.fromkeys(
            [
                "speedup",
                "speedup_with_prefill",
                "mean_accepted_length",
                "acceptance_rate",
                "tokens_per_second",
                "plain_tokens_per_second",
                "time_to_first_token",
                "looped",
                "too_short",
            ],
            _Maybe(_NUMBER),
        ),
        "speedup_quartiles": _Maybe(_QUARTILES),
        "acceptance_by_position": [_NUMBER],
        "prompts": _NUMBER,
        "identical": _FLAG,
        "first_difference": _Maybe(_Map(_ANY, _TEXT)),
    },
    _TEXT,
)
_PEER = {
    **dict.fromkeys(
        ["prompts", "tokens_per_second", "prefill_tokens_per_second", "speedup_over_own_plain", "mean_accepted_length"],
        _Maybe(_NUMBER),
    ),
    "identical": _Maybe(_FLAG),
}
_PERCENTILES = dict.fromkeys(["p50", "p90", "p99"], _Maybe(_NUMBER))
_LEVEL = {
    "time_to_first_token": _PERCENTILES,
    "time_between_tokens": _PERCENTILES,
    "output_tokens_per_second": _NUMBER,
    "goodput": {"share": _Maybe(_NUMBER), "ttft_limit": _NUMBER, "itl_limit": _NUMBER},
    "errors": _Map(_NUMBER, _TEXT),
}

KINDS: dict[str, dict[str, Any]] = {
    "generate": {
        "environment": _ENVIRONMENT,
        "model": _TEXT,
        "dtype": _TEXT,
        "draft_model": _Maybe(_TEXT),
        "num_speculative_tokens": _Maybe(_NUMBER),
        "suites": [_TEXT],
        "temperature": _NUMBER,
        "seed": _Maybe(_NUMBER),
        "max_tokens": _NUMBER,
        "limit": _Maybe(_NUMBER),
        "cost_curve": [{"rows": _NUMBER, "seconds": _NUMBER}],
        "categories": _Map(_DRAFTERS, _TEXT),
        "overall": _DRAFTERS,
        "peak_memory_bytes": _Maybe(_NUMBER),
    },
    "batch": {
        "environment": _ENVIRONMENT,
        "model": _TEXT,
        "dtype": _TEXT,
        "draft_model": _Maybe(_TEXT),
        "num_speculative_tokens": _Maybe(_NUMBER),
        "suites": [_TEXT],
        "sizes": _Map(
            _Map(
                {
                    "tokens_per_second": _NUMBER,
                    "speedup": _Maybe(_NUMBER),
                    "speedup_quartiles": _Maybe(_QUARTILES),
                    "speedup_with_prefill": _Maybe(_NUMBER),
                    "identical": _Maybe(_FLAG),
                },
                _TEXT,
            ),
            _COUNT,
        ),
    },
    "peers": {
        "environment": _ENVIRONMENT,
        "model": _TEXT,
        "weights": _TEXT,
        "max_tokens": _NUMBER,
        "prompts_per_category": _Maybe(_NUMBER),
        "systems": _Map(
            {
                "version": _Maybe(_TEXT),
                "modes": _Map(
                    {
                        "load_seconds": _Maybe(_NUMBER),
                        "error": _Maybe(_TEXT),
                        "categories": _Maybe(_Map(_PEER, _TEXT)),
                        "overall": _Maybe(_PEER),
                    },
                    _TEXT,
                ),
            },
            _TEXT,
        ),
    },
    "pass": {
        "environment": _ENVIRONMENT,
        "model": _TEXT,
        "read_bandwidth_gbps": _NUMBER,
        "contexts": [
            {
                "context": _NUMBER,
                "passes": [{"rows": _NUMBER, "seconds": _NUMBER, "ratio_to_one_row": _NUMBER}],
                "fraction_of_bandwidth_limit": _NUMBER,
            }
        ],
        "prefill_tokens_per_second": _NUMBER,
    },
    "kernels": {
        "environment": _ENVIRONMENT,
        "read_bandwidth_gbps": _NUMBER,
        "types": _Map(
            [{"rows": _NUMBER, "seconds": _NUMBER, "gbps": _NUMBER, "ratio_to_one_row": _NUMBER}],
            _TEXT,
        ),
    },
    "load": {
        "environment": _ENVIRONMENT,
        "url": _TEXT,
        "model": _TEXT,
        "levels": [
            _Choice("mode", {"closed": {"concurrency": _NUMBER, **_LEVEL}, "open": {"rate": _NUMBER, **_LEVEL}})
        ],
    },
}
"""The kinds of results, in the order in which a report shows them, and the shape of each."""


def read_results(paths: Sequence[Path]) -> list[Result]:
    """The results in these files, ordered by kind and name. Raises OptionError for a file that isn't one."""
    results = [_read(path) for path in paths]
    return sorted(results, key=lambda result: (list(KINDS).index(result.kind), result.file))


def _read(path: Path) -> Result:
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"{path} can't be read ({error.strerror}): give a file that a benchmark wrote") from None
    except (ValueError, RecursionError):
        raise OptionError(f"{path} is damaged, or no JSON: run its benchmark again with --json") from None
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        told = f"has kind {kind!r}" if kind is not None else "has no kind"
        raise OptionError(
            f"{path} {told}: give results of slipstream bench or benchmarks/peers, whose kinds are {', '.join(KINDS)}"
        )
    try:
        return Result(path.name, kind, _checked(data, KINDS[kind]))
    except _Unsound as problem:
        raise OptionError(f"{path} is no sound result of kind {kind}: {problem}: run its benchmark again") from None


class _Unsound(Exception):
    """A value departs from its shape: where, and how."""


def _checked(value: Any, shape: Any, where: str = "") -> Any:
    """What the shape names of the value. Raises _Unsound, such as "overall.ngram.speedup isn't a number from 0"."""
    if isinstance(shape, _Maybe):
        return None if value is None else _checked(value, shape.shape, where)
    if isinstance(shape, _Scalar):
        if not shape.holds(value):
            raise _Unsound(f"{where} isn't {shape.name}")
        return value
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _Unsound(f"{where} isn't a list")
        return [_checked(item, shape[0], f"{where}.{index}") for index, item in enumerate(value)]
    if not isinstance(value, dict):
        raise _Unsound(f"{where} isn't an object")
    inside = f"{where}." if where else ""
    if isinstance(shape, _Map):
        for key in value:
            if not shape.key.holds(key):
                raise _Unsound(f"{where} has the key {key!r}, which isn't {shape.key.name}")
        return {key: _checked(item, shape.values, inside + key) for key, item in value.items()}
    if isinstance(shape, _Choice):
        name = value.get(shape.key)
        if not isinstance(name, str) or name not in shape.shapes:
            raise _Unsound(f"{inside}{shape.key} isn't {' or '.join(shape.shapes)}")
        shape = {shape.key: _TEXT, **shape.shapes[name]}
    for key, part in shape.items():
        if key not in value and not isinstance(part, _Maybe):
            raise _Unsound(f"{inside}{key} is missing")
    return {key: _checked(value.get(key), part, inside + key) for key, part in shape.items()}
