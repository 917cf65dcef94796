"""What a server does under load: any OpenAI-compatible one, asked over HTTP by many clients that read its streams.

Two kinds of load. In a *closed loop* each of so many clients sends its next request when its last one ended: the server
sets the pace, and is never asked for more than it can do. In an *open loop* requests arrive at random moments (a
Poisson process) whether or not earlier ones have been answered, as they do from many people who don't know of each
other; where the server is slower than that, its queue grows and the figures show it.

Definitions, all in seconds and seen from the client:

time to first token   from the moment the request is due to the first chunk with text
time between chunks   from one chunk with text to the next
time between tokens   of one request: (last chunk - first chunk) / (output tokens - 1); a chunk may hold several tokens,
                      as it does under speculation
latency               from the moment the request is due to the end of its stream
goodput               the requests whose time to first token and time between tokens are both within their limits: their
                      share of all, failed ones included, and their number a second

Only requests that were answered in full have times, and only their tokens count. An answer without any text has no
first token: it is counted as failed ("no output").
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import httpx2
import numpy as np

from slipstream.errors import OptionError
from slipstream.tools.environment import describe
from slipstream.types import Prompt

__all__ = ["Answer", "ClosedLoop", "Load", "OpenLoop", "bench_load", "counters", "increases", "percentiles", "summary"]

CONNECT_SECONDS = 10.0
"""Longest wait for a connection, where the timeout of a request isn't shorter: a wrong address should be known soon."""

Send = Callable[[int, float], Awaitable[None]]
"""Sends request number n, which is due at a moment of time.perf_counter(), and returns when it has ended somehow."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many clients, which share the requests among themselves."""

    concurrency: int
    requests: int

    def __post_init__(self) -> None:
        if self.requests < self.concurrency:
            raise OptionError(
                f"{self.requests} requests can't keep {self.concurrency} clients busy: send at least as many as clients"
            )

    @property
    def name(self) -> str:
        return f"{self.concurrency} client{'s' if self.concurrency > 1 else ''}"

    def record(self) -> dict[str, object]:
        return {"mode": "closed", "concurrency": self.concurrency}

    async def drive(self, send: Send) -> None:
        numbers = iter(range(self.requests))

        async def client() -> None:
            for number in numbers:  # shared: each client takes the next one that nobody has
                await send(number, time.perf_counter())

        await asyncio.gather(*(client() for _ in range(self.concurrency)))


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """So many requests a second on average, for so many seconds, at the same random moments in each run."""

    rate: float
    duration: float
    arrivals: tuple[float, ...] = field(init=False)  # seconds from the start

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrivals", tuple(self._arrivals()))
        if not self.arrivals:
            raise OptionError(
                f"{self.rate:g} requests a second for {self.duration:g} s come to no request: raise one of the two"
            )

    def _arrivals(self) -> Iterator[float]:
        random_numbers = random.Random(0)
        at = random_numbers.expovariate(self.rate)
        while at < self.duration:
            yield at
            at += random_numbers.expovariate(self.rate)

    @property
    def requests(self) -> int:
        return len(self.arrivals)

    @property
    def name(self) -> str:
        return f"{self.rate:g} requests/s"

    def record(self) -> dict[str, object]:
        return {"mode": "open", "rate": self.rate}

    async def drive(self, send: Send) -> None:
        started = time.perf_counter()

        async def arrive(number: int, due: float) -> None:
            await asyncio.sleep(due - time.perf_counter())
            await send(number, due)

        await asyncio.gather(*(arrive(number, started + at) for number, at in enumerate(self.arrivals)))


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of which server.

    url         where the server is, with or without the /v1 at the end; it may hold a user name and a password
    prompts     chat messages for the api "chat", texts or token ids for "completions"; each level uses them in turn,
                over and over from the first
    model       None: the first that the server lists
    timeout     seconds after which a request is given up
    ttft_limit  what goodput allows for the time to first token
    itl_limit   what goodput allows for the time between tokens
    """

    url: str
    api: Literal["chat", "completions"]
    prompts: Sequence[Prompt]
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_tokens: int = 128
    temperature: float = 0.0
    timeout: float = 300.0
    ttft_limit: float = 1.0
    itl_limit: float = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that was answered in full.

    chunks   seconds from when the request was due to each chunk with text; at least one
    latency  seconds to the end of the stream
    usage    output tokens as the server counts them; None where it doesn't tell
    """

    chunks: tuple[float, ...]
    latency: float
    usage: int | None

    @property
    def tokens(self) -> int:
        return len(self.chunks) if self.usage is None else self.usage

    @property
    def time_between_tokens(self) -> float | None:
        return (self.chunks[-1] - self.chunks[0]) / (self.tokens - 1) if self.tokens > 1 else None

    def within(self, ttft_limit: float, itl_limit: float) -> bool:
        return self.chunks[0] <= ttft_limit and (self.time_between_tokens or 0.0) <= itl_limit


