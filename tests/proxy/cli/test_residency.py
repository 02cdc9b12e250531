import json

import pytest

from proxy import residency_api
from proxy.cli import residency
from proxy.residency_api import LoadAnswer, PinAnswer, PinnedPlace, UnloadAnswer
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate

LOADED = LoadAnswer("1", "qwen:7b", "loaded", "other-box", 8192, 2345.6)
FAILED = LoadAnswer("1", "qwen:7b", "failed", "other-box", detail="CUDA out\nof memory")
WAITING = LoadAnswer("1", "qwen:7b", "waiting", detail="other-box: 1 request runs on phi")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "POLL_S", 0.001)


def test_load_waits_and_tells_where_and_how_long(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.loading = [WAITING, WAITING, LOADED]
    result = slotgate("load", "qwen:7b", "--backend", "other-box", "--num-ctx", "8192")
    assert (result.exit_code, result.stdout) == (
        0,
        "qwen:7b is loaded on other-box with a context of 8192 in 2.3s\n",
    )
    assert result.stderr.splitlines() == [
        "loading qwen:7b on other-box",
        "waiting qwen:7b (other-box: 1 request runs on phi)",
    ]
    assert stand_in.bodies == [{"model": "qwen:7b", "backend": "other-box", "num_ctx": 8192}]
    assert stand_in.asked == ["POST /load", "GET /load/1", "GET /load/1", "GET /load/1"]


def test_load_that_fails(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.loading = [FAILED]
    result = slotgate("load", "qwen:7b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "error: qwen:7b could not be loaded on other-box: CUDA out?of memory"


def test_load_that_takes_too_long(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.residency[residency_api.LOAD] = WAITING
    result = slotgate("load", "qwen:7b", "--timeout", "0")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: qwen:7b is not loaded after 0 s: other-box: 1 request runs on phi; slotgate goes on trying\n"
    )


def test_load_as_json_tells_also_what_failed(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.loading = [FAILED]
    result = slotgate("load", "qwen:7b", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "failed"
    stand_in.loading = [LOADED]
    result = slotgate("load", "qwen:7b", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["took_ms"] == 2345.6


def test_unload_says_from_where(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("unload", "qwen:7b")
    assert result.stdout == "qwen:7b is unloaded from other-box as soon as nothing runs on it\n"
    assert stand_in.bodies == [{"model": "qwen:7b", "backend": None, "num_ctx": None}]
    stand_in.residency[residency_api.UNLOAD] = UnloadAnswer("qwen:7b", [])
    assert slotgate("unload", "qwen:7b").stdout == "qwen:7b is loaded nowhere\n"
    assert slotgate("unload", "qwen:7b", "--backend", "b").stdout == "qwen:7b is not loaded on b\n"
    assert json.loads(slotgate("unload", "qwen:7b", "--json").stdout)["backends"] == []


def test_pin(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("pin", "qwen:7b", "--backend", "other-box", "--num-ctx", "4096")
    assert result.stdout == "qwen:7b is pinned on other-box with a context of 4096\n"
    assert result.stderr == "it is loaded now; `slotgate ps` tells when it is there\n"
    stand_in.residency[residency_api.PIN] = PinAnswer("qwen:7b", [PinnedPlace("qwen:7b")], loaded_on=["a", "b"])
    result = slotgate("pin", "qwen:7b")
    assert (result.stdout, result.stderr) == ("qwen:7b is pinned on one backend at least\n", "it is loaded on a, b\n")
    assert json.loads(slotgate("pin", "qwen:7b", "--json").stdout)["loaded_on"] == ["a", "b"]


def test_unpin(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    assert slotgate("unpin", "qwen:7b").stdout == "qwen:7b is not pinned any more\n"
    stand_in.residency[residency_api.UNPIN] = PinAnswer(
        "qwen:7b", [PinnedPlace("qwen:7b", configured=True)], [PinnedPlace("qwen:7b", "other-box")]
    )
    result = slotgate("unpin", "qwen:7b")
    assert result.stdout == "qwen:7b is not pinned any more on other-box\n"
    assert result.stderr == "it is still pinned on one backend at least (residency.models of the configuration)\n"
    assert json.loads(slotgate("unpin", "qwen:7b", "--json").stdout)["removed"][0]["backend"] == "other-box"


@pytest.mark.parametrize("command", ["load", "unload", "pin", "unpin"])
def test_close_names_are_told(slotgate: Slotgate, stand_in: AdminStandIn, command: str) -> None:
    stand_in.refusal = "no Ollama has a model 'qwem:7b'"
    result = slotgate(command, "qwem:7b")
    assert result.exit_code == 1
    assert result.stderr == "error: no Ollama has a model 'qwem:7b'\ndid you mean qwen:7b?\n"
