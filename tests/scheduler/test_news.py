"""News survive the wire, whatever they are."""

import typing

import msgspec
import pytest

from scheduler.domain import Dialect, Engine, Measured, Operation, Report
from scheduler.health import Signal
from scheduler.news import (
    Asked,
    BackendMoved,
    BackendSeen,
    BackendTold,
    Hello,
    LeaseAbandoned,
    LeaseOver,
    LeaseStarted,
    LeaseTaken,
    LoadBegun,
    LoadOver,
    News,
    PolicySet,
    Standing,
    TicketGone,
    TicketWaits,
)
from scheduler.runner import Runner
from tests.scheduler.prompts import prompt_of
from tests.scheduler.world import backend

ASKED = Asked(
    "r1", Operation.CHAT, Dialect.OLLAMA, "m", 1.0, 2.0, True, 1, False, False, (Engine.OLLAMA,), "x", "normal", 3,
    prompt_of([(0, 900)]), None, True, Runner(8192, shift=False), True, 60.0,
)  # fmt: skip
TAKEN = LeaseTaken("n", "a", 1, 1, ASKED, 3, 100, 50, 1.5, 20.0, 90.0)
WAITS = TicketWaits(ASKED, ("b",), 0.5)
LOAD = LoadBegun("a", 1, "m", Runner(8192), "n", ("o",), 2.0)
ALL: list[News] = [
    WAITS, TicketGone("r1"), TAKEN, LeaseStarted("n"), LeaseAbandoned("n", -1.0), LeaseOver("n", Measured(1, 2), 3.0),
    LOAD, LoadOver("a", "n", loaded=False, detail="out of memory"),
    Hello(), Standing((TAKEN,), ("n",), ("n",), (WAITS,), (LOAD,)), BackendTold(backend()),
    BackendMoved("a", 1, Signal.ANSWERED), BackendSeen(Report("a", 1, 0.0), 0.1), PolicySet(3),
]  # fmt: skip


@pytest.mark.parametrize("news", ALL, ids=lambda news: type(news).__name__)
def test_news_survive_the_wire(news: News) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([news]), type=list[News]) == [news]


def test_each_kind_has_a_tag_of_its_own() -> None:
    tags = [kind.__struct_config__.tag for kind in typing.get_args(News)]
    assert len(set(tags)) == len(tags)


def test_what_a_proxy_without_loads_tells_is_understood() -> None:
    wire = msgspec.msgpack.encode(list(msgspec.to_builtins(ASKED))[:-3])
    asked = msgspec.msgpack.decode(wire, type=Asked)
    assert (asked.runner, asked.cloud, asked.keep_alive_s) == (None, False, None)
