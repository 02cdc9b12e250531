"""Loads under way, here and at other proxies: two schedulers that hear each other."""

import msgspec
import pytest

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Outcome, Report, Request, Residency
from scheduler.effects import Effect
from scheduler.health import Signal
from scheduler.loading import FORGOTTEN_S, REFUSED_S
from scheduler.news import LoadBegun, LoadOver, News, Standing
from scheduler.runner import Runner
from tests.scheduler.cards import POLICY, ask, cards, loading, ollama
from tests.scheduler.world import MODEL, OTHER_MODEL, of_type, request


class Two:
    """Two proxies; what one tells is heard by the other when the test says so. The store grants all."""

    def __init__(self, **loaded: str) -> None:
        self.now_s = 100.0
        self.proxies = [Scheduler(POLICY), Scheduler(POLICY)]
        self.told: list[list[News]] = [[], []]
        self.done: list[list[Effect]] = [[], []]
        for number in range(2):
            self.feed(number, events.ProxiesChanged(frozenset({str(1 - number)})))
            for name, model in loaded.items():
                self.feed(number, events.BackendChanged(ollama(name)))
                self.feed(number, events.BackendSignalled(name, Signal.STARTED))
                self.feed(number, events.BackendSignalled(name, Signal.ANSWERED))
                self.look(number, name, model)
        self.hear()

    def feed(self, number: int, event: events.Event) -> None:
        self.now_s += 0.001
        for effect in self.proxies[number].handle(event, self.now_s):
            self.done[number].append(effect)
            if isinstance(effect, effects.Tell):
                self.told[number].append(effect.news)
            if isinstance(effect, effects.Claim):
                if effect.news is not None:
                    self.told[number].append(effect.news)
                self.feed(number, events.ClaimGranted(effect.request_id, effect.nonce))

    def look(self, number: int, name: str, *models: str) -> None:
        there = tuple(Residency(model, 4096) for model in models if model)
        self.feed(number, events.BackendReported(Report(name, 1, self.now_s, residencies=there)))

    def hear(self) -> None:
        while any(self.told):
            for number in range(2):
                told, self.told[number] = self.told[number], []
                for news in told:
                    self.feed(1 - number, events.NewsHeard(str(number), wire(news)))

    def ask(self, number: int, name: str, model: str = MODEL) -> None:
        self.feed(number, events.RequestArrived(wanted(name, model, self.now_s)))

    def loads(self, number: int) -> list[effects.Load]:
        return of_type(self.done[number], effects.Load)

    def end(self, number: int, load: effects.Load, *, loaded: bool = True, refused: bool = False) -> None:
        detail = "" if loaded or refused else "out of memory"
        self.feed(number, events.LoadEnded(load.backend_id, load.model, load.nonce, loaded, detail, None, refused))

    def view(self, number: int, name: str = "a") -> tuple[str, set[str], list[str]]:
        views = self.proxies[number].snapshot(self.now_s).backends
        view = next(each for each in views if each.backend.id == name)
        return view.loading, set(view.closing), [one.model for one in view.residencies]

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.25)
            for number in range(2):
                self.feed(number, events.TimePassed())


def wanted(name: str, model: str, now_s: float) -> Request:
    return request(name, model=model, arrived_s=now_s)


