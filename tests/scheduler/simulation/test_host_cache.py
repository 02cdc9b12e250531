from scheduler.simulation.contents import Chain
from scheduler.simulation.host_cache import HostCache
from tests.scheduler.simulation.test_contents import chain


def test_without_room_nothing_is_saved() -> None:
    assert HostCache[Chain](0).save(chain((1, 10))) == 0
    assert HostCache[Chain](9).save(chain((1, 10))) == 0


def test_what_is_there_already_is_not_copied_again() -> None:
    cache = HostCache[Chain](1000)

    assert cache.save(chain((1, 100), (2, 10))) == 110
    assert cache.save(chain((1, 100))) == 0
    assert cache.save(chain((1, 100), (2, 10), (3, 5))) == 115
    assert [entry.tokens for entry in cache.entries] == [115], "the shorter one lies within the longer one"


def test_the_oldest_ones_make_room() -> None:
    cache = HostCache[Chain](250)
    for name in (1, 2, 3):
        cache.save(chain((name, 100)))

    assert [entry.common(chain((3, 100))) for entry in cache.entries] == [0, 100]


def test_an_entry_moves_out_once() -> None:
    cache = HostCache[Chain](1000)
    cache.save(chain((1, 100), (2, 10)))
    prompt = chain((1, 100), (3, 10))

    better = cache.take_better(prompt, 0, 50)

    assert better is not None
    assert better.common(prompt) == 100
    assert cache.take_better(prompt, 0, 50) is None
