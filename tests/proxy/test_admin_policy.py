"""Policy and explanations over the admin socket of a running proxy: in force at once, and after a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from proxy.admin_client import AdminClient, AdminError
from scheduler.domain import Candidate, Decision, Measured, Outcome, Rejection
from scheduler.policy import Policy
from tests.proxy.box import Box, box, emulated

Answer = TypeVar("Answer")


async def ask(tmp_path: Path, question: Callable[[AdminClient], Answer]) -> Answer:
    with AdminClient(tmp_path / "state" / "admin.sock") as admin:
        return await asyncio.to_thread(question, admin)


def in_force(running: Box) -> Policy:
    """What the scheduler decides by."""
    return running.app._dispatcher.scheduler.policy


async def test_a_change_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(), emulated()]) as running:
        assert in_force(running) == Policy(version=1)
        changed = await ask(tmp_path, lambda admin: admin.set_policy({"active_ms": "7.5"}))
        assert in_force(running) == Policy(version=2, active_ms=7.5)
        held, answer = await asyncio.gather(running.generate("a"), running.generate("b"))
        status = await running.status()
    assert (changed.version, changed.changes[0].after, status.policy_version) == (2, 7.5, 2)
    assert "active=7.5" in held.headers["X-Slotgate-Decision"] + answer.headers["X-Slotgate-Decision"]

    async with box(tmp_path, [emulated()]) as running:
        assert in_force(running) == Policy(version=2, active_ms=7.5)
        policy = await ask(tmp_path, lambda admin: admin.policy())
        await ask(tmp_path, lambda admin: admin.reset_policy())
        assert in_force(running) == Policy(version=3)
    assert [(each.key, each.value) for each in policy.settings if each.origin == "set"] == [("active_ms", 7.5)]


async def test_a_configured_preset_and_another_one_live(tmp_path: Path) -> None:
    config: dict[str, Any] = {"policy": {"preset": "round-robin", "set": {"window": 8}}, "limits": {"max_waiting": 5}}
    async with box(tmp_path, [emulated()], **config) as running:
        first = in_force(running)
        chosen = await ask(tmp_path, lambda admin: admin.choose_preset("latency"))
        second = in_force(running)
    assert (first.order, first.window, first.max_waiting) == ("fcfs", 8, 5)
    assert (second.order, second.window, second.max_waiting) == ("cost", 8, 5)
    assert (chosen.preset, chosen.version) == ("latency", first.version + 1)


async def test_refusals_say_what_would_be_right(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        with pytest.raises(AdminError, match=r"hold_ratio: 2 is not a number from 0 to 1\n"):
            await ask(tmp_path, lambda admin: admin.set_policy({"hold_ratio": "2"}))
        with pytest.raises(AdminError, match="did you mean sticky"):
            await ask(tmp_path, lambda admin: admin.choose_preset("stiky"))
        with pytest.raises(AdminError, match="unknown key"):
            await ask(tmp_path, lambda admin: admin.reset_policy(["x"]))
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "state" / "admin.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://slotgate") as client:
            bodies = (b"", b"{", b"[]", b'{"set": {"x": []}}', b'{"set": {}, "keys": []}')
            answers = [await client.post("/policy/set", content=body) for body in bodies]
        assert in_force(running) == Policy(version=1)
    assert [answer.status_code for answer in answers] == [400] * 5
    assert "not the JSON that /policy/set takes" in answers[1].json()["error"]


async def test_what_is_wrong_with_the_kept_policy_is_in_the_status(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "policy.toml").write_text("version = 3\n[set]\nwindow = -1\n")
    async with box(tmp_path, [emulated()]) as running:
        warnings = (await running.status()).warnings
        await ask(tmp_path, lambda admin: admin.reset_policy())
        assert (await running.status()).warnings == []
    assert len(warnings) == 1
    assert "window: -1 is not a whole number" in warnings[0]


async def test_explaining_a_request(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answer = await running.generate()
        request_id = answer.headers["X-Slotgate-Request"]
        ranking = (Candidate("gpu0", 21.5, {"prefill": 1.5, "active": 20.0}, 1, 600, 16),)
        decision = Decision(request_id, ranking, {"gpu1": Rejection.NO_MEMORY}, {"gpu1": "5 of 3 GB"})
        running.app.journal.decided(request_id, decision, 1, 600)
        running.app.journal.ended(request_id, Measured(prompt_tokens=616, cached_tokens=590), Outcome.DONE)
        await running.ended(1)
        told = await ask(tmp_path, lambda admin: admin.explain(request_id))
        with pytest.raises(AdminError, match="nothing is known of request nobody"):
            await ask(tmp_path, lambda admin: admin.explain("nobody"))
    newest = told.decisions[-1]
    assert (newest.ranking[0].terms_ms, newest.rejections) == ({"prefill": 1.5, "active": 20.0}, {"gpu1": "no-memory"})
    assert newest.details == {"gpu1": "5 of 3 GB"}
    assert (newest.slot, newest.predicted_cached_tokens) == (1, 600)
    assert told.answer is not None
    assert (told.answer.cached_tokens, told.outcome) == (590, "done")
    assert told.request is not None
    assert (told.request.model, told.request.status) == ("smol", 200)
