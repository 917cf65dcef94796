"""A memory of token sequences that outlives requests: earlier outputs, or the texts of a folder, to copy from.

It is opt-in, bounded, and one object: what is added to a store can be guessed from by every engine that was given that
store, and by no other. Give each tenant one of its own, or none.
"""

import hashlib
import json
import math
import os
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.checks import FILE, FUNCTION, PATH, Rule, checked, is_integer, number, one_line, several, shown
from slipstream.drafters.suffix_automaton import ROOT_STATE, Match, SuffixAutomaton
from slipstream.errors import ModelError, OptionError
from slipstream.files import locked, write_whole
from slipstream.models.checkpoint import Progress
from slipstream.models.tokenizer import Tokenizer
from slipstream.types import NO_TOKEN

__all__ = ["MAX_TOKENS", "Reader", "Store"]

MAX_TOKENS = 1_000_000
"""Tokens that a store holds unless told otherwise: 100 to 300 MB."""

NUM_SEGMENTS = 4
"""An automaton can't forget, so a store is a few of them, and forgets the oldest whole."""

LOOKBACK = 64
"""A reader that is new to a segment, or finds it grown, begins so many tokens back: a longer match is no better."""

MAX_FILE_BYTES = 1 << 20
"""Text files above this are data rather than something to write again."""

_TOKENIZER = Rule((object,), lambda value: hasattr(value, "token_string"), "give a model's tokenizer")
_MAX_TOKENS = number(NUM_SEGMENTS, math.inf, f"use at least {NUM_SEGMENTS}", whole=True)
_IDS = several("give token ids")

MAGIC = b"slipstream store 1\n"
DIGEST_BYTES = 32


class _Segment:
    """Some of the stored tokens, each text closed by NO_TOKEN, which no history has: no match goes past it."""

    __slots__ = ("automaton", "tokens")

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self.tokens = array("i")

    def append(self, token: int) -> None:
        self.automaton.append(token)
        self.tokens.append(token)


