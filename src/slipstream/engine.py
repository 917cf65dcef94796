"""The engine: prompt → propose → target pass → verify → commit → tokens. Plain decoding is this path with no drafts."""

import math
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import accumulate, count, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream import cost, kernels
from slipstream.checks import FILE, FLAG, FUNCTION, PATH, check, checked, instance, number, one_of, several
from slipstream.controller import Controller, ModelSource
from slipstream.drafters import DRAFTERS, Drafter, History, Models, ReadsLogits
from slipstream.drafters.layer_skip import LayerSkipDrafter
from slipstream.drafters.store import Store
from slipstream.errors import OptionError
from slipstream.files import cache_directory
from slipstream.grammar import GrammarCompiler
from slipstream.metrics import count_pass
from slipstream.models.checkpoint import Checkpoint, Progress, open_checkpoint
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import Decoder, Segment
from slipstream.models.default_model import DEFAULT_MODEL
from slipstream.models.tokenizer import Tokenizer
from slipstream.passes import echoed_logprobs, take_logits, verify, wanted_logits, with_top, within_grammar
from slipstream.processors import BadWords
from slipstream.profile import Profile, identity, read_profile
from slipstream.running import NO_DRAFT, Running, Turn
from slipstream.sampling import Sampler, derived_seed
from slipstream.scheduler import Scheduler
from slipstream.stopping import StopChecker
from slipstream.types import (
    NO_TOKEN,
    NUM_SPECULATIVE_TOKENS,
    ROOT,
    Completion,
    Draft,
    Origin,
    Piece,
    Prompt,
    Request,
    SamplingParams,
    SpeculationStats,
    StepOutput,
    Usage,
    Verdict,
)
from slipstream.vocabulary import Vocabulary

__all__ = ["DRAFTER_NAMES", "DTYPES", "Engine"]

DTYPES = ("auto", "bf16", "f32", "int8")
"""Weight precisions. auto: quantised weights run as they are in the file, floats as bf16. int8 changes the model: it
rounds the weights as Q8_0 does."""

DRAFTER_NAMES = (Controller.name, *DRAFTERS)
"""What a request may ask for: `auto`, which chooses at every step, or always the same drafter."""

FREE = ("ngram",)
"""Drafters that auto always asks. Not recycling: looking through a pass's logits costs more than its guesses bring."""

DRAFT_LENGTH, MOST_NODES = 5, 16
"""num_speculative_tokens unless it is given: of one drafter, which always drafts so many; of auto, which may."""

SHORTLIST = 49152
"""Most tokens that a draft model chooses among. Scoring all 152,000 of Qwen2.5 takes a third of a pass of its 0.5B
model, and of what Qwen2.5-Coder-1.5B writes, 97% is among the first 49152: byte-pair vocabularies begin with what is
commonest. Source: Zhao et al., "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative
Sampling" (2025)."""

INT8_BLOCK = 32
"""Weights that share a scale."""

_NAME = instance(str, "use a name")
_SIZE = number(1, math.inf, "use 1 or more requests at once", whole=True)

_REQUESTS = several("use a list of Request(…)")
_REQUEST = instance(Request, "use Request(…)")

_PARTS_RULES = {
    "models": instance(Models, "use Models(…), or Engine.load"),
    "model_name": _NAME,
    "drafter": _NAME,
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    "max_batch_size": _SIZE,
    "remember": FLAG,
    "load_seconds": number(0, math.inf, "use 0 or more seconds"),
    "tuned": instance(Profile, "use a Profile, or leave it out").or_none(),
}

_LOAD_RULES = {
    "model": PATH._replace(remedy="give a model's name or path"),
    "draft_model": PATH._replace(remedy="give a model's name or path, or leave it out").or_none(),
    "dtype": one_of(*DTYPES),
    "threads": number(1, 256, "use 1 to 256, or leave it out for all that this process may use", whole=True).or_none(),
    "drafter": _NAME.or_none(),
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    "max_batch_size": _SIZE,
    "corpus": PATH._replace(remedy="give the path of a folder, or leave it out").or_none(),
    "remember": FILE._replace(remedy="use True, False or the path of a file").or_else(bool),
    "progress": FUNCTION.or_none(),
}
"""What may be given to `Engine` and to `Engine.load`."""


