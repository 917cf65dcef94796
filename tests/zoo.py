"""Drafters for tests: how often they are right is known, what they may do to the output is nothing.

self, noisy and random are draft models (see zoo_engine); these two know the answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import tiny

from slipstream import Engine
from slipstream.drafters import History, Models
from slipstream.types import ROOT, Draft

DRAFT_MODELS = {"self": {}, "noisy": {"noise": 0.1}, "random": {"seed": 77}}


def zoo_engine(folder: Path, architecture: str, kind: str, **options: object) -> Engine:
    """An engine on a tiny model with the draft model `kind`."""
    target = tiny.make(folder / architecture, architecture)
    draft = tiny.make(folder / f"{architecture}-{kind}", architecture, **DRAFT_MODELS[kind])
    return Engine.load(target, draft_model=draft, **options)


class Oracle:
    """Proposes the right continuation, wrong at every `wrong_every`-th token (0: never). As a chain or as a tree."""

    name: ClassVar[str] = "oracle"
    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    wrong_every: ClassVar[int] = 3
    tree: ClassVar[bool] = False

    def __init__(self, models: Models) -> None:
        self.vocab_size = models.tokenizer.vocab_size

    def start(self, history: History) -> History:
        return history

    def propose(self, states: Sequence[History], lengths: Sequence[int]) -> list[Draft]:
        return [self._draft(history, length) for history, length in zip(states, lengths, strict=True)]

    def _draft(self, history: History, length: int) -> Draft:
        start = history.position
        prompt = tuple(history.tokens[: history.num_prompt_tokens])
        answer = list(self.answers[prompt])[start:]
        right = (answer + [0] * length)[:length]
        if not self.tree:
            wrong = [
                self.wrong_every > 0 and (start + depth) % self.wrong_every == self.wrong_every - 1
                for depth in range(length)
            ]
            return Draft.chain([(t + 1) % self.vocab_size if w else t for t, w in zip(right, wrong, strict=True)])
        # Each level: a wrong sibling before the right node, so that the accepted path is scattered over the rows.
        tokens: list[int] = []
        parents: list[int] = []
        parent = ROOT
        for token in right:
            tokens += [(token + 5) % self.vocab_size, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(np.array(tokens[:length], np.int32), np.array(parents[:length], np.int32))
