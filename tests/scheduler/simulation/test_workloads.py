import pytest

from scheduler.simulation.conversations import Session, Turn
from scheduler.simulation.workloads import WORKLOADS, sessions


def turns(made: list[Session]) -> list[Turn]:
    """All of them."""
    return [turn for session in made for turn in session.turns]


def mean(values: list[int]) -> float:
    """Of at least one."""
    return sum(values) / len(values)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_the_same_seed_gives_the_same_clients(workload: str) -> None:
    first, again = sessions(workload, 1.0, 7, 120.0), sessions(workload, 1.0, 7, 120.0)
    other = sessions(workload, 1.0, 8, 120.0)

    assert [(one.id, one.arrives_ms, [turn[0] for turn in one.turns]) for one in first] == [
        (one.id, one.arrives_ms, [turn[0] for turn in one.turns]) for one in again
    ]
    assert [one.arrives_ms for one in first] != [one.arrives_ms for one in other]
    assert [one.arrives_ms for one in first] == sorted(one.arrives_ms for one in first)
    assert len({one.id for one in first}) == len(first)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_every_turn_is_whole(workload: str) -> None:
    for session in sessions(workload, 0.5, 3, 150.0):
        assert session.turns[0].think_ms == 0
        for turn in session.turns:
            assert turn.prompt.size_bytes == 4 * turn.prompt_tokens
            assert turn.content.tokens == turn.prompt_tokens + turn.output_tokens
            assert turn.output_tokens >= 1


def test_chats_are_as_told() -> None:
    made = [session for seed in range(4) for session in sessions("chat", 1.2, seed)]
    all_turns = turns(made)
    longest = max(len(session.turns) for session in made)
    gaps = [turn.think_ms for session in made for turn in session.turns[1:]]

    assert mean([len(session.turns) for session in made]) == pytest.approx(4.5, rel=0.05)
    assert longest == 21
    assert sum(gaps) / len(gaps) == pytest.approx(12_000, rel=0.05)
    assert mean([turn.output_tokens for turn in all_turns]) == pytest.approx(295, rel=0.05)
    assert len(made) == pytest.approx(4 * 1.2 * 900, rel=0.05)
    starts = {session.turns[0].prompt.ends[0] for session in made}
    assert len(starts) == 4 * 12
    assert all(600 <= size / 4 <= 2500 for size, _ in starts)


def test_a_chat_grows() -> None:
    made = next(session for session in sessions("chat", 1.0, 1) if len(session.turns) > 3)
    for before, after in zip(made.turns, made.turns[1:], strict=False):
        assert after.content.common(before.content) == before.content.tokens
        assert after.prompt_tokens >= before.content.tokens + 8


def test_documents_of_rag_are_shared() -> None:
    made = sessions("rag", 4.0, 0)
    documents = [session.turns[0].prompt.ends[0] for session in made]
    popular = max(documents.count(each) for each in set(documents))

    assert len(set(documents)) == 40
    assert popular > 3 * len(documents) / 40
    assert mean([turn.output_tokens for turn in turns(made)]) == pytest.approx(165, rel=0.1)
    assert all(3000 <= size / 4 <= 7000 for size, _ in documents)


def test_hot_has_one_prompt_and_unique_many() -> None:
    hot = {turn.prompt.ends[0] for turn in turns(sessions("hot", 2.5, 0))}
    unique = [turn.prompt.ends[0] for turn in turns(sessions("unique", 2.5, 0))]

    assert [size for size, _ in hot] == [16_000]
    assert len(set(unique)) > 0.7 * len(unique)


def test_a_burst_comes_at_once() -> None:
    made = sessions("burst", 0.5, 0, 180.0)
    arrivals = [session.arrives_ms for session in made if session.tenant == "burst"]

    assert arrivals == [60_000.0] * 100 + [120_000.0] * 100


def test_the_greedy_tenant_sends_ten_times_as_much() -> None:
    made = sessions("greedy", 1.0, 0, 600.0)
    greedy = [session for session in made if session.tenant == "greedy"]
    modest = [session for session in made if session.tenant != "greedy" and 200_000 <= session.arrives_ms < 400_000]

    assert all(200_000 <= session.arrives_ms < 400_000 for session in greedy)
    assert len(greedy) == pytest.approx(10 * len(modest), rel=0.25)


def test_agents_come_back_soon() -> None:
    made = sessions("agent", 0.2, 0)

    assert all(5 <= len(session.turns) <= 30 for session in made)
    assert max(turn.prompt_tokens for turn in turns(made)) > 10_000


def test_an_unknown_workload_is_an_error() -> None:
    with pytest.raises(KeyError):
        sessions("nothing", 1.0, 0)
