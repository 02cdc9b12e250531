import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.plan import plan
from proxy.dialects.runner import (
    LOAD_OPTIONS,
    Residing,
    asked_runner,
    keep_alive_word,
    option_changes,
    reworded,
    without_keep_alive,
)
from scheduler.domain import Engine, Operation
from scheduler.runner import Runner
from tests.proxy.dialects.support import FACTS, OLLAMA, call_of

DEFAULT, TRAINED = 4096, 32768
RESIDING = Residing(Runner(num_ctx=8192), default_context=DEFAULT, most_context=TRAINED)


def test_what_a_client_asks_for_is_read_as_ollama_reads_it() -> None:
    options = {"num_ctx": 2048.9, "num_gpu": -1, "use_mmap": False, "num_batch": None, "NUM_THREAD": 4, "seed": 1}
    call = call_of("/api/chat", {"model": "m", "messages": [], "options": options, "shift": False})
    assert call.runner == Runner(num_ctx=2048, num_gpu=-1, use_mmap=False, shift=False)
    assert call_of("/api/generate", {"model": "m", "prompt": "x"}).runner == Runner()
    assert call_of("/api/embed", {"model": "m", "input": "x", "options": {"num_ctx": 512}}).runner == Runner(512)


@pytest.mark.parametrize("value", [10**30, 1e300, -1e300])
def test_huge_numbers_fit_what_proxies_tell_each_other(value: float) -> None:
    runner = asked_runner({"options": {"num_ctx": value}})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(runner), type=Runner) == runner


def test_other_apis_cannot_say() -> None:
    user = [{"role": "user", "content": "x"}]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": user, "options": {"num_ctx": 5}}),
        ("/v1/messages", {"messages": user, "max_tokens": 5}),
    ]
    for path, body in bodies:
        call = call_of(path, {"model": "m", **body})
        assert (call.runner, call.keep_alive_s) == (None, None)
        made = plan(call, OLLAMA, _facts(), residing=RESIDING)
        assert made.outgoing.body == call.body


@pytest.mark.parametrize(
    ("given_s", "read_s"), [("5m", 300.0), (0, 0.0), (-1, -1.0), ("-1h", -1.0), (None, None), (2.5, 2.5)]
)
def test_how_long_a_model_shall_stay(given_s: Any, read_s: float | None) -> None:
    assert call_of("/api/chat", {"model": "m", "messages": [], "keep_alive": given_s}).keep_alive_s == read_s


def test_a_client_that_says_nothing_is_told_the_residency() -> None:
    body = b' {"model": "m",\n "prompt": "x" }'
    assert _sent(body) == b' {"model": "m",\n "prompt": "x","options":{"num_ctx":8192}}'


def test_only_what_differs_is_replaced_and_the_rest_keeps_its_place_and_bytes() -> None:
    body = b'{"options":{"temperature":1.0,"num_ctx":2048,"top_p": 0.90,"num_gpu":20},"Model":"m","prompt":"\\u00e9 x"}'
    assert _sent(body) == (
        b'{"options":{"temperature":1.0,"num_ctx":8192,"top_p":0.90},"Model":"m","prompt":"\\u00e9 x"}'
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_ctx": 8192},
        {"num_ctx": 8192.7, "num_gpu": -1, "seed": 5},
        {"num_ctx": 8192, "num_batch": None, "NUM_CTX": 5, "main_GPU": 1},
    ],
)
def test_what_ollama_takes_for_the_same_stays_untouched(options: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "options": options, "prompt": "x"}, indent=1).encode()
    assert _sent(body) is body


def test_a_residency_at_the_engines_default_needs_no_word() -> None:
    residing = msgspec.structs.replace(RESIDING, runner=Runner(num_ctx=DEFAULT))
    assert _sent(b'{"model":"m","prompt":"x"}', residing) == b'{"model":"m","prompt":"x"}'
    unknown = Residing(Runner(num_ctx=DEFAULT))
    assert _sent(b'{"model":"m","prompt":"x"}', unknown) == b'{"model":"m","prompt":"x","options":{"num_ctx":4096}}'


def test_contexts_beyond_what_the_model_was_trained_for_are_the_same() -> None:
    residing = msgspec.structs.replace(RESIDING, runner=Runner(num_ctx=TRAINED))
    body = b'{"model":"m","prompt":"x","options":{"num_ctx":1000000}}'
    assert _sent(body, residing) == body


def test_kept_options_are_said() -> None:
    residing = Residing(Runner(num_ctx=8192, num_gpu=20, use_mmap=False), DEFAULT, TRAINED)
    body = b'{"model":"m","options":{"num_ctx":8192,"use_mmap":true}}'
    assert _sent(body, residing) == b'{"model":"m","options":{"num_ctx":8192,"use_mmap":false,"num_gpu":20}}'


def test_a_context_that_is_not_known_is_not_said() -> None:
    assert _sent(b'{"options":{"num_ctx":512,"seed":1}}', Residing(Runner())) == b'{"options":{"seed":1}}'


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"OPTIONS":{"num_ctx":1},"options":{"seed":1}}', b'{"options":{"seed":1,"num_ctx":8192}}'),
        (b'{"options":null,"model":"m"}', b'{"options":{"num_ctx":8192},"model":"m"}'),
        ('{"option\u017f":{"num_ctx":5}}'.encode(), '{"option\u017f":{"num_ctx":8192}}'.encode()),
        (b'{"prompt":"\xff","options":{"num_ctx":5}}', b'{"prompt":"\xff","options":{"num_ctx":8192}}'),
    ],
)
def test_other_spellings(body: bytes, sent: bytes) -> None:
    told = _sent(body)
    assert told.replace("\ufffd".encode(), b"\xff") == sent


