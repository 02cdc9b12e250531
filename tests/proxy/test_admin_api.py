"""The answers' JSON is a contract: names are stable, and what a newer proxy adds is no error."""

import msgspec

from proxy.admin_api import (
    PolicyAnswer,
    PsAnswer,
    StatusAnswer,
    drain_path,
    explain_path,
    restart_path,
    undrain_path,
)
from tests.proxy.admin_stand_in import policy_answer, ps_answer, status_answer


def test_answers_survive_the_wire() -> None:
    assert msgspec.json.decode(msgspec.json.encode(status_answer()), type=StatusAnswer) == status_answer()
    assert msgspec.json.decode(msgspec.json.encode(ps_answer()), type=PsAnswer) == ps_answer()
    again = msgspec.json.decode(msgspec.json.encode(policy_answer()), type=PolicyAnswer)
    assert again == policy_answer()
    assert [type(setting.value) for setting in again.settings] == [float, int, float, bool, str]


def test_fields_of_a_newer_proxy_are_passed_over() -> None:
    text = msgspec.json.encode({**msgspec.to_builtins(ps_answer()), "new": 1})
    assert msgspec.json.decode(text, type=PsAnswer) == ps_answer()


def test_paths() -> None:
    assert (drain_path("gpu-0"), undrain_path("gpu-0")) == ("/backends/gpu-0/drain", "/backends/gpu-0/undrain")
    assert restart_path("gpu-0") == "/backends/gpu-0/restart"
    assert explain_path("3f2a-17") == "/requests/3f2a-17/explain"
