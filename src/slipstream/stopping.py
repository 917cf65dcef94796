"""Where a completion ends, decided once, at commit, in token order, whoever proposed the tokens.

Text is decoded as the tokens come. A token is released once its text is certain to stay: not in the middle of a
character, and not part of what may become a stop string.
"""

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from slipstream.types import NO_TOKEN, FinishReason, Origin, Piece, TokenLogprob

__all__ = ["StopChecker"]


@dataclass(slots=True)
class _Token:
    token_id: int
    origin: Origin
    logprob: TokenLogprob | None
    end: int  # length of the text once this token was decoded
    whole: bool  # no character is left unfinished after it


class StopChecker:
    """The end of one request, and its text up to there.

    max_tokens    most tokens to emit; a completion of 0 is finished from the start
    end_ids       tokens that end the completion without being part of it
    stop          strings that do; the text ends right before the first one
    token_bytes   the UTF-8 bytes that a token adds to the text
    min_tokens    a stop string that begins in the text of the first so many tokens is none (that no token ends the
                  completion before is the sampler's business)
    is_whole      whether nothing may follow these tokens: then max_tokens cuts nothing off. None: something always may
    """

    def __init__(
        self,
        max_tokens: int,
        end_ids: Collection[int],
        stop: tuple[str, ...],
        token_bytes: Callable[[int], bytes],
        min_tokens: int = 0,
        is_whole: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self.finish_reason: FinishReason | None = None if max_tokens else "length"
        self.text = ""
        self._max_tokens = max_tokens
        self._end_ids = frozenset(end_ids)
        self._min_tokens = min_tokens
        self._is_whole = is_whole
        self._too_early = min_tokens > 0  # for a stop string to begin
        self._searched_from = 0  # where in the text the first stop string may begin
        self._stop = stop
        self._longest_stop = max(map(len, stop), default=0)
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens: list[_Token] = []
        self._released = 0  # of _tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens emitted so far (all of them, held back or not)."""
        return tuple(token.token_id for token in self._tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprob | None, ...]:
        """What was pushed with each of token_ids."""
        return tuple(token.logprob for token in self._tokens)

    def push(self, token_id: int, origin: Origin, logprob: TokenLogprob | None = None) -> bool:
        """Takes the next committed token; True when the completion ends with it."""
        assert self.finish_reason is None, "a finished completion takes no more tokens"
        if token_id == NO_TOKEN or token_id in self._end_ids:
            self._finish("blocked" if token_id == NO_TOKEN else "stop")
            return True
        searched = len(self.text)
        self.text += self._decoder.decode(self._token_bytes(token_id))
        unfinished = bool(self._decoder.getstate()[0])
        self._tokens.append(_Token(token_id, origin, logprob, len(self.text), not unfinished))
        if self._too_early:
            self._searched_from = len(self.text)
            self._too_early = len(self._tokens) < self._min_tokens or unfinished
        if self._cut_at_stop_string(searched):
            self.finish_reason = "stop"
        elif len(self._tokens) == self._max_tokens:
            whole = self._is_whole is not None and self._is_whole(self.token_ids)
            self._finish("stop" if whole else "length")
        return self.finish_reason is not None

    def release(self) -> tuple[Piece, ...]:
        """The tokens that have become certain since the last call, with their text; all that is left at the end."""
        certain = len(self._tokens)
        if self.finish_reason is None:
            safe = self._start_of_possible_stop()
            while certain > self._released and not (
                self._tokens[certain - 1].whole and self._tokens[certain - 1].end <= safe
            ):
                certain -= 1
        pieces = []
        start = self._tokens[self._released - 1].end if self._released else 0
        for token in self._tokens[self._released : certain]:
            pieces.append(Piece(token.token_id, self.text[start : token.end], token.origin, token.logprob))
            start = token.end
        self._released = certain
        return tuple(pieces)

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        rest = self._decoder.decode(b"", final=True)  # an unfinished character, as decoding all the tokens shows it
        if rest:
            self.text += rest
            self._tokens[-1].end = len(self.text)
            if self._cut_at_stop_string(len(self.text) - len(rest)):  # it may hold the replacement character
                self.finish_reason = "stop"

    def _cut_at_stop_string(self, searched: int) -> bool:
        """Cuts text and tokens at the first stop string that ends behind `searched`."""
        begin = max(self._searched_from, searched - self._longest_stop + 1)
        found = [at for at in (self.text.find(stop, begin) for stop in self._stop) if at >= 0]
        if not found:
            return False
        cut = min(found)
        self.text = self.text[:cut]
        # Keep the tokens that end by the cut, and those that it takes to reach it.
        kept = len(self._tokens)
        while kept and not (self._tokens[kept - 1].end <= cut and self._tokens[kept - 1].whole):
            kept -= 1
        while (self._tokens[kept - 1].end if kept else 0) < cut:
            kept += 1
        del self._tokens[kept:]
        if kept:
            self._tokens[-1].end = cut
        return True

    def _start_of_possible_stop(self) -> int:
        """Where the text's longest ending that is the beginning of a stop string starts; its length without one."""
        for length in range(min(self._longest_stop - 1, len(self.text) - self._searched_from), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stop if len(stop) > length):
                return len(self.text) - length
        return len(self.text)
