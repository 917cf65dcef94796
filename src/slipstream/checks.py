"""What arguments may be: their types, their range, and what to say otherwise. One table a function, one way to read it.

A checked value is a plain Python one: NumPy's numbers become int and float.
"""

import math
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from slipstream.errors import OptionError

__all__ = [
    "FILE",
    "FLAG",
    "FUNCTION",
    "PATH",
    "Rule",
    "check",
    "checked",
    "instance",
    "is_integer",
    "number",
    "one_line",
    "one_of",
    "plain",
    "several",
    "shown",
]

_INTEGER = (int, np.integer)
_REAL = (*_INTEGER, float, np.floating)


class Rule(NamedTuple):
    """Values of these types for which `holds`. The remedy ends the error about any other."""

    types: tuple[type, ...]
    holds: Callable[[Any], bool]
    remedy: str

    def allows(self, value: object) -> bool:
        """Whether a value keeps the rule. A bool is no number."""
        right_type = isinstance(value, self.types) and (not isinstance(value, bool) or bool in self.types)
        return right_type and self.holds(plain(value))

    def or_else(self, *types: type) -> "Rule":
        """The same, or anything of other types."""
        return Rule((*self.types, *types), lambda value: isinstance(value, types) or self.holds(value), self.remedy)

    def or_none(self) -> "Rule":
        return self.or_else(NoneType)


def plain(value: Any) -> Any:
    """Python's own number for one of NumPy's; anything else as it is."""
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def checked(name: str, value: Any, rule: Rule) -> Any:
    """The value, plain. Raises OptionError where it breaks the rule."""
    if not rule.allows(value):
        raise OptionError(f"{name} is {shown(value)}: {rule.remedy}")
    return plain(value)


def check(rules: Mapping[str, Rule], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the rules name, plain. Raises OptionError for the first that breaks its rule."""
    return {name: checked(name, values[name], rule) for name, rule in rules.items()}


def is_integer(value: object) -> bool:
    """Whether it is a whole number, Python's or NumPy's. A bool is none."""
    return isinstance(value, _INTEGER) and not isinstance(value, bool)


def number(low: float, high: float, remedy: str, *, whole: bool = False, above: bool = False) -> Rule:
    """Numbers from low to high, infinity standing for the largest that a machine holds; whole ones alone where whole,
    not low itself where above."""

    largest = 2**63 - 1 if whole else sys.float_info.max
    highest = largest if high == math.inf else high

    def holds(value: float) -> bool:
        return low <= value <= highest and not (above and value == low)

    return Rule(_INTEGER if whole else _REAL, holds, remedy)


def instance(kind: type, remedy: str) -> Rule:
    return Rule((kind,), lambda value: True, remedy)


def one_of(*values: str) -> Rule:
    return Rule((str,), lambda value: value in values, f"use {' or '.join(values)}")


FLAG = instance(bool, "use True or False")
FUNCTION = Rule((object,), callable, "give a function")


def several(remedy: str) -> Rule:
    """What can be gone through, item by item. Texts and bytes are left out: their items are never what is meant."""
    single = (str, bytes, bytearray, memoryview)
    return Rule((Iterable,), lambda value: not isinstance(value, single) and getattr(value, "ndim", 1) > 0, remedy)


def _names_a_place(path: str | Path) -> bool:
    try:
        Path(path).expanduser()
        os.fsencode(path)
    except (RuntimeError, ValueError):  # ~somebody, half a character
        return False
    return str(path) != "" and "\0" not in str(path)


PATH = Rule((str, Path), _names_a_place, "give a path")
FILE = Rule((str, Path), lambda path: _names_a_place(path) and Path(path).name != "", "give the path of a file")


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8


def shown(value: object) -> str:
    """A value as errors show it: short, in one line."""
    try:
        return one_line(_Short().repr(value), 80)
    except Exception:  # an int of very many digits, or what somebody's own __repr__ raises
        return f"of type {type(value).__name__}"


def one_line(text: str, most: int) -> str:
    """The first `most` characters of a text, without line ends or anything else that would drive a terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * most]).split())[:most]