class Engine:
    """A loaded target model, its drafters, and the requests that run on them. Safe to call from several threads."""

    def __init__(
        self,
        models: Models,
        *,
        model_name: str = "model",
        drafter: str = Controller.name,
        num_speculative_tokens: int | None = None,
        max_batch_size: int = 16,
        remember: bool = False,
        load_seconds: float = 0.0,
        tuned: Profile | None = None,
    ) -> None:
        """Puts loaded parts together; `Engine.load` is the usual way in. tuned is the profile that drafter is from, and
        says how many tokens it drafts. Raises OptionError for an unusable drafter, and for a value of another type or
        out of its range."""
        check(_PARTS_RULES, locals())
        self.model_name = model_name
        self.load_seconds = load_seconds
        self.tuned = tuned
        self.target = models.target
        self.draft_model = models.draft
        self.config = models.target.config
        self.tokenizer = models.tokenizer
        self.eos_token_ids = frozenset(self.tokenizer.eos_token_ids)
        self.scheduler = Scheduler(int(max_batch_size))
        self._drafters: dict[str, Drafter] = {}
        self._cost: cost.CostCurve | None = None  # of the target's passes, once the controller wants to know
        self._curves: list[cost.SavedCurve] = []  # all that the controller knows
        self._models = models
        self._remember = remember
        self._ids = count()
        self._inbox: dict[int, list[StepOutput]] = defaultdict(list)
        self._lock = threading.RLock()
        self.default_drafter = drafter
        self.default_num_speculative_tokens = None if num_speculative_tokens is None else int(num_speculative_tokens)
        self._drafter(self.default_drafter)

    @classmethod
    def load(
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        draft_model: str | Path | None = None,
        dtype: str = "auto",
        threads: int | None = None,
        drafter: str | None = None,
        num_speculative_tokens: int | None = None,
        max_batch_size: int = 16,
        corpus: str | Path | None = None,
        remember: bool | str | Path = False,
        progress: Progress | None = None,
    ) -> "Engine":
        """Loads a model and what its drafters need.

        model                   a GGUF file, a safetensors directory, a hub id such as "org/name" or "org/name:Q8_0", or
                                the default model's name
        draft_model             the same, for the drafter draft_model; it guesses only the commonest of very many tokens
        dtype                   one of DTYPES, for the model; a draft model takes int8 for float weights, its own for
                                quantised ones: what it guesses is verified, so its precision can't change the output
        threads                 of the whole process; None leaves it at what it is, at first all that it may use
        drafter                 what requests use unless they say otherwise, one of DRAFTER_NAMES; None is auto, or what
                                `slipstream tune drafters` found best if num_speculative_tokens is None as well
        num_speculative_tokens  likewise: tokens that are drafted at a time, at most; None is MOST_NODES for auto, which
                                takes as many as pay, and DRAFT_LENGTH for other drafters, which take them all; for
                                layer_skip what `slipstream tune layer-skip` found best
        corpus                  a folder of texts, such as a code base, that lookup finds continuations in too
        remember                lookup also finds them in what earlier requests of this engine read and wrote; for
                                requests that may know of each other alone, since answers that repeat come faster.
                                A path: and in what was saved there, if anything was; `engine.store.update(path)` does
        progress                called with (what is going on, done, total) while files are fetched and weights loaded

        Raises ModelError for a model that can't be used, OptionError for an option that can't.
        """
        check(_LOAD_RULES, locals())
        if drafter == "draft_model" and draft_model is None:
            raise OptionError(
                "the drafter draft_model needs a draft model: give one with --draft-model (draft_model=…)"
            )
        if corpus is not None and not isinstance(remember, bool):
            raise OptionError(f"corpus {corpus} and remember {remember} both say what lookup draws on: use one of them")
        started = time.perf_counter()
        if threads is not None:
            kernels.set_threads(int(threads))
        target, tokenizer, name = _load(model, dtype, progress)
        draft, draft_tokenizer = (None, None) if draft_model is None else _load_draft(draft_model, progress)
        untold = drafter is None and num_speculative_tokens is None
        tuned = read_profile(target, draft, DRAFTER_NAMES) if untold else None
        if corpus is not None:
            store: Store | None = Store.from_folder(corpus, tokenizer, progress=progress)
        else:
            store = _memory(remember, tokenizer)
        return cls(
            Models(target, tokenizer, draft, draft_tokenizer, store),
            model_name=name,
            drafter=(tuned.drafter if tuned else Controller.name) if drafter is None else drafter,
            num_speculative_tokens=num_speculative_tokens,
            max_batch_size=max_batch_size,
            remember=bool(remember),
            load_seconds=time.perf_counter() - started,
            tuned=tuned,
        )

    @property
    def store(self) -> Store | None:
        """The texts that lookup draws on besides a request's own; None without a corpus or a memory."""
        return self._models.store

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of how the target's and the draft model's files were read, a sentence each."""
        draft = self._models.draft_tokenizer
        return (*self.tokenizer.remarks, *(f"draft model: {remark}" for remark in (draft.remarks if draft else ())))

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """The drafters that work with what was loaded."""
        return tuple(name for name in (Controller.name, *DRAFTERS) if name != "draft_model" or self._models.draft)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = SamplingParams(),
        *,
        drafter: str | None = None,
        num_speculative_tokens: int | None = None,
    ) -> Completion:
        """Completes one prompt: text as it is, token ids, or chat messages. Raises OptionError for a bad request,
        ModelError for messages that the model's chat template refuses."""
        request = Request(prompt, params, drafter, num_speculative_tokens)
        if params.n != 1:
            raise OptionError(f"n is {params.n} and generate gives one completion: use generate_batch or stream")
        return self.generate_batch([request])[0]

    def generate_batch(self, requests: Sequence[Request]) -> list[Completion]:
        """Completes several requests together, each with its own parameters, drafter and draft length.

        Each completion has the same tokens as if its request had run alone. A request with n > 1 gives n of them, one
        after the other.
        """
        completions = {}
        with closing(self.stream_batch(requests)) as passes:
            for added in passes:
                completions.update({output.request_id: output.completion for output in added if output.completion})
        return [completions[request_id] for request_id in sorted(completions)]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = SamplingParams(),
        *,
        drafter: str | None = None,
        num_speculative_tokens: int | None = None,
    ) -> Generator[StepOutput, None, None]:
        """Completes one prompt, pass by pass; the last output holds the completion. Closing it cancels the request.

        With n > 1, outputs of all n completions come as they are made, each with its `index`. The request is checked
        right away: OptionError comes from this call, not from the first output.
        """
        passes = self.stream_batch([Request(prompt, params, drafter, num_speculative_tokens)])

        def outputs() -> Generator[StepOutput, None, None]:
            with closing(passes):
                for added in passes:
                    yield from added

        return outputs()

    def stream_batch(self, requests: Sequence[Request]) -> Generator[list[StepOutput], None, None]:
        """Completes several requests together, pass by pass: each item is what was added to those that got tokens, in
        the order of their request_id, which is that of the requests. Otherwise as generate_batch and stream.
        """
        batch = list(checked("requests", requests, _REQUESTS))
        for at, request in enumerate(batch):
            checked(f"requests[{at}]", request, _REQUEST)
        started = [running for request in batch for running in self._running(request)]  # checks all first

        def passes() -> Generator[list[StepOutput], None, None]:
            try:
                with self._lock:
                    if not self.scheduler.running:
                        for curve in self._curves:
                            curve.measure_again()
                for running in started:
                    self._submit(running)
                yield from self._outputs([running.request_id for running in started])
            finally:
                for running in started:
                    self._forget(running.request_id)

        return passes()

    # The one path -----------------------------------------------------------------------------------------------

    def step(self) -> list[StepOutput]:
        """One pass over the running requests; what it added to each. No outputs when there is nothing to run."""
        with self._lock:
            batch = self.scheduler.next_batch()
            self._propose(batch)
            self._score(batch)
            self._verify(batch)
            return self._commit(batch)

    def _propose(self, batch: list[Turn]) -> None:
        """One draft for each request. Requests of one drafter go to it together."""
        by_drafter: dict[Drafter, list[Turn]] = defaultdict(list)
        for turn in batch:
            if turn.decodes and turn.running.draft_limit:
                by_drafter[turn.running.drafter].append(turn)
        # The controller comes last: what the others draft is part of the pass that it chooses for.
        for drafter, turns in sorted(by_drafter.items(), key=lambda item: isinstance(item[0], Controller)):
            states = [turn.running.draft_state for turn in turns]
            lengths = [turn.running.draft_limit for turn in turns]
            if isinstance(drafter, Controller):
                sunk = sum(turn.rows + len(turn.draft) - 1 for turn in batch)
                drafts = drafter.propose(states, lengths, len(self.scheduler.running), sunk)
            else:
                drafts = drafter.propose(states, lengths)
            for turn, draft in zip(turns, drafts, strict=True):
                turn.draft = within_grammar(turn.running, draft)

    def _score(self, batch: list[Turn]) -> None:
        """One target pass over every request's pending tokens and draft."""
        if not batch:
            return
        segments = []
        for turn in batch:
            running, rows, draft = turn.running, turn.rows, turn.draft
            running.clock.start()
            pending = running.history.tokens[running.cache.length : running.cache.length + rows]
            segments.append(
                Segment(
                    running.cache,
                    np.concatenate([np.asarray(pending, np.int32), draft.tokens]),
                    np.concatenate([np.arange(-1, rows - 1, dtype=np.int32), draft.parents + np.int32(rows)]),
                    num_logits=wanted_logits(turn),
                )
            )
        started = time.perf_counter()
        logits = self.target.forward(segments)[:, : self.tokenizer.vocab_size]  # padding ids are no tokens
        if self._cost is not None:
            self._cost.observe(sum(len(segment.tokens) for segment in segments), time.perf_counter() - started)
        ends = accumulate((segment.num_logits for segment in segments), initial=0)
        for turn, (start, end) in zip(batch, pairwise(ends), strict=True):
            take_logits(turn, logits[start:end])

    def _verify(self, batch: list[Turn]) -> None:
        """One verdict for each request that decodes, and its tokens' logprobs."""
        for turn in batch:
            verify(turn)

    def _commit(self, batch: list[Turn]) -> list[StepOutput]:
        """Appends what each verdict says, up to where the request stops, and rolls the cache back to it."""
        outputs = []
        for turn in batch:
            running, verdict, rows = turn.running, turn.verdict, range(turn.rows)
            if verdict is None or turn.logits is None:
                running.cache.keep(rows)
                continue
            committed = 0
            for token, logprob in zip(verdict.tokens, turn.logprobs, strict=True):
                running.history.tokens.append(token)
                origin: Origin = "draft" if committed < len(verdict.accepted) else "target"
                committed += 1
                if running.stop.push(token, origin, logprob):
                    break
            if committed:
                kept = verdict.accepted[: committed - 1]  # the last committed token is fed by the next pass
                running.cache.keep([*rows, *(turn.rows + node for node in kept)])
                assert running.cache.length == len(running.history.tokens) - 1, "a cache must not lead its request"
                if isinstance(running.drafter, ReadsLogits):
                    fed = running.history.tokens[-len(kept) - 2 : -1]
                    scores = [turn.logits[node + 1] for node in (ROOT, *kept)]
                    running.drafter.observe(running.draft_state, fed, scores)
            if turn.by_rejection:
                running.stats.verification = "rejection"
            count_pass(running.stats, turn.draft, verdict, committed)
            running.clock.tick(committed)
            outputs.append(self._output(running, turn.draft, verdict))
            if running.stop.finish_reason is not None:
                self._end(running)
        return outputs

    # Requests ---------------------------------------------------------------------------------------------------

    def _output(self, running: Running, draft: Draft, verdict: Verdict) -> StepOutput:
        finished = running.stop.finish_reason is not None
        refused = () if finished else (node for node in range(len(draft)) if node not in verdict.accepted)
        completion = self._complete(running) if finished else None
        is_first = running.stats.target_passes <= 1
        echoed = self._echo(running) if is_first and running.params.echo else ()
        return StepOutput(
            running.request_id,
            (*echoed, *running.stop.release()),
            tuple(self.tokenizer.decode([int(draft.tokens[node])]) for node in refused),
            completion,
            running.index,
        )

    def _echo(self, running: Running) -> tuple[Piece, ...]:
        """The prompt, in the pieces that a completion is streamed in."""
        prompt = running.history.tokens[: running.history.num_prompt_tokens]
        pieces = StopChecker(len(prompt), (), (), self.tokenizer.token_bytes)
        for token, logprob in zip(prompt, echoed_logprobs(running) or [None] * len(prompt), strict=True):
            pieces.push(token, "prompt", logprob)
        return pieces.release()

    def _complete(self, running: Running) -> Completion:
        stop, history, params = running.stop, running.history, running.params
        assert stop.finish_reason is not None
        echoed = history.tokens[: history.num_prompt_tokens] if params.echo else []
        logprobs = None if params.logprobs is None else (*echoed_logprobs(running), *stop.logprobs)
        return Completion(
            text=self.tokenizer.decode(echoed) + stop.text,
            token_ids=(*echoed, *stop.token_ids),
            finish_reason=stop.finish_reason,
            seed=history.sampler.seed,
            usage=Usage(history.num_prompt_tokens, len(stop.token_ids)),
            speculation=running.stats,
            timing=running.clock.timing(running.stats.committed),
            index=running.index,
            logprobs=logprobs,
            prompt_logprobs=with_top(running.prompt_logprobs, params.prompt_logprobs),
        )

    def _end(self, running: Running) -> None:
        """Lets a finished request go, and remembers its text where that is wanted."""
        self.scheduler.retire(running.request_id)
        if self._remember and self.store is not None:
            self.store.add(token for token in running.history.tokens if token != NO_TOKEN)

    def _submit(self, running: Running) -> None:
        with self._lock:
            if running.stop.finish_reason is None or running.prompt_logprobs is not None:
                self.scheduler.add(running)
            else:  # max_tokens 0
                self._inbox[running.request_id].append(self._output(running, NO_DRAFT, Verdict((), ())))
                self._end(running)

    def _outputs(self, request_ids: list[int]) -> Iterator[list[StepOutput]]:
        """Steps the engine until these requests are finished, and gives their outputs. Others' wait in their inbox."""
        while request_ids:
            with self._lock:
                if self._inbox.keys().isdisjoint(request_ids):
                    for output in self.step():
                        self._inbox[output.request_id].append(output)
                ready = [output for request_id in request_ids for output in self._inbox.pop(request_id, ())]
            finished = {output.request_id for output in ready if output.completion}
            request_ids = [request_id for request_id in request_ids if request_id not in finished]
            if ready:
                yield ready

    def _forget(self, request_id: int) -> None:
        with self._lock:
            self.scheduler.retire(request_id)
            self._inbox.pop(request_id, None)

    def _running(self, request: Request) -> list[Running]:
        """Checks a request and makes the running records of its n completions. Nothing is run before all of it is known
        to be right."""
        tokens = self._prompt_tokens(request.prompt)
        params = request.params
        context = self.config.context_length
        if not tokens:
            raise OptionError("the prompt is empty: give it at least one token")
        if len(tokens) >= context:
            raise OptionError(f"the prompt has {len(tokens)} tokens and the model's context is {context}: shorten it")
        drafter = self._drafter(self.default_drafter if request.drafter is None else request.drafter)
        num_speculative_tokens = request.num_speculative_tokens
        if num_speculative_tokens is None:
            num_speculative_tokens = self.default_num_speculative_tokens
        if num_speculative_tokens is None and request.drafter is None and self.tuned:
            num_speculative_tokens = self.tuned.num_speculative_tokens
        if num_speculative_tokens is None:
            num_speculative_tokens = _usual_draft_length(drafter)
        room = context - len(tokens)
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        limit = len(tokens) + max_tokens
        if params.min_tokens > max_tokens:
            raise OptionError(f"min_tokens is {params.min_tokens} and the context has room for {max_tokens}: use less")
        for name, token_ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            self._check_ids(f"{name} has", token_ids)
        end_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)
        grammar = self._grammars.compile(params, max_tokens) if params.has_grammar else None
        words = [word.encode() for word in params.bad_words]
        bad_words = BadWords(words, self._vocabulary) if words else None
        seed = secrets.randbits(32) if params.seed is None else params.seed
        wants_prompt = params.prompt_logprobs is not None or (params.echo and params.logprobs is not None)
        records = []
        for index in range(params.n):
            own_grammar = grammar.copy() if grammar else None
            sampler = Sampler(
                params,
                derived_seed(seed, index),
                len(tokens),
                end_ids=end_ids,
                bad_words=bad_words,
                allowed=own_grammar.allowed if own_grammar else None,
            )
            cache = self.target.new_cache(limit + min(num_speculative_tokens, max_tokens))
            history = History(list(tokens), len(tokens), limit, sampler, cache)
            records.append(
                Running(
                    request_id=next(self._ids),
                    history=history,
                    drafter=drafter,
                    draft_state=drafter.start(history),
                    num_speculative_tokens=num_speculative_tokens,
                    cache=cache,
                    stop=StopChecker(
                        max_tokens,
                        end_ids,
                        params.stop,
                        self.tokenizer.token_bytes,
                        params.min_tokens,
                        own_grammar.is_whole if own_grammar else None,
                    ),
                    stats=SpeculationStats(drafter.name, num_speculative_tokens),
                    index=index,
                    grammar=own_grammar,
                    prompt_logprobs=[None] if wants_prompt else None,
                )
            )
        return records

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary([self.tokenizer.token_bytes(token) for token in range(self.tokenizer.vocab_size)])

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        controls = self.tokenizer.control_token_ids | self.eos_token_ids
        return GrammarCompiler(self._vocabulary, controls, self.eos_token_ids, self.tokenizer.spell)

    def _check_ids(self, what: str, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            if not 0 <= token < self.tokenizer.vocab_size:
                raise OptionError(f"{what} token id {token}: use ids from 0 to {self.tokenizer.vocab_size - 1}")

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if messages:
            return self.tokenizer.encode_chat(messages)
        tokens = [item for item in prompt if isinstance(item, int)]  # all of them, as Request has checked
        self._check_ids("the prompt has", tokens)
        return tokens

    def _drafter(self, name: str) -> Drafter:
        if name not in (Controller.name, *DRAFTERS):
            raise OptionError(f"there is no drafter {name!r}: use one of {', '.join((Controller.name, *DRAFTERS))}")
        if name not in self._drafters:
            self._drafters[name] = self._controller() if name == Controller.name else DRAFTERS[name](self._models)
        return self._drafters[name]

    def _controller(self) -> Controller:
        self._cost = self._cost_of(self.target)
        self._curves = [self._cost]
        with_model = None
        if self._models.draft is not None:
            draft_cost = self._cost_of(self._models.draft, most_logits=self.scheduler.max_batch_size)
            self._curves.append(draft_cost)
            with_model = ModelSource(self._drafter("draft_model"), draft_cost, catches_up=True)
        return Controller([self._drafter(name) for name in FREE], with_model, self._cost)

    @staticmethod
    def _cost_of(model: Decoder, most_logits: int = cost.ROWS[-1]) -> cost.SavedCurve:
        key = {
            **identity(model),
            "most_logits": most_logits,
            "pass_bytes": model.pass_bytes,
            "isa": kernels.isa(),
            "threads": kernels.threads(),
            "processor": cost.processor(),
        }
        return cost.SavedCurve(cache_directory(), key, lambda: cost.measure(model, most_logits))


def _load(model: str | Path, dtype: str, progress: Progress | None) -> tuple[Decoder, Tokenizer, str]:
    """A model, its tokenizer and its name."""
    checkpoint = open_checkpoint(model, progress)
    tokenizer = checkpoint.tokenizer()  # fails before the weights are read
    unfit = _unfit_for_int8(checkpoint)
    if dtype == "int8" and unfit:
        raise OptionError(f"dtype int8 works on widths that {INT8_BLOCK} divides, and {checkpoint.name} has {unfit}")
    return Decoder(checkpoint, dtype, progress), tokenizer, checkpoint.name


def _load_draft(model: str | Path, progress: Progress | None) -> tuple[Decoder, Tokenizer]:
    """A draft model, as small as it pays to make it, and its tokenizer."""
    checkpoint = open_checkpoint(model, progress)
    tokenizer = checkpoint.tokenizer()
    floats = checkpoint.tensor("model.layers.0.mlp.up_proj.weight").type in ("F32", "F16", "BF16")
    dtype = "int8" if floats and not _unfit_for_int8(checkpoint) else "auto"
    return Decoder(checkpoint, dtype, progress, _shortlist(checkpoint.config, tokenizer)), tokenizer


def _unfit_for_int8(checkpoint: Checkpoint) -> int | None:
    """The first of the model's widths that isn't made of whole blocks."""
    config = checkpoint.config
    widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    return next((width for width in widths if width % INT8_BLOCK), None)


def _shortlist(config: ModelConfig, tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """The tokens that a draft model may guess: the SHORTLIST commonest, and those that end or structure a text."""
    if config.vocab_size <= SHORTLIST:
        return None
    special = (*tokenizer.control_token_ids, *tokenizer.eos_token_ids)
    return np.array(sorted({*range(SHORTLIST), *special}))


def _usual_draft_length(drafter: Drafter) -> int:
    if isinstance(drafter, Controller):
        return MOST_NODES
    tuned = drafter.num_speculative_tokens if isinstance(drafter, LayerSkipDrafter) else None
    return tuned or DRAFT_LENGTH


def _memory(remember: bool | str | Path, tokenizer: Tokenizer) -> Store | None:
    """What lookup remembers at first: what was saved, where a file is named and there, else nothing."""
    if remember is False:
        return None
    if remember is not True and os.path.exists(remember):
        return Store.load(remember, tokenizer)
    return Store(tokenizer)