class _Failed(Exception):
    """A request that wasn't answered in full. kind is what it is counted as."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind} ({detail})" if detail else kind)
        self.kind = kind


def bench_load(
    load: Load, levels: Sequence[ClosedLoop | OpenLoop], progress: Callable[[str, int, int], None] | None = None
) -> dict[str, Any]:
    """Puts one level of load after another on the server, after one request to warm it up.

    progress is called with (level, requests ended, requests in all). Ctrl-C ends the run, and what was measured until
    then is returned. Returns {kind: "load", environment, url (without credentials), model, api, max_tokens,
    temperature, tokens_counted: "usage" or, where the server doesn't tell its usage, "chunks", interrupted, levels:
    [{mode: "closed", concurrency or mode: "open", rate; requests, completed, errors: {kind: count}, seconds;
    time_to_first_token, time_between_tokens, time_between_chunks, latency: {p50, p90, p99}; tokens_per_chunk,
    output_tokens_per_second, requests_per_second, goodput: {share, requests_per_second, ttft_limit, itl_limit},
    speculation: {counter: increase}, None where the server publishes no such counter}]}.

    Raises OptionError if the server can't be reached, or doesn't answer the request that warms it up as it should.
    Later failures are counted.
    """
    run = _Run(load, progress)
    interrupted = False
    try:
        asyncio.run(run.measure(levels))
    except KeyboardInterrupt:
        if not run.levels:
            raise
        interrupted = True
    return {
        "kind": "load",
        "environment": describe(),
        "url": run.url,
        "model": run.model,
        "api": load.api,
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        "tokens_counted": "usage" if run.has_usage else "chunks",
        "interrupted": interrupted,
        "levels": run.levels,
    }


class _Run:
    """The levels measured so far, and the client that measures them."""

    def __init__(self, load: Load, progress: Callable[[str, int, int], None] | None) -> None:
        base = _base_url(load.url)
        credentials = (base.username, base.password) if base.userinfo else None
        if load.api_key is not None and credentials:
            raise OptionError("there is an API key, and a user name in the URL: use one of the two")
        # The key is never shown, not even by an error that quotes the header.
        if load.api_key is not None and not re.fullmatch(r"[!-~]+", load.api_key):
            raise OptionError("the API key is empty or has characters that keys don't have: give it anew")
        public = base.copy_with(username="", password="")
        self.url = str(public).removesuffix("/")
        self.model = load.model
        self.has_usage = True
        self.levels: list[dict[str, Any]] = []
        self._load = load
        self._progress = progress
        self._client = httpx2.AsyncClient(
            base_url=public,
            auth=credentials,
            headers={"Authorization": f"Bearer {load.api_key}"} if load.api_key else None,
            timeout=httpx2.Timeout(load.timeout, connect=min(load.timeout, CONNECT_SECONDS)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def measure(self, levels: Sequence[ClosedLoop | OpenLoop]) -> None:
        async with self._client:
            self.model = self.model or await self._first_model()
            await self._warm_up()
            for level in levels:
                await self._measure_level(level)

    async def _first_model(self) -> str:
        try:
            response = await self._client.get("v1/models")
        except httpx2.HTTPError as error:
            raise self._refused(_failure(error)) from None
        if response.status_code != 200:
            raise self._refused(self._status(response.status_code, response.content))
        try:
            model = response.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            model = None
        if not isinstance(model, str):
            raise OptionError(f"{self.url}/v1/models lists no model: name one with --model")
        return model

    async def _warm_up(self) -> None:
        """Sends a request that nobody times, and finds out whether the server tells its usage."""
        try:
            try:
                answer = await self._answer(0, time.perf_counter())
            except _Failed as failure:
                if failure.kind not in ("status 400", "status 422"):
                    raise
                self.has_usage = False  # perhaps it doesn't know stream_options
                answer = await self._answer(0, time.perf_counter())
        except _Failed as failure:
            raise self._refused(failure) from None
        self.has_usage = answer.usage is not None

    async def _measure_level(self, level: ClosedLoop | OpenLoop) -> None:
        answers: list[Answer] = []
        errors: Counter[str] = Counter()

        async def send(number: int, due: float) -> None:
            try:
                answers.append(await self._answer(number, due))
            except _Failed as failure:
                errors[failure.kind] += 1
            if self._progress:
                self._progress(level.name, len(answers) + errors.total(), level.requests)

        before = await self._counters()
        speculation = None
        started = time.perf_counter()
        ended = None
        try:
            await level.drive(send)
            ended = time.perf_counter()
            speculation = increases(before, await self._counters())
        finally:  # by Ctrl-C too
            seconds = (ended or time.perf_counter()) - started
            if answers or errors:
                figures = summary(answers, errors, seconds, self._load.ttft_limit, self._load.itl_limit)
                self.levels.append({**level.record(), **figures, "speculation": speculation})

    async def _answer(self, number: int, due: float) -> Answer:
        """The answer to request `number`. Raises _Failed."""
        try:
            return await asyncio.wait_for(self._stream(number, due), self._load.timeout)
        except (asyncio.TimeoutError, httpx2.HTTPError, ValueError, RecursionError) as error:
            raise _failure(error) from None

    async def _stream(self, number: int, due: float) -> Answer:
        chunks: list[float] = []
        usage = None
        finished = False
        async with self._client.stream("POST", self._path, json=self._body(number)) as response:
            if response.status_code != 200:
                raise self._status(response.status_code, await response.aread())
            async for event in httpx2.EventSource(response):
                now = time.perf_counter() - due
                if event.data == "[DONE]":
                    finished = True  # reads on to the end, which leaves the connection fit for the next request
                    continue
                record = json.loads(event.data)
                if not isinstance(record, dict) or record.get("error"):
                    raise _Failed("broken stream", self._message(event.data))
                texts, ends = _texts_of(record)
                finished = finished or ends
                if any(texts):
                    chunks.append(now)
                usage = _tokens_of(record, usage)
        if not finished:
            raise _Failed("broken stream", "it ended before the answer did")
        if not chunks:
            raise _Failed("no output")
        return Answer(tuple(chunks), time.perf_counter() - due, usage)

    @property
    def _path(self) -> str:
        return "v1/chat/completions" if self._load.api == "chat" else "v1/completions"

    def _body(self, number: int) -> dict[str, object]:
        load = self._load
        prompt = load.prompts[number % len(load.prompts)]
        return {
            "model": self.model,
            **({"messages": prompt} if load.api == "chat" else {"prompt": prompt}),
            "max_tokens": load.max_tokens,
            "temperature": load.temperature,
            "stream": True,
            **({"stream_options": {"include_usage": True}} if self.has_usage else {}),
        }

    async def _counters(self) -> dict[str, float] | None:
        """The server's counters of speculation; None where it publishes no metrics."""
        try:
            response = await self._client.get("metrics")
        except httpx2.HTTPError:
            return None
        return counters(response.text) if response.status_code == 200 else None

    def _status(self, code: int, body: bytes) -> _Failed:
        return _Failed(f"status {code}", self._message(body.decode(errors="replace")))

    def _message(self, body: str) -> str:
        """What an error of the server says, cut to a line's length, without the key that it may quote."""
        try:
            record = json.loads(body)
            error = record.get("error", record) if isinstance(record, dict) else record
            message = str(error.get("message", error) if isinstance(error, dict) else error)
        except ValueError:
            message = body
        if self._load.api_key:
            message = message.replace(self._load.api_key, "…")
        return message if len(message) <= 200 else f"{message[:199]}…"

    def _refused(self, failure: _Failed) -> OptionError:
        """The error for a server that can't be measured at all."""
        remedies = {
            "no connection": "start the server, or correct the address",
            "timeout": "see whether the server is busy or the address wrong, or allow more with --timeout",
            "broken stream": "give the address of a server with the OpenAI API that can stream",
            "no output": "try other prompts",
            "status 401": "give the right key with --api-key or in OPENAI_API_KEY",
            "status 403": "give the right key with --api-key or in OPENAI_API_KEY",
            "status 404": f"see whether the server has the model {self.model}, and --api {self._load.api}"
            if self.model
            else "give the address of a server with the OpenAI API",
        }
        return OptionError(f"{self.url}: {failure}: {remedies.get(failure.kind, 'mend this first')}")