def wire(news: News) -> News:
    """As it travels."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(news), type=News)


def test_the_others_see_a_load_and_have_the_model_when_it_is_over() -> None:
    two = Two(a=OTHER_MODEL)
    two.ask(0, "r0")
    two.hear()
    assert two.view(1) == (MODEL, {OTHER_MODEL}, [OTHER_MODEL])
    two.ask(1, "r1")
    two.hear()
    assert two.loads(1) == [], "one that will do is under way"

    two.end(0, two.loads(0)[0])
    two.hear()

    assert two.view(0) == two.view(1) == ("", set(), [MODEL])
    assert [each.request_id for each in of_type(two.done[1], effects.Dispatch)] == ["r1"]


def test_of_two_that_decide_at_once_one_goes_on() -> None:
    two = Two(a=OTHER_MODEL)
    for number in range(2):
        two.ask(number, f"o{number}", OTHER_MODEL)
    two.hear()
    two.ask(0, "r0")
    two.ask(1, "r1", "third:latest")
    two.pass_time(3.0)  # both know nothing of the other's yet
    under_way = [two.proxies[number].loads_under_way() for number in range(2)]
    assert [load.closing for loads in under_way for load in loads if not load.owner] == [True, True]

    two.hear()

    left = [load for number in range(2) for load in two.proxies[number].loads_under_way() if not load.owner]
    assert len(left) == 1
    assert two.loads(0) == two.loads(1) == [], "what runs is in the way of both"


def test_the_store_decides_between_two_that_asked_at_once() -> None:
    two = Two(a="")
    two.ask(0, "r0")
    two.ask(1, "r1")
    [first], [second] = two.loads(0), two.loads(1)
    two.hear()
    two.end(1, second, loaded=False, refused=True)
    two.hear()
    assert not of_type(two.done[1], effects.Reject)

    two.end(0, first)
    two.hear()

    assert two.view(0) == two.view(1) == ("", set(), [MODEL])
    two.pass_time(REFUSED_S + 1.0)
    assert len(two.loads(1)) == 1
    assert {each.request_id for number in range(2) for each in of_type(two.done[number], effects.Dispatch)} == {
        "r0",
        "r1",
    }


def test_what_others_run_is_in_use() -> None:
    two = Two(a=OTHER_MODEL)
    two.ask(1, "theirs", OTHER_MODEL)
    two.hear()
    two.ask(0, "r0")
    two.pass_time(10.0)
    assert two.loads(0) == []
    assert two.view(0) == (MODEL, {OTHER_MODEL}, [OTHER_MODEL])

    two.feed(1, events.RequestEnded("theirs", Outcome.DONE))
    [release] = of_type(two.done[1], effects.Release)
    assert release.news is not None
    two.feed(0, events.NewsHeard("1", release.news))

    assert [load.unload for load in two.loads(0)] == [(OTHER_MODEL,)]


def test_a_failure_elsewhere_is_not_repeated_here() -> None:
    two = Two(a="")
    two.ask(0, "r0")
    two.hear()
    two.end(0, two.loads(0)[0], loaded=False)
    two.hear()

    two.ask(1, "r1")

    assert two.loads(1) == []
    [refused] = of_type(two.done[1], effects.Reject)
    assert refused.detail == "out of memory"


@pytest.mark.parametrize("how", ["gone", "silent", "stands-without"])
def test_the_loads_of_a_proxy_that_is_gone_are_forgotten(how: str) -> None:
    two = Two(a=OTHER_MODEL)
    two.ask(0, "r0")
    two.hear()
    assert two.view(1)[0] == MODEL

    if how == "gone":
        two.feed(1, events.ProxiesChanged(frozenset()))
    elif how == "silent":
        two.now_s += FORGOTTEN_S
        two.feed(1, events.TimePassed())
    else:
        two.feed(1, events.NewsHeard("0", Standing()))

    assert two.view(1) == ("", set(), [OTHER_MODEL])


def test_a_standing_tells_the_loads_under_way() -> None:
    two = Two(a=OTHER_MODEL)
    two.ask(0, "r0")
    standing = two.proxies[0].standing(two.now_s + 1.0)
    [told] = standing.loads
    assert (told.backend_id, told.model, told.unload) == ("a", MODEL, (OTHER_MODEL,))
    assert told.began_s_ago >= 1.0

    late = Two(a=OTHER_MODEL)
    late.feed(1, events.NewsHeard("0", wire(standing)))

    assert late.view(1)[:2] == (MODEL, {OTHER_MODEL})


def test_loads_for_an_engine_that_is_gone_are_not_taken_in() -> None:
    world = cards(a=OTHER_MODEL)
    world.join(ollama("a", epoch=5))
    world.feed(events.NewsHeard("two", LoadBegun("a", 4, MODEL, Runner(), "n")))
    assert world.view("a").loading == ""
    world.feed(events.NewsHeard("two", LoadBegun("a", 6, MODEL, Runner(), "m")))
    world.join(ollama("a", epoch=6))
    assert world.view("a").loading == MODEL, "its news came before that of the restart"
    world.feed(events.NewsHeard("three", LoadOver("a", "m", loaded=True)))
    assert world.view("a").loading == MODEL, "it is not theirs"


def test_a_late_look_does_not_take_a_new_model_away() -> None:
    world = cards(a=OTHER_MODEL)
    ask(world, "r")
    began_before = world.report("a")
    world.answer_claims()
    world.feed(events.BackendReported(began_before))
    assert [one.model for one in world.view("a").residencies] == [MODEL]

    world.loads.put("a")
    world.look("a")

    assert world.view("a").residencies == ()


def test_what_its_load_was_asked_with_is_known_until_it_changes() -> None:
    world = cards(a="")
    ask(world, "r", runner=Runner(8192))
    world.answer_claims()
    world.look("a")
    [one] = world.view("a").residencies
    assert one.asked == Runner(8192)

    world.loads.put("a", Residency(MODEL, 2048))
    world.look("a")

    [one] = world.view("a").residencies
    assert (one.context_tokens, one.asked) == (2048, None)


def test_after_a_failure_nothing_is_asked_of_an_engine_until_it_was_looked_at() -> None:
    world = cards(a=OTHER_MODEL)
    ask(world, "r")
    [load] = world.loads.under_way.values()
    world.loads.end(load.nonce, loaded=False)
    assert loading(ask(world, "o", OTHER_MODEL) + world.pass_time(1.0)) == []
    assert world.view("a").residencies == ()
    assert loading(world.look("a") + world.pass_time(0.5)) == [("a", OTHER_MODEL, ())]