class Store:
    """At most max_tokens tokens of texts, the end of each included; when it is full, the oldest quarter goes.

    Safe to use from several threads: methods take `lock` themselves, and who draws on a reader's match holds it.

    left_out  files that from_folder didn't take, because they were too large or the store was full
    """

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int = MAX_TOKENS) -> None:
        """Raises OptionError for an argument that is no use."""
        checked("tokenizer", tokenizer, _TOKENIZER)
        checked("max_tokens of a store", max_tokens, _MAX_TOKENS)
        self.lock = threading.RLock()
        self._segments: deque[_Segment] = deque([_Segment()], maxlen=NUM_SEGMENTS)  # the oldest first
        self.left_out: tuple[Path, ...] = ()
        self._segment_tokens = int(max_tokens) // NUM_SEGMENTS
        self._unsaved = 0  # tokens of the newest texts, which were added since the store was loaded or a file updated
        self._vocab_size = tokenizer.vocab_size
        self._fingerprint = _fingerprint(tokenizer)

    def __len__(self) -> int:
        """Tokens that it holds, with the ends of texts."""
        with self.lock:
            return sum(len(segment.tokens) for segment in self._segments)

    def fits(self, tokenizer: Tokenizer) -> bool:
        """Whether the ids that it holds mean the same to this tokenizer."""
        return self._fingerprint == _fingerprint(checked("tokenizer", tokenizer, _TOKENIZER))

    def add(self, tokens: Iterable[int]) -> None:
        """Learns a text. Raises OptionError, and learns nothing, where an id isn't the tokenizer's."""
        text = list(checked("a text to store", tokens, _IDS))
        for token in text:
            if not is_integer(token) or not 0 <= token < self._vocab_size:
                raise OptionError(
                    f"a text to store has token id {shown(token)}: use ids from 0 to {self._vocab_size - 1}"
                )
        text = [*map(int, text), NO_TOKEN]
        with self.lock:
            self._append(text)
            self._unsaved += len(text)

    def reader(self, tokens: list[int]) -> "Reader":
        """Follows a history in this store."""
        return Reader(self, tokens)

    def save(self, path: str | Path) -> None:
        """Writes the store to a file, a new one for its owner alone. Raises OptionError, and leaves what was there."""
        path = Path(checked("path", path, FILE))
        with self.lock, _writing(path):
            self._write(path, self._tokens())

    def update(self, path: str | Path) -> None:
        """Adds the texts that were added since the store was loaded, or last updated a file, to a saved store's file,
        which others may have added to meanwhile. Where the file would hold more than this store may, the oldest goes.

        A new file is one that only its owner may read. Raises what load does, and OptionError where the file can't be
        written; what was there is left then.
        """
        path = Path(checked("path", path, FILE))
        with self.lock, _writing(path):
            _check_regular(path)
            if not self._unsaved:
                return
            with locked(path):
                kept = self._read(path) if path.exists() else np.zeros(0, np.int32)
                tokens = np.concatenate([kept, self._tokens()[-self._unsaved :]])
                self._write(path, tokens[-NUM_SEGMENTS * self._segment_tokens :])
            self._unsaved = 0

    @classmethod
    def load(cls, path: str | Path, tokenizer: Tokenizer, *, max_tokens: int = MAX_TOKENS) -> "Store":
        """Reads a saved store; where max_tokens is less than it holds, the newest of it.

        Raises OptionError for a file that can't be read, ModelError for one that is damaged, is something else, or was
        made with another tokenizer.
        """
        store = cls(tokenizer, max_tokens=max_tokens)
        store._append(store._read(Path(checked("path", path, FILE))).tolist())
        return store

    def _tokens(self) -> NDArray[np.int32]:
        """All that the store holds, the oldest first."""
        return np.concatenate([np.array(segment.tokens, np.int32) for segment in self._segments])

    def _write(self, path: Path, tokens: NDArray[np.int32]) -> None:
        body = tokens.astype("<i4").tobytes()
        write_whole(path, b"".join((MAGIC, self._fingerprint, hashlib.sha256(body).digest(), body)), mode=0o600)

    def _read(self, path: Path) -> NDArray[np.int32]:
        """The tokens in a saved store's file. Raises as load does."""
        _check_regular(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OptionError(f"the store {path} can't be read ({error.strerror}): name a saved one") from None
        if not data.startswith(MAGIC):
            raise ModelError(f"{path} is not a Slipstream store: name a file that was saved as one")
        digest_at, body_at = len(MAGIC) + DIGEST_BYTES, len(MAGIC) + 2 * DIGEST_BYTES
        fingerprint, digest, body = data[len(MAGIC) : digest_at], data[digest_at:body_at], data[body_at:]
        tokens = np.frombuffer(body, "<i4") if len(body) % 4 == 0 else None
        if tokens is None or hashlib.sha256(body).digest() != digest:
            raise ModelError(f"the store {path} is damaged: delete it and make a new one")
        if fingerprint != self._fingerprint:
            raise ModelError(f"the store {path} was made with another tokenizer: use one made with this model")
        if len(tokens) and not NO_TOKEN <= tokens.min() <= tokens.max() < self._vocab_size:
            raise ModelError(f"the store {path} has token ids that its tokenizer lacks: delete it and make a new one")
        return tokens.astype(np.int32)

    @classmethod
    def from_folder(
        cls, folder: str | Path, tokenizer: Tokenizer, *, max_tokens: int = MAX_TOKENS, progress: Progress | None = None
    ) -> "Store":
        """A store of the text files in a folder and the folders below, in the order of their names, until it is full.

        Passed over are hidden files and folders, symbolic links, and files that aren't UTF-8 text. progress is called
        with (what is going on, files done, files in all). Raises OptionError for a folder or a file that can't be read,
        and where there is no text.
        """
        checked("folder", folder, PATH)
        checked("progress", progress, FUNCTION.or_none())
        store = cls(tokenizer, max_tokens=max_tokens)
        left_out: list[Path] = []
        is_full = False
        try:
            paths = list(_files(Path(folder)))
            for done, path in enumerate(paths):
                if progress:
                    progress("reading texts", done, len(paths))
                if not is_full and path.stat().st_size <= MAX_FILE_BYTES:
                    text = _text(path.read_bytes())
                    tokens = tokenizer.spell(text) if text else []
                    is_full = len(store) + len(tokens) + 1 > NUM_SEGMENTS * store._segment_tokens
                    if not is_full:
                        if tokens:
                            store.add(tokens)
                        continue
                left_out.append(path)
        except OSError as error:
            raise OptionError(
                f"{one_line(str(error.filename), 200)} can't be read ({error.strerror}): name a folder of texts"
            ) from None
        if progress:
            progress("reading texts", len(paths), len(paths))
        if not len(store):
            raise OptionError(f"{folder} holds no text that fits: name a folder with UTF-8 text files")
        store.left_out = tuple(left_out)
        return store

    def _append(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if len(self._segments[-1].tokens) == self._segment_tokens:
                self._segments.append(_Segment())  # drops the oldest
            self._segments[-1].append(token)


class _Place(NamedTuple):
    """How far a reader has come in a segment of this size: tokens of the history read, and what they match there."""

    size: int
    read: int
    state: int
    length: int


class Reader:
    """Where a growing history stands in a store: of each segment, the longest ending that occurs there."""

    __slots__ = ("_places", "_store", "_tokens")

    def __init__(self, store: Store, tokens: list[int]) -> None:
        self._store = store
        self._tokens = tokens
        self._places: dict[_Segment, _Place] = {}

    def longest(self) -> Match:
        """The longest ending of the history that occurs in the store; of equals, the newest. Call it, and use what it
        gives, with the store's lock held."""
        end = len(self._tokens)
        places = {}
        matches = []
        for segment in self._store._segments:
            automaton = segment.automaton
            place = self._places.get(segment)
            if place is None or place.size != len(automaton):
                place = _Place(len(automaton), max(0, end - LOOKBACK), ROOT_STATE, 0)
            _, read, state, length = place
            for token in self._tokens[read:]:
                state, length = automaton.advance(state, length, token)
            places[segment] = _Place(place.size, end, state, length)
            matches.append(Match(automaton, state, length))
        self._places = places  # forgotten segments go
        return max(reversed(matches), key=lambda match: match.length)


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(f"the store can't be written to {path} ({error.strerror}): name another file") from None


def _check_regular(path: Path) -> None:
    """Raises OptionError for pipes and devices: what was written there can't be read again, and reading may not end."""
    if os.path.exists(path) and not os.path.isfile(path):  # which, unlike Path's own, raise nothing
        raise OptionError(f"the store {path} is not a regular file, so it can't be read again: name one")


def _fingerprint(tokenizer: Tokenizer) -> bytes:
    """Equal for tokenizers whose ids stand for the same strings, and for no others."""
    strings = [tokenizer.token_string(token) for token in range(tokenizer.vocab_size)]
    return hashlib.sha256(json.dumps(strings).encode()).digest()


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder that are neither hidden nor links, in the order of their paths' names."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _text(data: bytes) -> str | None:
    """The text of a file's bytes; None for what isn't UTF-8 text."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
