"""`slotgate explain`, golden; and requests of which less is known."""

from collections.abc import Callable

import pytest

from proxy.cli.explain import explanation_text
from tests.proxy.admin_stand_in import NOW, AdminStandIn, explain_answer, waiting_answer
from tests.proxy.cli.conftest import Slotgate

Golden = Callable[[str, str], None]


def test_table(slotgate: Slotgate, golden: Golden, stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.explain.time.time", lambda: NOW)
    result = slotgate("explain", "r-0")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("explain.txt", result.stdout)


def test_json(slotgate: Slotgate, golden: Golden, stand_in: AdminStandIn) -> None:
    golden("explain.json", slotgate("explain", "r-0", "--json").stdout)


def test_a_request_that_waits(
    slotgate: Slotgate, golden: Golden, stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.cli.explain.time.time", lambda: NOW)
    stand_in.explained = waiting_answer()
    golden("explain-waiting.txt", slotgate("explain", "r-2").stdout)
    golden("explain-waiting.json", slotgate("explain", "r-2", "--json").stdout)


def test_a_request_that_waits_for_others_of_its_tenant() -> None:
    answer = waiting_answer()
    wait, decision = answer.wait, answer.decisions[1]
    assert wait is not None
    wait.held_until_unix_s = wait.expected_wait_s = wait.position = decision.holds_s = None
    wait.tenant_running, decision.tenant_full = 3, True
    lines = explanation_text(answer, NOW).splitlines()
    assert lines[2] == "has waited 8.8s, refused in 9m 51s"
    assert lines[3] == "waits for one of the 3 requests that its tenant runs (tenant_max_running)"
    assert "decision 2 of 2, 0.0s ago, policy 3: it waits, since its tenant runs as much as it may" in lines


def test_a_request_that_left_the_line_undecided() -> None:
    answer = explain_answer()
    answer.decisions = []
    assert explanation_text(answer, NOW).splitlines() == [
        "request r-0, ollama chat llama3:latest: done, status 200, after 1.9s",
        "tenant alice, priority high",
        "may not have fit: prompt about 676 tokens, answer up to 512, context 1024",
        "waited 0.4s; when it began: place 2 in line, expected to wait ~0.5s",
    ]


def test_no_control_character_of_a_client_reaches_the_terminal() -> None:
    answer = waiting_answer()
    assert answer.live is not None
    answer.live.tenant, answer.live.model = "\x1b[2J", "\x07"
    assert explanation_text(answer, NOW).replace("\n", "").isprintable()


def test_an_unknown_request(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("explain", "r-7")
    assert (result.exit_code, result.stdout) == (1, "")
    assert slotgate("explain").exit_code == 2


def test_a_request_that_runs_and_of_which_nothing_was_predicted() -> None:
    answer = explain_answer()
    answer.decisions = answer.decisions[:1]
    answer.outcome = answer.answer = answer.request = answer.wait = None
    answer.decisions[0].slot = answer.decisions[0].predicted_cached_tokens = None
    text = explanation_text(answer, NOW)
    assert text.startswith("request r-0: not ended yet\n\ndecision, 1m 15s ago, policy 3: gpu-0, the engine chooses")
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["slot", "-", "-"],
        ["cached", "tokens", "-", "-"],
        ["computed", "tokens", "-", "-"],
    ]


def test_a_request_that_no_backend_could_take() -> None:
    answer = explain_answer()
    answer.decisions = answer.decisions[:1]
    answer.decisions[0].ranking = []
    answer.outcome, answer.answer, answer.request = "rejected", None, None
    text = explanation_text(answer, NOW)
    assert "request r-0: rejected\n" in text
    assert "policy 3: no backend could take it\n" in text
    assert "PREDICTED" not in text
    assert [line.rpartition("   ")[2] for line in text.splitlines()[-2:]] == [
        "no-memory: needs 5.1 GB, 3.0 GB are free",
        "unknown-model",
    ]


def test_without_rejections_there_is_no_column_for_them() -> None:
    answer = explain_answer()
    answer.decisions[1].rejections = {}
    assert explanation_text(answer, NOW).count("WHY NOT") == 1
    assert "LOAD" not in explanation_text(answer, NOW)
