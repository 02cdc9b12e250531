"""Whose a request is: what tells clients apart, and that no key is ever shown."""

import hashlib

import pytest
from multidict import CIMultiDict

from proxy.config import TenancyConfig, key_digest
from proxy.dialects import ClientError
from proxy.tenancy import Tenancy

KEY = "sk-a-very-secret-key"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def tenancy(**config: object) -> Tenancy:
    return Tenancy(TenancyConfig.model_validate(config))


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({}, "10.0.0.7"),
        ({"authorization": f"Bearer {KEY}"}, f"key:{DIGEST[:8]}"),
        ({"Authorization": f"bearer  {KEY} "}, f"key:{DIGEST[:8]}"),
        ({"x-api-key": KEY}, f"key:{DIGEST[:8]}"),
        ({"Authorization": "Basic dXNlcjpwYXNz"}, "10.0.0.7"),
        ({"Authorization": "Bearer ollama"}, "10.0.0.7"),
        ({"Authorization": "Bearer sk-no-key-required"}, "10.0.0.7"),
        ({"Authorization": "Bearer EMPTY", "X-Api-Key": KEY}, "10.0.0.7"),
        ({"X-OpenWebUI-User-Id": "7f3c"}, "user:7f3c"),
        ({"X-OpenWebUI-User-Email": "joe@example.org"}, "user:joe@example.org"),
        ({"X-OpenWebUI-User-Id": "7f3c", "X-OpenWebUI-User-Email": "joe@example.org"}, "user:7f3c"),
        ({"X-OpenWebUI-User-Id": "7f3c", "X-Api-Key": KEY}, f"key:{DIGEST[:8]}"),
        ({"X-OpenWebUI-User-Id": "  "}, "10.0.0.7"),
    ],
)
def test_what_tells_clients_apart(headers: dict[str, str], tenant: str) -> None:
    assert tenancy().of(CIMultiDict(headers), "10.0.0.7") == (tenant, "normal")


@pytest.mark.parametrize("user", ["x" * 65, "a\tb", "jos\u00e9", "\udcff", "a\nb"])
def test_names_that_could_break_a_line_are_hashed(user: str) -> None:
    tenant = tenancy().of(CIMultiDict({"X-OpenWebUI-User-Id": user}), "a").tenant
    assert tenant == f"user:{key_digest(user)[7:15]}"


def test_the_configured_order_counts() -> None:
    headers = CIMultiDict({"X-OpenWebUI-User-Id": "u", "X-Api-Key": KEY})
    assert tenancy(by=["open-webui-user", "api-key"]).of(headers, "a").tenant == "user:u"
    assert tenancy(by=["address"]).of(headers, "a").tenant == "a"
    assert tenancy(by=["api-key"]).of(CIMultiDict({}), "a").tenant == ""


@pytest.mark.parametrize("written", [KEY, f"sha256:{DIGEST}", f"sha256:{DIGEST.upper()}"])
def test_a_configured_key_has_a_name_and_a_priority(written: str) -> None:
    known = tenancy(keys={written: {"name": "build farm", "priority": "low"}})
    headers = CIMultiDict({"Authorization": f"Bearer {KEY}"})
    assert known.of(headers, "a") == ("build farm", "low")
    assert known.of(CIMultiDict(headers, **{"X-Slotgate-Priority": "high"}), "a") == ("build farm", "high")
    assert known.of(CIMultiDict({"X-Api-Key": "sk-other"}), "a").priority == "normal"
    assert tenancy(keys={written: {"priority": "high"}}).of(headers, "a") == (f"key:{DIGEST[:8]}", "high")


def test_no_key_is_kept() -> None:
    config = TenancyConfig.model_validate({"keys": {KEY: "joe"}})
    assert KEY not in repr(config)
    assert KEY not in repr(vars(Tenancy(config)))


@pytest.mark.parametrize("asked", ["high", "normal", "low", " Low ", "HIGH"])
def test_priorities(asked: str) -> None:
    assert tenancy().of(CIMultiDict({"x-slotgate-priority": asked}), "a").priority == asked.strip().lower()


@pytest.mark.parametrize("asked", ["", "urgent", "1", "h\u00f6her", "\udcff"])
def test_priorities_that_there_are_none_of(asked: str) -> None:
    with pytest.raises(ClientError, match=r"X-Slotgate-Priority.*is not one of high, normal, low") as caught:
        tenancy().of(CIMultiDict({"X-Slotgate-Priority": asked}), "a")
    assert caught.value.status == 400
    assert caught.value.message.isascii()


def test_who_may_change_models() -> None:
    known = tenancy(keys={KEY: {"admin": True}, "sk-another-key": {"name": "admin"}})

    assert known.is_admin(CIMultiDict({"Authorization": f"Bearer {KEY}"}))
    assert known.is_admin(CIMultiDict({"x-api-key": KEY}))
    for key in ("sk-another-key", "ollama", "", DIGEST, f"sha256:{DIGEST}", KEY[:-1]):
        assert not known.is_admin(CIMultiDict({"Authorization": f"Bearer {key}"}))
    assert not known.is_admin(CIMultiDict({}))
    assert known.has_admins
    assert not tenancy(keys={KEY: "bob"}).has_admins
