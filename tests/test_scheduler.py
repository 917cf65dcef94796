"""Who runs, and with how many rows."""

from types import SimpleNamespace

from slipstream.scheduler import Scheduler


def waiting(request_id: int, pending: int) -> SimpleNamespace:
    return SimpleNamespace(request_id=request_id, pending=pending)


def rows(scheduler: Scheduler) -> dict[int, int]:
    return {turn.running.request_id: turn.rows for turn in scheduler.next_batch()}


def test_first_come_first_served() -> None:
    scheduler = Scheduler(max_batch_size=2, max_prefill_rows=10)
    for number in range(4):
        scheduler.add(waiting(number, 1))
    assert rows(scheduler) == {0: 1, 1: 1}
    scheduler.retire(0)
    scheduler.retire(2)  # one that still waited
    assert rows(scheduler) == {1: 1, 3: 1}


def test_a_long_prompt_does_not_hold_up_those_that_decode() -> None:
    scheduler = Scheduler(max_batch_size=4, max_prefill_rows=10)
    for request_id, pending in enumerate([25, 1, 8, 1]):
        scheduler.add(waiting(request_id, pending))
    assert rows(scheduler) == {0: 10, 1: 1, 3: 1}  # no room is left for the second prompt
    scheduler.running[0].pending = 5
    assert rows(scheduler) == {0: 5, 1: 1, 2: 5, 3: 1}
