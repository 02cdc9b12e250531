"""What /api/show tells, asked once per digest, and the contexts that follow."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.control import Control
from proxy.backends.probes.ollama_models import (
    NOTHING,
    SHOW_S,
    Answer,
    Learned,
    Shown,
    Shows,
    default_context,
    parse_show,
)
from proxy.endpoint import parse_endpoint
from tests.contract.http_files import GOLDEN, read_golden
from tests.proxy.backends.answers import Answers
from tests.proxy.backends.played_ollama import SMOL


@pytest.fixture
async def engine() -> AsyncIterator[Answers]:
    async with Answers.ollama() as running:
        yield running


@pytest.fixture
async def shows(engine: Answers) -> AsyncIterator[Shows]:
    control = Control(parse_endpoint(engine.url), 5)
    yield Shows(control)
    await control.close()


def show(**fields: Any) -> dict[str, Any]:
    return {"modelfile": f"FROM /m/blobs/sha256-{SMOL}\n", "model_info": {"general.architecture": "llama"}} | fields


def test_the_captured_answer() -> None:
    captured = read_golden(GOLDEN / "ollama" / "006-show.http")
    shown = parse_show(msgspec.convert(captured.json, Answer))
    assert shown == Shown(SMOL, None, 8192, "llama", ("completion",))


def test_what_a_modelfile_says() -> None:
    lines = 'stop                           "a\nnum_ctx 5"\nnum_ctx                        16384\nnum_ctx_x 3'
    assert parse_show(Answer(parameters=lines.replace("\\n", " "))).context_tokens == 16384
    projector = f"# FROM x\nfrom /m/blobs/sha256-{SMOL}\nFROM /m/blobs/sha256-{'c' * 64}\nPARAMETER num_ctx 1\n"
    assert parse_show(Answer(modelfile=projector)).weights == SMOL
    assert parse_show(Answer(modelfile="FROM smol:latest\n")).weights == ""
    assert parse_show(Answer(model_info={"general.architecture": None, ".context_length": "many"})) == NOTHING


@pytest.mark.parametrize(
    ("modelfile", "engine", "trained", "sees", "context"),
    [
        (None, 4096, 8192, False, 4096),
        (1024, 4096, 8192, False, 1024),
        (32768, 4096, 8192, False, 8192),
        (None, 32768, 8192, False, 8192),
        (None, 32768, 0, False, 32768),
        (None, None, 8192, False, None),
        (1024, None, 8192, False, 1024),
        (None, 1024, 8192, True, 2048),
    ],
)
def test_the_context_where_nobody_says_one(
    modelfile: int | None, engine: int | None, trained: int, sees: bool, context: int | None
) -> None:
    assert default_context(Shown(context_tokens=modelfile), engine, trained, sees=sees) == context


@given(st.integers(1, 10**6) | st.none(), st.integers(1, 10**6) | st.none(), st.integers(0, 10**6), st.booleans())
def test_no_context_is_more_than_was_trained(
    modelfile: int | None, engine: int | None, trained: int, sees: bool
) -> None:
    context = default_context(Shown(context_tokens=modelfile), engine, trained, sees=sees)
    assert (context is None) is (modelfile is None and engine is None)
    assert not (trained and context) or context <= trained


async def test_each_digest_is_asked_for_once(engine: Answers, shows: Shows) -> None:
    engine.set("/api/show", 200, show(capabilities=["embedding"]))
    assert shows.of("a") is None
    await shows.learn({"a": "smol:latest", "b": "copy:latest"})
    await shows.learn({"a": "smol:latest", "b": "copy:latest", "c": "new:latest"})
    assert engine.count("/api/show") == 3
    known = shows.of("a")
    assert known is not None
    assert (known.weights, known.capabilities) == (SMOL, ("embedding",))
    await shows.learn({"c": "new:latest"})
    assert shows.of("a") is None  # it is listed no more
    assert engine.count("/api/show") == 3


async def test_what_cannot_be_shown_is_not_asked_for_again(engine: Answers, shows: Shows) -> None:
    engine.set("/api/show", 500, {"error": "broken"})
    await shows.learn({"a": "smol:latest"})
    await shows.learn({"a": "smol:latest"})
    assert engine.count("/api/show") == 1
    assert shows.of("a") == NOTHING


async def test_many_new_models_are_asked_for_bit_by_bit(engine: Answers) -> None:
    """However many are listed, looks are not kept waiting for long; the loaded ones come first."""
    engine.set("/api/show", 200, show())
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += SHOW_S / 10
        return now_s[0]

    control = Control(parse_endpoint(engine.url), 5)
    shows = Shows(control, clock)
    names = {f"d{number}": f"m{number}" for number in range(100)}
    await shows.learn(names, first=["d50", "gone"])
    known = {digest for digest in names if shows.of(digest) is not None}
    assert 0 < len(known) < 20
    assert "d50" in known
    while len(known) < 100:
        await shows.learn(names)
        now = {digest for digest in names if shows.of(digest) is not None}
        assert len(now) > len(known)
        known = now
    assert engine.count("/api/show") == 100
    await control.close()


async def test_one_that_is_too_busy_to_show_is_asked_later(engine: Answers, shows: Shows) -> None:
    await engine.stop()
    await shows.learn({"a": "smol:latest", "b": "other:latest"})
    assert shows.of("a") is None


def test_a_default_is_learned_from_what_was_loaded_without_a_context() -> None:
    learned = Learned()
    assert learned.context("a:latest") is None
    assert not learned.see("a:latest", 32768, NOTHING, 131072)  # somebody else may have asked for just that
    learned.expect("A")
    assert not learned.see("a:latest", None, NOTHING, 131072)
    assert learned.see("a:latest", 32768, NOTHING, 131072)
    assert not learned.see("a:latest", 4096, NOTHING, 131072)
    assert (learned.context("a:latest"), learned.context("b:latest")) == (32768, 32768)
    learned.clear()
    assert learned.context("a:latest") is None


def test_what_a_modelfile_or_the_training_bounds_says_nothing_of_others() -> None:
    learned = Learned()
    learned.expect("a:latest")
    assert not learned.see("a:latest", 1024, Shown(context_tokens=1024), 8192)
    learned.expect("b:latest")
    assert learned.see("b:latest", 512, NOTHING, 512)
    assert (learned.context("a:latest"), learned.context("b:latest")) == (None, 512)


def test_what_is_learned_is_bounded() -> None:
    learned = Learned()
    for number in range(3000):
        learned.expect(f"m{number}")
        learned.see(f"m{number}:latest", 512, NOTHING, 512)
    assert sum(learned.context(f"m{number}:latest") is not None for number in range(3000)) == 1000
