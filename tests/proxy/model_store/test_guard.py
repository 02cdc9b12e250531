"""Who may change models over HTTP."""

import pytest

from proxy.config import TenancyConfig
from proxy.config_model_store import ModelStoreConfig
from proxy.dialects import ClientError
from proxy.model_store.guard import Guard
from proxy.tenancy import Tenancy

KEYS = {"keys": {"top-secret": {"admin": True}, "plain": {"name": "bob"}}}


def guard(allow: str, keys: dict[str, object] | None = None) -> Guard:
    config = ModelStoreConfig.model_validate({"allow": allow} if allow else {})
    return Guard(config, Tenancy(TenancyConfig.model_validate(KEYS if keys is None else keys)))


def refused(guarded: Guard, key: str = "") -> str:
    with pytest.raises(ClientError) as error:
        guarded.admit({"Authorization": f"Bearer {key}"} if key else {})
    assert error.value.status == 403
    return error.value.message


def test_by_default_only_admins() -> None:
    guarded = guard("")
    assert guarded.admit({"Authorization": "Bearer top-secret"})
    assert guarded.admit({"X-Api-Key": "top-secret"})
    for key in ("", "plain", "top-secret ,", "ollama"):
        assert "admin" in refused(guarded, key)


def test_the_refusal_says_what_to_set() -> None:
    without = refused(guard("", {}))
    assert "give an API key admin = true" in without
    assert "model_store.allow" in without
    assert "slotgate pull" in without
    assert "send an API key that has it" in refused(guard(""))


def test_everyone() -> None:
    guarded = guard("everyone")
    assert guarded.admit({}) is False
    assert guarded.admit({"Authorization": "Bearer top-secret"}) is True


def test_nobody() -> None:
    assert "slotgate pull" in refused(guard("nobody"), "top-secret")
