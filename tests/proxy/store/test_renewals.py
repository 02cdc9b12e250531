"""What a renewal names; what becomes of it is in test_scripts, test_slots, test_store and test_coming_back."""

from typing import Any

import pytest

from proxy.store.holdings import Holdings, Stand
from proxy.store.keys import Keys
from proxy.store.link import Link
from proxy.store.places import Places
from proxy.store.presence import Presence
from proxy.store.records import BackendRecord, LostLease
from proxy.store.renewals import Renewals


class Listens:
    """The owner; only losses are told."""

    def __init__(self) -> None:
        self.losses: list[LostLease] = []
        self.on_lost: Any = self.losses.append
        self.on_news: Any = None
        self.on_gap: Any = None
        self.on_proxies: Any = None


class Named:
    """Renewals whose link only keeps what is posted."""

    def __init__(self, record: BackendRecord | None = None) -> None:
        self.holdings = Holdings()
        self.listens = Listens()
        self.posted: list[tuple[Any, ...]] = []
        self.then: Any = None
        link = Link(Places("unix:///none.sock"), call_timeout_s=1.0)
        link.post = self._post  # type: ignore[method-assign,assignment]
        self.lives = 0
        self.presence = presence = Presence(
            "a", settle_s=1.0, calm_s=1.0, say=lambda _: None, on_life=lambda: None, on_proxies=lambda _: None
        )
        presence.life = "life"
        self.renewals = Renewals(
            link,
            Keys("f"),
            "a/",
            self.holdings,
            (15, 60),
            record_of=lambda _: record,
            presence=presence,
            on_life=self._other_life,
            listener=self.listens,
        )

    def _other_life(self) -> None:
        self.lives += 1

    def _post(self, _script: object, _keys: object, arguments: tuple[Any, ...], then: Any) -> Any:
        self.posted.append(arguments)
        self.then = then
        return object()

    def named(self, *, force: bool = False) -> dict[str, tuple[Any, ...]]:
        """Seats, epoch, stand, slot and news by nonce."""
        self.renewals.post_all(force=force)
        flat = self.posted[-1][6:]
        return {flat[i]: tuple(flat[i + 1 : i + 6]) for i in range(0, len(flat), 6)}


def test_each_stand_is_named_with_its_slot_and_its_news() -> None:
    named = Named()
    held = named.holdings
    held.ask("g0", "asked", 1, 1, 4, 2)
    held.ask("g0", "held", 2, 1, 4).stand = Stand.HELD
    for nonce, away in (("gone", False), ("over", True)):
        held.ask("g0", nonce, 1, 1, 4, 0).stand = Stand.HELD
        held.give_back("g0", nonce, 0.0, nonce.encode(), away=away)

    assert named.named() == {
        "asked": (1, 1, "asked", 2, b""),
        "held": (2, 1, "held", "", b""),
        "gone": (1, 1, "gone", 0, b"gone"),
        "over": (1, 1, "over", 0, b"over"),
    }
    again = named.named(force=True)
    assert again["held"][2] == "must"
    assert again["over"][2] == "gone", "it may have been told"


def test_a_claim_given_back_without_the_store_was_never_told() -> None:
    named = Named()
    named.holdings.ask("g0", "n", 1, 1, 4)
    named.holdings.give_back("g0", "n", 0.0, b"news", away=True)

    assert named.named()["n"][2] == "gone"


def test_what_was_lost_is_not_forced() -> None:
    named = Named()
    holding = named.holdings.ask("g0", "n", 1, 1, 4)
    holding.stand, holding.lost_told = Stand.HELD, True

    named.holdings.ask("g0", "other", 1, 1, 4).stand = Stand.HELD

    assert named.named(force=True).keys() == {"other"}
    assert named.named()["n"][2] == "held"


@pytest.mark.parametrize(("record", "limit"), [(None, 8), (BackendRecord("g0", 1, 3), 3)])
def test_the_announced_limit_comes_before_that_of_claims(record: BackendRecord | None, limit: int) -> None:
    named = Named(record)
    named.holdings.ask("g0", "n", 1, 1, 8)
    named.named()

    assert named.posted[-1][:6] == ("a/", limit, 15, 60, "life", -1)


def test_what_another_life_did_not_hear_is_told_again() -> None:
    named = Named()
    named.holdings.ask("g0", "over", 1, 1, 4).stand = Stand.HELD
    named.holdings.give_back("g0", "over", 0.0, b"news", away=True)
    named.named()
    named.then([-1])

    assert named.lives == 1
    assert named.named()["over"][2] == "over"


async def test_until_others_were_heard_no_more_than_the_share_is_taken_again() -> None:
    named = Named()
    named.presence.hear([b"life", 60_000, b"a", b"b"], asked_s=0.0, joining=True)
    named.presence.settle({"g0": 3})
    named.holdings.ask("g0", "n", 1, 1, 4).stand = Stand.HELD
    named.named()

    assert named.posted[-1][5] == 1
    named.presence.close()


async def test_answers_are_heard() -> None:
    named = Named()
    for nonce in ("kept", "expired", "void", "gone"):
        named.holdings.ask("g0", nonce, 1, 1, 4).stand = Stand.HELD
    named.holdings.give_back("g0", "gone", 0.0)
    named.named()
    for _ in range(2):
        named.then([1, 1, 0, 1, 4, 1, b"expired", b"void"])

    assert named.listens.losses == [LostLease("g0", "expired", "expired"), LostLease("g0", "void", "epoch")]
    assert named.holdings.of("g0").keys() == {"kept", "expired", "void"}


async def test_what_was_claimed_anew_meanwhile_is_not_forgotten() -> None:
    named = Named()
    named.holdings.ask("g0", "n", 1, 1, 4).stand = Stand.HELD
    named.holdings.give_back("g0", "n", 0.0)
    named.named()
    named.holdings.ask("g0", "n", 1, 1, 4)
    named.then([0, 0, 0, 1, 4, 0])

    assert named.holdings.of("g0")["n"].stand is Stand.ASKED
