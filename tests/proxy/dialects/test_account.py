import msgspec
import pytest

from proxy.dialects.account import account_reply
from proxy.dialects.routes import ROUTES, Kind

PATHS = (
    "/api/status", "/api/me", "/api/signout", "/api/user/keys/{key}", "/api/experimental/web_search",
    "/api/experimental/web_fetch", "/api/experimental/model-recommendations",
)  # fmt: skip


def told(path: str, body: bytes = b"{}", *, cloud: bool = False) -> tuple[int, object]:
    reply = account_reply(path, body, cloud=cloud)
    assert reply is not None
    status, headers, answer = reply
    assert headers == [("Content-Type", "application/json; charset=utf-8")]
    return status, msgspec.json.decode(answer)


def test_all_of_them_are_slotgates_to_answer() -> None:
    local = {path for (_, path), route in ROUTES.items() if route.kind is Kind.LOCAL}
    assert local >= set(PATHS)
    assert {path for path in local if account_reply(path, b"", cloud=True) is not None} == set(PATHS)


def test_whether_cloud_models_run() -> None:
    assert told("/api/status") == (200, {"cloud": {"disabled": True, "source": "config"}})
    assert told("/api/status", cloud=True) == (200, {"cloud": {"disabled": False, "source": "none"}})
    assert told("/api/me") == (401, {"error": "unauthorized"})
    status, user = told("/api/me", cloud=True)
    assert (status, user) == (200, {"id": "00000000-0000-0000-0000-000000000000", "email": "", "name": "slotgate"})


@pytest.mark.parametrize("cloud", [True, False])
def test_nobody_signs_out_or_fetches_pages_through_slotgate(cloud: bool) -> None:
    for path in ("/api/signout", "/api/user/keys/{key}"):
        assert told(path, cloud=cloud) == (401, {"error": "you are not currently signed in"})
    assert told("/api/experimental/model-recommendations", cloud=cloud) == (200, {"recommendations": []})
    for tool in ("web_search", "web_fetch"):
        path = f"/api/experimental/{tool}"
        assert told(path, b" \n", cloud=cloud) == (400, {"error": "missing request body"})
        words = f"ollama cloud is disabled: {tool.replace('_', ' ')} is unavailable"
        assert told(path, b'{"url":"http://169.254.169.254/"}', cloud=cloud) == (403, {"error": words})