def _base_url(text: str) -> httpx2.URL:
    """The address under which v1/ and metrics are. Raises OptionError, which never shows a password."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        shown = text.rpartition("@")[2]
        raise OptionError(f"the URL {shown!r} is no server's address: write one such as http://127.0.0.1:8080")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1") + "/")


def _failure(error: Exception) -> _Failed:
    """What a request that raised this is counted as."""
    if isinstance(error, (asyncio.TimeoutError, httpx2.TimeoutException)):
        return _Failed("timeout")
    kind = "no connection" if isinstance(error, httpx2.ConnectError) else "broken stream"
    return _Failed(kind, str(error).rstrip("."))


def _texts_of(record: Mapping[str, Any]) -> tuple[list[object], bool]:
    """The pieces of text in a chunk of either API, a reasoning model's thoughts included; whether they are the last."""
    choices = record.get("choices")
    choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    parts = [choice["delta"] if isinstance(choice.get("delta"), dict) else choice for choice in choices]
    texts = [part.get(name) for part in parts for name in ("text", "content", "reasoning_content", "reasoning")]
    return texts, any(choice.get("finish_reason") for choice in choices)


def _tokens_of(record: Mapping[str, Any], earlier: int | None) -> int | None:
    """The output tokens that a chunk tells of, or those that an earlier one did."""
    usage = record.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else earlier


