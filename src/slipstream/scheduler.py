"""Which requests take part in the next pass, and with how many rows."""

from collections import deque

from slipstream.running import Running, Turn

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served. Prompts are fed in chunks, so that a long one doesn't hold up those that decode.

    max_batch_size    most requests that run at once
    max_prefill_rows  most prompt tokens in one pass, over all requests
    """

    def __init__(self, max_batch_size: int, max_prefill_rows: int = 256) -> None:
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.max_batch_size = max_batch_size
        self.max_prefill_rows = max_prefill_rows

    def add(self, running: Running) -> None:
        self.waiting.append(running)

    def next_batch(self) -> list[Turn]:
        """Admits what fits and gives every running request its rows; one that gets no room this time is left out."""
        while self.waiting and len(self.running) < self.max_batch_size:
            self.running.append(self.waiting.popleft())
        batch = []
        room = self.max_prefill_rows
        for running in self.running:
            rows = running.pending if running.pending == 1 else min(running.pending, room)
            if running.pending > 1:
                room -= rows
            if rows:
                batch.append(Turn(running, rows))
        return batch

    def retire(self, request_id: int) -> None:
        """Forgets a request, finished or not, running or waiting."""
        self.running = [running for running in self.running if running.request_id != request_id]
        self.waiting = deque(running for running in self.waiting if running.request_id != request_id)
