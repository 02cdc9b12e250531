"""Options that models are loaded with."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from scheduler.domain import Backend, Engine, Residency
from scheduler.residencies import coming
from scheduler.runner import (
    BUCKETS,
    LEAST_DEFAULT,
    OPTIONS,
    Runner,
    RunnerRules,
    bucket,
    context_of,
    default_context,
    fits,
    grown,
    load_with,
    normalise,
    shares,
    suits,
    told,
)
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

RULES = RunnerRules()
CONTEXTS = st.none() | st.integers(-1, 300_000)
OPTIONAL = st.none() | st.integers(0, 3)
ASKED = st.builds(
    Runner, CONTEXTS, OPTIONAL, OPTIONAL, OPTIONAL, OPTIONAL, st.none() | st.booleans(), OPTIONAL,
    st.none() | st.booleans(),
)  # fmt: skip
RULE_SETS = st.builds(
    RunnerRules,
    st.lists(st.integers(1, 10**6), unique=True).map(lambda each: tuple(sorted(each))),
    st.booleans(),
    st.dictionaries(st.sampled_from([MODEL, OTHER_MODEL]), st.integers(1, 10**6)),
)


def ollama(default: int | None = 4096, most: int | None = 131_072, **more: Any) -> Backend:
    return backend(
        "a",
        engine=Engine.OLLAMA,
        models=[MODEL, OTHER_MODEL],
        contexts={} if default is None else {MODEL: default},
        most_context={} if most is None else {MODEL: most},
        **more,
    )


BACKENDS = st.builds(ollama, st.none() | st.integers(1, 300_000), st.none() | st.integers(1, 300_000))


@pytest.mark.parametrize(
    ("asked", "context"),
    [(None, None), (0, None), (-1, None), (1, 2048), (2048, 2048), (2049, 4096), (500_000, 500_000)],
)
def test_contexts_are_rounded_up(asked: int | None, context: int | None) -> None:
    assert normalise(Runner(asked), MODEL, RULES) == Runner(context)


def test_other_options_only_count_where_they_are_wanted() -> None:
    asked = Runner(5000, num_gpu=20, shift=False)

    assert normalise(asked, MODEL, RULES) == Runner(8192, shift=False)
    assert normalise(asked, MODEL, RunnerRules(keep_options=True)) == Runner(8192, num_gpu=20, shift=False)
    assert normalise(asked, MODEL, RunnerRules(contexts={MODEL: 3000})) == Runner(3000, shift=False, exact=True)


@given(asked=ASKED, rules=RULE_SETS)
def test_normalising_gives_at_least_what_was_asked_for_and_does_so_once(asked: Runner, rules: RunnerRules) -> None:
    found = normalise(asked, MODEL, rules)

    assert normalise(found, MODEL, rules) == found
    assert found.shift == asked.shift
    assert rules.keep_options or not any(getattr(found, name) for name in OPTIONS)
    if MODEL in rules.contexts:
        assert (found.num_ctx, found.exact) == (rules.contexts[MODEL], True)
    elif asked.num_ctx is None or asked.num_ctx <= 0:
        assert found.num_ctx is None
    else:
        assert found.num_ctx is not None
        assert found.num_ctx >= asked.num_ctx
        assert found.num_ctx in rules.context_buckets or found.num_ctx == asked.num_ctx


@given(tokens=st.integers(1, 10**6), rules=RULE_SETS)
def test_a_bucket_is_the_smallest_that_holds_it(tokens: int, rules: RunnerRules) -> None:
    found = bucket(tokens, rules)

    assert found >= tokens
    assert not any(tokens <= other < found for other in rules.context_buckets)


@pytest.mark.parametrize(
    ("runner", "tokens", "expected"),
    [
        pytest.param(Runner(2048), 2048, Runner(2048), id="it-fits"),
        pytest.param(Runner(2048), 2049, Runner(4096), id="it-does-not"),
        pytest.param(Runner(), 4097, Runner(8192), id="beyond-the-default"),
        pytest.param(Runner(), 4096, Runner(), id="within-the-default"),
        pytest.param(Runner(2048), 200_000, Runner(131_072), id="no-more-than-trained-for"),
        pytest.param(Runner(131_072), 200_000, Runner(131_072), id="it-has-all-that-there-is"),
        pytest.param(Runner(2048, exact=True), 4000, Runner(2048, exact=True), id="the-operator-s-choice"),
        pytest.param(None, 10_000, None, id="its-API-cannot-say"),
    ],
)
def test_growing(runner: Runner | None, tokens: int, expected: Runner | None) -> None:
    assert grown(runner, tokens, RULES, 4096, 131_072) == expected


def test_nothing_grows_beyond_what_is_not_known() -> None:
    assert grown(Runner(), 10**6, RULES) == Runner()


@pytest.mark.parametrize(
    ("runner", "residency", "expected"),
    [
        pytest.param(None, Residency(MODEL, 4096), True, id="v1-on-the-default"),
        pytest.param(None, Residency(MODEL, 8192), False, id="v1-on-more-would-reload"),
        pytest.param(None, Residency(MODEL), True, id="unknown-context"),
        pytest.param(Runner(), Residency(MODEL, 4096), True, id="auto-equals-explicit"),
        pytest.param(Runner(), Residency(MODEL, 8192), True, id="a-larger-one-will-do"),
        pytest.param(Runner(2048), Residency(MODEL, 4096), True, id="a-smaller-wish"),
        pytest.param(Runner(8192), Residency(MODEL, 4096), False, id="too-small"),
        pytest.param(Runner(262_144), Residency(MODEL, 131_072), True, id="clamped-to-what-it-was-trained-for"),
        pytest.param(Runner(8192), Residency(MODEL, 4096, asked=Runner(8192)), True, id="the-engine-gave-less"),
        pytest.param(None, Residency(MODEL, 2048, asked=Runner()), True, id="the-engine-lowered-its-own-default"),
        pytest.param(None, Residency(MODEL, 4096, asked=Runner(num_gpu=20)), False, id="v1-cannot-say-options"),
        pytest.param(Runner(num_gpu=20), Residency(MODEL, 4096, asked=Runner(num_gpu=20)), True, id="same-options"),
        pytest.param(Runner(num_gpu=20), Residency(MODEL, 4096), False, id="options-not-known-to-be-so"),
        pytest.param(Runner(), Residency(MODEL, 4096, asked=Runner(num_gpu=20)), True, id="it-can-be-told"),
        pytest.param(Runner(shift=False), Residency(MODEL, 4096), False, id="shift-changes-answers"),
        pytest.param(Runner(shift=True), Residency(MODEL, 4096), True, id="shift-as-by-default"),
        pytest.param(Runner(), Residency(MODEL, 4096, asked=Runner(shift=False)), False, id="nor-without-it"),
        pytest.param(Runner(), Residency(OTHER_MODEL, 4096), False, id="another-model"),
    ],
)
def test_fits(runner: Runner | None, residency: Residency, expected: bool) -> None:
    assert fits(request(runner=runner), residency, ollama()) is expected
    assert fits(request(model=None), residency, ollama())


def test_names_with_the_same_weights_share_a_residency() -> None:
    same = ollama(weights={MODEL: "aa", OTHER_MODEL: "aa"})

    assert shares(MODEL, Residency(OTHER_MODEL), same)
    assert shares(MODEL, Residency("gone:latest", weights="aa"), same)
    assert not shares(MODEL, Residency("gone:latest"), same)
    assert not shares(MODEL, Residency(OTHER_MODEL), ollama(weights={MODEL: "aa", OTHER_MODEL: "bb"}))
    assert not shares("x:latest", Residency("y:latest"), ollama()), "what is not known is not the same"


@pytest.mark.parametrize(
    ("contexts", "model", "runner", "loaded", "expected"),
    [
        ({MODEL: 4096, OTHER_MODEL: 2048}, OTHER_MODEL, None, Residency(MODEL, 4096, asked=Runner()), False),
        ({MODEL: 4096, OTHER_MODEL: 2048}, OTHER_MODEL, None, Residency(MODEL, asked=Runner()), False),
        ({MODEL: 4096, OTHER_MODEL: 4096}, OTHER_MODEL, None, Residency(MODEL, 4096, asked=Runner()), True),
        ({MODEL: 4096, OTHER_MODEL: 2048}, OTHER_MODEL, Runner(), Residency(MODEL, 4096, asked=Runner()), True),
        ({MODEL: 4096, OTHER_MODEL: 8192}, OTHER_MODEL, Runner(), Residency(MODEL, 4096, asked=Runner()), False),
        ({OTHER_MODEL: 2048}, OTHER_MODEL, None, Residency(MODEL, asked=Runner()), False),
        ({OTHER_MODEL: 2048}, OTHER_MODEL, Runner(1024), Residency(MODEL, asked=Runner()), False),
        ({OTHER_MODEL: 2048}, OTHER_MODEL, Runner(1024), Residency(MODEL, 4096, asked=Runner()), True),
        ({OTHER_MODEL: 2048}, MODEL, None, Residency(OTHER_MODEL, 2048, asked=Runner()), False),
        ({}, OTHER_MODEL, None, Residency(MODEL, asked=Runner()), True),
    ],
)
def test_names_whose_modelfiles_differ_do_not_share_what_was_loaded_by_default(
    contexts: dict[str, int], model: str, runner: Runner | None, loaded: Residency, *, expected: bool
) -> None:
    same = backend(
        "a",
        engine=Engine.OLLAMA,
        models=[MODEL, OTHER_MODEL],
        contexts=contexts,
        weights={MODEL: "aa", OTHER_MODEL: "aa"},
    )

    assert suits(model, runner, loaded, same) is expected


def test_what_is_told_is_what_is_loaded() -> None:
    assert told(Residency(MODEL), ollama()) is None
    assert told(Residency(MODEL, 4096), ollama()) == Runner(4096)
    assert told(Residency(MODEL, 8192, asked=Runner(8000, num_gpu=3, exact=True)), ollama()) == Runner(8192, num_gpu=3)
    assert told(Residency(MODEL, asked=Runner()), ollama()) == Runner(4096)
    assert told(Residency(MODEL, asked=Runner()), ollama(default=None)) == Runner()


@given(wanted=st.none() | ASKED, known=BACKENDS, rules=RULE_SETS)
def test_what_is_loaded_for_requests_suits_them(wanted: Runner | None, known: Backend, rules: RunnerRules) -> None:
    """Else they would have it loaded for ever."""
    runner = None if wanted is None else normalise(wanted, MODEL, rules)
    residency = coming(MODEL, load_with(runner, MODEL, known), known)

    assert suits(MODEL, runner, residency, known)


@given(wanted=ASKED, had=st.none() | ASKED, known=BACKENDS, rules=RULE_SETS)
def test_a_request_that_is_told_what_is_loaded_causes_no_reload(
    wanted: Runner, had: Runner | None, known: Backend, rules: RunnerRules
) -> None:
    """The engine compares what it is told with what it was told before; contexts by their numbers."""
    first = None if had is None else normalise(had, MODEL, rules)
    residency = coming(MODEL, load_with(first, MODEL, known), known)
    asked = residency.asked or Runner()
    if not suits(MODEL, normalise(wanted, MODEL, rules), residency, known):
        return
    said = told(residency, known)
    assert said is not None

    assert context_of(said, MODEL, known) == context_of(asked, MODEL, known)
    assert all(getattr(said, name) == getattr(asked, name) for name in (*OPTIONS, "shift"))


@given(known=BACKENDS, wanted=st.integers(1, 300_000))
def test_a_request_gets_the_context_that_it_wants_or_all_there_is(known: Backend, wanted: int) -> None:
    runner = normalise(Runner(wanted), MODEL, RULES)
    context = coming(MODEL, load_with(runner, MODEL, known), known).context_tokens
    most = known.most_context.get(MODEL)

    if context is None:  # the default, which nobody knows yet
        assert min(wanted, most or wanted) <= LEAST_DEFAULT
        assert MODEL not in known.contexts
        return
    assert context >= min(wanted, most or wanted)
    assert most is None or context <= most
    assert context >= (default_context(MODEL, known) or 0), "who asks for less shares the default"


def test_an_operator_s_choice_is_loaded_as_it_is() -> None:
    assert load_with(Runner(2048), MODEL, ollama()) == Runner()
    assert load_with(Runner(2048, exact=True), MODEL, ollama()) == Runner(2048, exact=True)
    assert load_with(None, MODEL, ollama()) == Runner()
    assert load_with(Runner(8192, num_gpu=2), MODEL, ollama()) == Runner(8192, num_gpu=2)
    assert load_with(Runner(2048, num_gpu=2), MODEL, ollama()) == Runner(num_gpu=2)


def test_it_travels() -> None:
    runner = Runner(4096, shift=False)
    assert msgspec.json.decode(msgspec.json.encode(runner), type=Runner) == runner
    assert list(BUCKETS) == sorted(set(BUCKETS))
