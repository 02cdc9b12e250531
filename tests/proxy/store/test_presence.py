"""Who is there, and when a return is settled: without any store."""

import asyncio
from typing import Any

import pytest

from proxy.store.presence import Presence
from tests.wait import until


class Told:
    """What a Presence said and called."""

    def __init__(self, owner: str = "a", settle_s: float = 60.0, calm_s: float = 0.0) -> None:
        self.words: list[str] = []
        self.lives = 0
        self.owners: list[frozenset[str]] = []
        self.presence = Presence(
            owner,
            settle_s=settle_s,
            calm_s=calm_s,
            say=self.words.append,
            on_life=self._life,
            on_proxies=self.owners.append,
        )

    def awaited(self) -> set[str] | None:
        """Who has to be heard yet; None: it is settled."""
        return self.presence.settling.awaited if self.presence.settling else None

    def _life(self) -> None:
        self.lives += 1

    def hear(
        self,
        *owners: str,
        life: str = "one",
        ends_ms: int = 60_000,
        joining: bool = False,
        asked_s: float | None = None,
    ) -> None:
        reply: list[Any] = [life.encode(), ends_ms, *(owner.encode() for owner in owners)]
        if asked_s is None:
            asked_s = asyncio.get_running_loop().time() + 1
        self.presence.hear(reply, asked_s=asked_s, joining=joining)

    def back(self, *owners: str, elsewhere: dict[str, int] | None = None) -> None:
        """On a new connection after trouble: these are there."""
        self.hear(*owners, joining=True)
        self.presence.settle(elsewhere or {})
        self.presence.join()


async def test_changes_of_the_set_are_told_once() -> None:
    told = Told()
    told.hear("a")
    told.hear("a", "b")
    told.hear("b", "a")
    told.presence.heard("c", "join 1 one")
    told.presence.heard("b", "left 0 one")

    assert told.owners == [{"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "c"}]
    assert told.presence.proxies == ("a", "c")
    assert not told.presence.alone


async def test_an_answer_asked_for_before_the_log_told_more_does_not_undo_that() -> None:
    told = Told()
    told.hear("a", "b")
    asked_s = asyncio.get_running_loop().time()
    told.presence.heard("c", "join 1 one")
    told.presence.heard("b", "left 0 one")
    told.hear("a", "b", asked_s=asked_s)

    assert told.owners == [{"a", "b"}, {"a", "b", "c"}, {"a", "c"}]
    told.hear("a")
    assert told.owners[-1] == {"a"}, "what is asked for later counts"


async def test_a_join_is_answered_once_a_turn() -> None:
    told = Told()
    told.hear("a")
    told.presence.heard("b", "join 1 one")
    told.presence.heard("c", "join 4 one")
    told.presence.heard("c", "here 0 one")
    await asyncio.sleep(0)

    assert told.words == ["here 0 one"]


async def test_another_life_is_looked_at() -> None:
    told = Told()
    told.hear("a")
    told.presence.heard("b", "here 0 two")
    await asyncio.sleep(0)
    assert told.words == [""]
    assert told.lives == 0
    told.hear("a", "b", life="two")
    assert told.lives == 1


async def test_who_told_another_life_is_not_heard() -> None:
    told = Told()
    told.hear("a", "b")
    told.back("a", "b")
    told.presence.heard("a", "join 1 one")
    for words in ("here 0 old", "join 2 old"):
        told.presence.heard("b", words)

    assert told.awaited() == {"b"}
    told.presence.heard("b", "here 0 one")
    assert told.awaited() is None


async def test_the_end_of_the_next_sign_is_looked_for() -> None:
    told = Told()
    told.hear("a", "b", ends_ms=1)
    await until(lambda: told.words == [""], "it looks")


async def test_on_return_those_from_before_are_awaited_and_stay_in_the_set() -> None:
    told = Told()
    told.hear("a", "b", "c")
    told.back("a", "d")

    assert told.presence.proxies == ("a", "b", "c", "d")
    assert told.words == ["join 1 one"]
    for words in ("here 0 one", "join 3 one"):
        told.presence.heard("b", words)
    assert told.awaited() == {"b", "c", "d"}, "that may have been said before our join"
    told.presence.heard("a", "join 1 one")
    told.presence.heard("b", "here 0 one")
    told.presence.heard("d", "join 1 one")
    told.presence.heard("c", "left 0 one")
    assert told.awaited() is None
    assert told.owners == [{"a", "b", "c"}, {"a", "b", "c", "d"}, {"a", "b", "d"}]


async def test_a_gap_asks_again_while_somebody_is_awaited_and_answers_otherwise() -> None:
    told = Told()
    told.hear("a", "b")
    told.back("a")
    told.presence.again()
    told.presence.heard("a", "join 1 one")
    told.presence.heard("b", "here 0 one")
    assert told.awaited() == {"b"}, "only what follows the last join counts"
    told.presence.heard("a", "join 2 one")
    told.presence.heard("b", "here 0 one")
    assert told.awaited() is None
    told.presence.again()
    assert told.words == ["join 1 one", "join 2 one", "here 0 one"]


async def test_failed_attempts_to_join_do_not_make_it_forget_who_was_there() -> None:
    told = Told()
    told.hear("a", "b")
    told.hear("a", joining=True)
    assert told.presence.proxies == ("a", "b")
    told.back("a")

    assert told.awaited() == {"b"}


async def test_while_settling_it_takes_its_share_and_nothing_that_others_had() -> None:
    one, two = Told("a"), Told("b")
    for told in (one, two):
        told.hear("a", "b")
        assert told.presence.most("g0", 5) == -1
        told.back("a", "b", elsewhere={"g1": 4})

    assert one.presence.most("g0", 5) + two.presence.most("g0", 5) == 5
    assert one.presence.most("g1", 5) == 1
    assert one.presence.most("g1", 3) == 0


async def test_nobody_is_awaited_where_nobody_was() -> None:
    told = Told()
    told.hear("a")
    told.back("a")

    assert told.awaited() is None
    await told.presence.calm()


async def test_it_ends_by_itself() -> None:
    told = Told(settle_s=0.05)
    told.hear("a", "b")
    told.back("a")
    await until(lambda: told.presence.settling is None, "given up")

    assert told.owners[-1] == {"a"}
    told.presence.close()


async def test_claims_wait_for_the_others_but_not_for_long() -> None:
    told = Told(calm_s=0.05)
    told.hear("a", "b")
    told.back("a")
    await told.presence.calm()
    assert told.presence.settling is not None
    told.presence._calm_s = 60
    told.presence.settle({})
    waiting = asyncio.ensure_future(told.presence.calm())
    await asyncio.sleep(0)
    told.presence.settled()
    await waiting
    told.presence.close()


@pytest.mark.parametrize("failing", [True, False])
async def test_a_callback_that_fails_ends_nothing(failing: bool) -> None:
    told = Told()
    if failing:
        told.presence._on_proxies = lambda _owners: 1 / 0  # type: ignore[assignment]
    told.hear("a")

    assert told.presence.proxies == ("a",)