@pytest.mark.parametrize("keep_alive", ['"5m"', "300", "0"])
def test_a_pinned_model_stays(keep_alive: str) -> None:
    residing = msgspec.structs.replace(RESIDING, stays=True)
    body = b'{"model":"m","keep_alive":%s,"options":{"num_ctx":8192}}' % keep_alive.encode()
    assert _sent(body, residing) == b'{"model":"m","keep_alive":-1,"options":{"num_ctx":8192}}'
    assert _sent(body) == body


@pytest.mark.parametrize("body", [b'{"model":"m","keep_alive":-1}', b'{"model":"m","keep_alive":"-5m"}', b"{}"])
def test_what_stays_anyhow_is_not_touched(body: bytes) -> None:
    assert _sent(body, Residing(stays=True)) == body


def test_without_keep_alive() -> None:
    body = b'{"model":"m","Keep_Alive":0,"prompt": "x","keep_alive":"0s"}'
    assert without_keep_alive(body) == b'{"model":"m","prompt":"x"}'


def test_an_unload_passes_as_it_is() -> None:
    call = call_of("/api/generate", b'{"model":"m","keep_alive":0,"options":{"num_ctx":5}}')
    assert call.operation is Operation.UNLOAD
    made = plan(call, OLLAMA, _facts(), residing=msgspec.structs.replace(RESIDING, stays=True))
    assert made.outgoing.body == call.body


@pytest.mark.parametrize(("seconds", "word"), [(-1.0, -1), (300.0, 300), (0.5, "0.5s"), (90.25, "90.25s")])
def test_keep_alive_word(seconds: float, word: int | str) -> None:
    assert keep_alive_word(seconds) == word


_NUMBERS = st.one_of(st.none(), st.integers(-2, 100_000), st.floats(0, 100_000), st.sampled_from([2048, 4096, 8192]))
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **{name: _NUMBERS for name in LOAD_OPTIONS if name != "use_mmap"},
        "use_mmap": st.one_of(st.none(), st.booleans()),
        "temperature": st.floats(0, 2),
        "Num_Ctx": st.integers(1, 9),
    },
)
_RUNNERS = st.builds(
    Runner,
    num_ctx=st.one_of(st.none(), st.sampled_from([2048, 4096, 8192, 65536])),
    num_batch=st.one_of(st.none(), st.sampled_from([512, 1024])),
    num_gpu=st.one_of(st.none(), st.integers(0, 40)),
    use_mmap=st.one_of(st.none(), st.booleans()),
)


@given(options=st.one_of(st.none(), _OPTIONS), runner=_RUNNERS, key=st.sampled_from(["options", "Options"]))
def test_the_engine_never_sees_another_residency(options: dict[str, Any] | None, runner: Runner, key: str) -> None:
    """Against Ollama's own rule: what it compares is that of the residency; and nothing is touched without need."""
    body = json.dumps({"model": "m", "prompt": "x", key: options, "stream": True}, indent=2).encode()
    residing = Residing(runner, DEFAULT, TRAINED)
    sent = _sent(body, residing)
    loaded = _compared({name: getattr(runner, name) for name in LOAD_OPTIONS})
    before, after = _compared(options or {}), _compared(_options(sent))
    assert after == loaded
    assert (sent == body) is (before == loaded)
    kept = {name: value for name, value in (options or {}).items() if name not in LOAD_OPTIONS}
    assert {name: value for name, value in _options(sent).items() if name not in LOAD_OPTIONS} == kept
    assert {name: value for name, value in json.loads(sent).items() if name.lower() != "options"} == {
        "model": "m",
        "prompt": "x",
        "stream": True,
    }


@given(options=_OPTIONS, runner=_RUNNERS)
def test_saying_it_again_changes_nothing(options: dict[str, Any], runner: Runner) -> None:
    residing = Residing(runner, DEFAULT, TRAINED)
    once = _sent(json.dumps({"model": "m", "options": options}).encode(), residing)
    assert option_changes(_options(once), residing) == {}
    assert _sent(once, residing) is once


def _compared(options: dict[str, Any]) -> dict[str, Any]:
    """What Ollama compares for a reload: server/sched.go:1381-1431 after api.Options.FromMap."""
    said = {
        name: value if isinstance(value, bool) else int(value)
        for name in LOAD_OPTIONS
        if (value := options.get(name)) is not None
    }
    if said.get("num_gpu", 0) < 0:
        del said["num_gpu"]
    said["num_ctx"] = min(said.get("num_ctx", DEFAULT), TRAINED)
    return said


def _options(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in json.loads(body).items():
        if key.lower() == "options":
            found |= value or {}
    return found


def _sent(body: bytes, residing: Residing = RESIDING) -> bytes:
    try:
        fields: dict[str, Any] = json.loads(body)
    except UnicodeDecodeError:
        fields = json.loads(body.decode("utf-8", "replace"))
    folded = {key.lower().replace("\u017f", "s"): value for key, value in fields.items()}
    return reworded(body, folded, residing)


def _facts() -> Any:
    return msgspec.structs.replace(FACTS, engine=Engine.OLLAMA)
