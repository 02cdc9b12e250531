"""What is loaded at a backend, by looks and by what was done in between."""

from math import inf

from scheduler.domain import Report, Residency
from scheduler.residencies import coming
from scheduler.residency_book import MOST_S, UNLOAD_S, ResidencyBook
from scheduler.runner import Runner
from tests.scheduler.cards import ollama
from tests.scheduler.world import MODEL, OTHER_MODEL

OLLAMA = ollama("a", weights={MODEL: "w", "copy:latest": "w"})


def look(book: ResidencyBook, at_s: float, *residencies: Residency, came_s: float | None = None) -> list[str]:
    book.reported(Report("a", 1, at_s, residencies=residencies), OLLAMA, at_s + 0.1 if came_s is None else came_s)
    return [one.model for one in book.residencies]


def test_a_look_that_began_before_a_load_ended_changes_nothing_of_it() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency("copy:latest", 2048, weights="w"))
    book.loaded(coming(MODEL, Runner(8192), OLLAMA), OLLAMA, 5.0)
    assert [one.model for one in book.residencies] == [MODEL], "the same weights are there once"

    assert look(book, 4.0, Residency("copy:latest", 2048, weights="w"), Residency(OTHER_MODEL)) == [OTHER_MODEL, MODEL]
    assert look(book, 6.0) == [], "one that began later is the truth"
    assert book.told


def test_what_is_being_unloaded_may_still_show() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(MODEL), Residency(OTHER_MODEL))
    book.unloaded([MODEL], 2.0)
    assert [one.model for one in book.residencies] == [OTHER_MODEL]
    assert look(book, 2.0 + UNLOAD_S, Residency(MODEL)) == []
    assert look(book, 2.1 + UNLOAD_S, Residency(MODEL)) == [MODEL], "it is still there, or again"

    book.unloaded([MODEL], 20.0, 0.0)
    assert look(book, 20.1, Residency(MODEL)) == [MODEL]


def test_with_what_it_was_loaded_is_known_for_as_long_as_it_stays_so() -> None:
    book = ResidencyBook()
    book.loaded(coming(MODEL, Runner(100_000), OLLAMA), OLLAMA, 5.0)

    look(book, 6.0, Residency(MODEL, 65_536))
    assert book.residencies[0].asked == Runner(100_000), "the engine gave it less"
    look(book, 7.0, Residency("copy:latest", 65_536, weights="w"))
    assert book.residencies[0].asked == Runner(100_000), "under another name"
    look(book, 8.0, Residency(MODEL, 4096))
    assert not any(one.asked for one in book.residencies)
    look(book, 9.0, Residency(MODEL, 65_536))
    assert not any(one.asked for one in book.residencies), "somebody else loaded it"


def test_since_when_it_is_there() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(MODEL))
    assert book.since_s(MODEL) == -inf, "for long, maybe"
    look(book, 2.0, Residency(MODEL), Residency(OTHER_MODEL), came_s=2.5)
    assert (book.since_s(MODEL), book.since_s(OTHER_MODEL)) == (-inf, 2.5)
    book.loaded(coming(MODEL, Runner(), OLLAMA), OLLAMA, 5.0)
    assert book.since_s(MODEL) == 5.0
    look(book, 6.0)
    assert book.since_s(MODEL) == -inf


def test_a_new_engine_has_nothing_loaded() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(MODEL))
    book.loaded(coming(OTHER_MODEL, Runner(), OLLAMA), OLLAMA, 5.0)
    before = book.kinds
    book.clear()
    assert (book.residencies, book.told, book.kinds) == ((), False, frozenset())
    assert before != book.kinds
    assert look(book, 2.0, Residency(MODEL)) == [MODEL]


def test_how_many_models_an_engine_holds_is_learned_from_what_its_loads_made_go() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(OTHER_MODEL))
    book.loaded(coming(MODEL, Runner(), OLLAMA), OLLAMA, 5.0)
    look(book, 4.0, Residency(OTHER_MODEL))
    assert book.most == 0, "that look knows nothing of it"

    look(book, 6.0, Residency(MODEL))
    assert book.most == 1
    look(book, 6.0 + MOST_S / 2, Residency(MODEL))
    assert book.most == 1
    look(book, 7.0 + MOST_S, Residency(MODEL))
    assert book.most == 0, "after long it is tried again"


def test_more_models_than_that_show_that_it_was_wrong() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(OTHER_MODEL))
    book.reported(Report("a", 1, 2.0), OLLAMA, 2.1, loading=True)
    assert book.most == 1, "it made way while the load is still under way"

    look(book, 3.0, Residency(MODEL), Residency(OTHER_MODEL))
    assert book.most == 0


def test_what_goes_by_itself_teaches_nothing() -> None:
    book = ResidencyBook()
    look(book, 1.0, Residency(OTHER_MODEL), Residency(MODEL))
    look(book, 2.0, Residency(MODEL))
    assert book.most == 0
    book.loaded(coming(OTHER_MODEL, Runner(), OLLAMA), OLLAMA, 3.0)
    look(book, 4.0, Residency(MODEL))
    assert book.most == 0, "what was loaded did not stay: nothing made way for it"
    book.unloaded([MODEL], 5.0)
    book.loaded(coming(OTHER_MODEL, Runner(), OLLAMA), OLLAMA, 6.0)
    look(book, 7.0, Residency(OTHER_MODEL))
    assert book.most == 0, "it was unloaded on purpose"
