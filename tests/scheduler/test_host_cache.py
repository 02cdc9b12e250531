from scheduler import host_cache
from scheduler.held import Held
from scheduler.host_cache import HostCache
from tests.scheduler.prompts import TOKENS_PER_BYTE, Message, prompt_of

SYSTEM, USER, ANSWER, NEXT, OTHER = (1, 100), (2, 50), (3, 60), (4, 10), (5, 40)
CONTENTS = iter(range(1, 10_000))


def held(messages: list[Message], answer: int = 0) -> Held:
    prompt = prompt_of(messages)
    length = prompt.size_bytes // 4
    return Held(prompt, prompt.size_bytes, length, length + answer, answer, next(CONTENTS))


def has(cache: HostCache, message: Message) -> bool:
    """Whether a sequence of that message is there; if so, it moves out."""
    restored = cache.restore(prompt_of([message, OTHER]), TOKENS_PER_BYTE, 0, 0)
    return restored is not None and restored[1].reused == message[1]


def test_an_entry_moves_out() -> None:
    cache = HostCache(1000)
    saved = held([SYSTEM, USER], 59)
    assert cache.save(saved)
    following = prompt_of([SYSTEM, USER, ANSWER, NEXT])

    restored = cache.restore(following, TOKENS_PER_BYTE, 0, 0)

    assert restored is not None
    assert restored[0] is saved
    assert restored[1].reused == 209
    assert (len(cache), cache.tokens) == (0, 0)
    assert cache.restore(following, TOKENS_PER_BYTE, 0, 0) is None


def test_a_slot_that_is_as_good_keeps_what_it_has() -> None:
    cache = HostCache(1000)
    cache.save(held([SYSTEM, USER]))

    assert cache.restore(prompt_of([SYSTEM, OTHER]), TOKENS_PER_BYTE, 100, 100) is None
    assert len(cache) == 1


def test_an_entry_of_which_little_would_be_used_stays() -> None:
    cache = HostCache(1000)
    cache.save(held([(9, 20), (8, 200)]))

    assert cache.restore(prompt_of([(9, 20), OTHER]), TOKENS_PER_BYTE, 0, 0) is None


def test_contained_entries_go_and_contained_sequences_are_not_copied() -> None:
    cache = HostCache(1000)
    assert cache.save(held([SYSTEM, USER], 59))
    longer = held([SYSTEM, USER, ANSWER, NEXT], 5)
    assert cache.save(longer)
    assert (len(cache), cache.tokens) == (1, 225)

    assert not cache.save(longer)
    assert not cache.save(held([SYSTEM, USER], 59))
    assert not cache.save(None)
    assert cache.save(held([SYSTEM, USER, ANSWER, NEXT], 5))  # the same prompt, another answer


def test_the_oldest_go_first() -> None:
    cache = HostCache(400)
    for name in range(5):
        assert cache.save(held([(name, 100)]))
    assert not cache.save(held([(9, 401)]))

    assert cache.tokens == 400
    assert not has(cache, (0, 100))
    assert has(cache, (1, 100))  # and takes it out

    assert cache.save(held([(9, 250)]))
    assert [has(cache, (name, 100)) for name in range(2, 5)] == [False, False, True]


def test_bounded_by_count_too() -> None:
    cache = HostCache(1_000_000)
    for name in range(host_cache.ENTRIES + 20):
        assert cache.save(held([(name, 3)]))

    assert len(cache) == host_cache.ENTRIES
    assert not has(cache, (19, 3))
    assert has(cache, (20, 3))


def test_no_cache_holds_nothing_and_clearing_forgets() -> None:
    off, cache = HostCache(0), HostCache(1000)

    assert not off.save(held([SYSTEM]))
    assert cache.save(held([SYSTEM]))
    cache.clear()
    assert (len(cache), has(cache, SYSTEM)) == (0, False)
    assert cache.save(held([SYSTEM]))
