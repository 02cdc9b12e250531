"""What is remembered of requests."""

from pathlib import Path

import pytest

from proxy.dialects import Usage
from proxy.requests import KEPT, RequestBook
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.output import Output
from scheduler.domain import Outcome


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_timers_of_a_request_that_was_placed_twice() -> None:
    clock = Clock()
    book = RequestBook(None, clock)
    record = book.open("POST", "/api/chat", "127.0.0.1")
    record.waits(clock())
    clock.now_s += 1
    record.placed("gpu0", clock())
    clock.now_s += 2  # the attempt failed
    record.waits(clock())
    clock.now_s += 3
    record.placed("gpu1", clock(), 3, 5)
    clock.now_s += 4
    record.first_byte_s = clock()
    clock.now_s += 5
    record.outcome = Outcome.DONE
    record.usage = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=2)
    book.close(record)

    [ended] = book.recent()
    assert (ended.queue_ms, ended.first_byte_ms, ended.total_ms) == pytest.approx((4000, 10000, 15000))
    assert (ended.backend, ended.cached_tokens, ended.termination) == ("gpu1", 4, "--")
    assert (ended.slot, ended.predicted_cached_tokens, ended.tenant) == (3, 5, "127.0.0.1")


def test_only_waiting_counts_as_waiting() -> None:
    clock = Clock()
    book = RequestBook(None, clock)
    record = book.open("POST", "/api/embed", "127.0.0.1")
    record.waits(clock())
    clock.now_s += 1
    record.piece_placed("gpu0", clock())
    clock.now_s += 5  # it runs; a later piece is refused
    record.piece_placed("gpu1", clock())
    record.waited(clock())
    book.close(record)

    [ended] = book.recent()
    assert ended.queue_ms == pytest.approx(1000)
    assert ended.backend == "gpu0,gpu1"


def test_how_the_line_looked_when_waiting_began() -> None:
    record = RequestBook(None).open("POST", "/api/chat", "127.0.0.1")
    record.stands(None)
    assert record.position is None
    record.stands((4, 2.5))
    record.stands((1, 0.5))  # after a failed attempt
    assert [record.position, record.expected_wait_s] == [4, 2.5]


def test_an_expected_wait_that_nobody_can_tell() -> None:
    record = RequestBook(None).open("POST", "/api/chat", "127.0.0.1")
    record.stands((4, None))
    record.stands((1, 0.5))
    assert [record.position, record.expected_wait_s] == [4, None]


def test_a_request_that_nobody_ended_was_left_by_its_client() -> None:
    book = RequestBook(None)
    record = book.open("POST", "/api/chat", "127.0.0.1")
    record.waits(record.arrived_s)
    book.close(record)

    assert [ended.termination for ended in book.recent()] == ["CQ"]


def test_memory_is_bounded_and_ids_are_not_repeated() -> None:
    book = RequestBook(None)
    ids = set()
    for _ in range(KEPT + 10):
        record = book.open("GET", "/", "127.0.0.1")
        ids.add(record.id)
        book.close(record)

    assert len(ids) == KEPT + 10
    assert len(book.recent()) == KEPT


def test_how_a_request_waited_is_remembered() -> None:
    clock = Clock()
    book = RequestBook(None, clock)
    record = book.open("POST", "/api/chat", "127.0.0.1")
    record.priority = "high"
    record.waits(clock())
    record.stands((3, 1.5))
    record.stands((1, 0.5))  # only the first time counts
    assert book.being_answered(record.id) is record
    assert book.ended(record.id) is None
    clock.now_s += 2
    record.waited(clock())
    book.close(record)
    assert book.being_answered(record.id) is None
    ended = book.ended(record.id)
    assert ended is not None
    assert (ended.priority, ended.position, ended.expected_wait_s, ended.queue_ms) == ("high", 3, 1.5, 2000.0)


def test_nothing_is_kept_of_requests_that_are_over_but_the_last_few() -> None:
    book = RequestBook(None)
    for _ in range(KEPT + 5):
        book.close(book.open("GET", "/", "a"))
    assert not book._open
    assert len(book.recent()) == KEPT


def test_why_a_request_ended_is_logged_in_brief(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = Output(file.fileno())
        book = RequestBook(AccessLog(output, "json"))
        record = book.open("POST", "/api/chat", "127.0.0.1")
        record.detail = f'invalid think value: "{"x" * 1_000_000}"'
        book.close(record)
        output.close()
    line = (tmp_path / "log").read_bytes()
    assert b'invalid think value: \\"xxx' in line
    assert len(line) < 3000