# Figures --------------------------------------------------------------------------------------------------------------


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The 50th, 90th and 99th percentile, interpolated linearly; None of nothing."""
    points = (50, 90, 99)
    found = np.percentile(values, points).tolist() if values else [None] * len(points)
    return {f"p{point}": value for point, value in zip(points, found, strict=True)}


def summary(
    answers: Sequence[Answer], errors: Mapping[str, int], seconds: float, ttft_limit: float, itl_limit: float
) -> dict[str, Any]:
    """The figures of one level, as bench_load describes them, that follow from its requests."""
    requests = len(answers) + sum(errors.values())
    good = sum(answer.within(ttft_limit, itl_limit) for answer in answers)
    between_tokens = [answer.time_between_tokens for answer in answers]
    counted = [answer for answer in answers if answer.usage is not None]
    chunks = sum(len(answer.chunks) for answer in counted)
    return {
        "requests": requests,
        "completed": len(answers),
        "errors": dict(errors),
        "seconds": seconds,
        "time_to_first_token": percentiles([answer.chunks[0] for answer in answers]),
        "time_between_tokens": percentiles([value for value in between_tokens if value is not None]),
        "time_between_chunks": percentiles(
            [later - earlier for answer in answers for earlier, later in pairwise(answer.chunks)]
        ),
        "latency": percentiles([answer.latency for answer in answers]),
        "tokens_per_chunk": sum(answer.tokens for answer in counted) / chunks if chunks else None,
        "output_tokens_per_second": sum(answer.tokens for answer in answers) / seconds,
        "requests_per_second": len(answers) / seconds,
        "goodput": {
            "share": good / requests,
            "requests_per_second": good / seconds,
            "ttft_limit": ttft_limit,
            "itl_limit": itl_limit,
        },
    }


_TYPE = re.compile(r"# TYPE (?P<name>\S+) counter\s*")
_SAMPLE = re.compile(
    r"""(?P<sample>(?P<name>[\w:]+)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)  # labels may hold any character in quotes
    \s+(?P<value>\d+(?:\.\d*)?(?:e[-+]?\d+)?)(?:\s|$)""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


def counters(text: str) -> dict[str, float]:
    """The counters of speculation in metrics written as Prometheus reads them: sample, labels included → value.

    They are those with "spec", "draft" or "accept" in their name, so that any server's are found.
    """
    types = {match["name"] for match in map(_TYPE.fullmatch, text.splitlines()) if match}
    found = {}
    for match in filter(None, map(_SAMPLE.match, text.splitlines())):
        name = match["name"]
        if types & {name, name.removesuffix("_total")} and re.search("spec|draft|accept", name):
            found[match["sample"]] = float(match["value"])
    return found


def increases(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> dict[str, float] | None:
    """By how much each counter rose, a new one from 0; None if there is none, or it isn't known what it was before."""
    if before is None or not after:
        return None
    return {sample: value - before.get(sample, 0.0) for sample, value in after.items()}
