import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.routes import ROUTES, Kind, Route, RouteError, find
from scheduler.domain import Dialect, Operation
from tests.proxy.dialects.support import captured


def refused(method: str, path: str) -> RouteError:
    found = find(method, path)
    assert isinstance(found, RouteError), found
    return found


@pytest.mark.parametrize("key", sorted(ROUTES))
def test_every_route_is_found_and_drops_its_query(key: tuple[str, str]) -> None:
    method, path = key
    if "{" in path:
        return
    assert find(method, path) is ROUTES[key]
    assert find(method, f"{path}?stream=true&api_key=x") == ROUTES[key]


def test_the_table_says_who_answers() -> None:
    for route in ROUTES.values():
        assert (route.kind is Kind.INFERENCE) == (route.operation is not None)
    assert ROUTES["POST", "/v1/messages"].dialect is Dialect.ANTHROPIC
    assert ROUTES["POST", "/v1/messages/count_tokens"].operation is Operation.TOKENIZE


@pytest.mark.parametrize(
    "path",
    [
        "//api/chat", "/api//chat", "/api/chat/", "/api/../api/chat", "/api/./chat", "/api%2fchat", "/api%2Fchat",
        "/%61pi/chat", "/api/chat;x=1", "/api\\chat", "/api/chat%00", "/API/chat", "/api/chat%3f", "/v1/../slots",
        "/slots/0?action=save", "/slots/0", "/slots%2f0", "/lora-adapters", "/metrics", "/v1/stream",
        "/v1/streams/lookup",
        "/v1/chat/completions/control", "/models/load", "/tools", "/cors-proxy", "/predict", "/api/me", "/api/signout",
        "http://host/api/chat", "/api/chat#x", "", "*", "/v1/models/../slots", "/v1/models/%2e%2e/slots", "/v1/models/",
        "/v1/models/a//b", "/v1/models/a%00", "/v1/models/a b", "/v1/chat/completions%20", " /api/chat",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_nothing_but_the_exact_path_is_a_route(path: str, method: str) -> None:
    assert refused(method, path).status == 404


@given(st.sampled_from(sorted({path for _, path in ROUTES if len(path) > 1})), st.data())
def test_a_changed_path_reaches_no_inference_route(path: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(min_value=0, max_value=len(path)))
    inserted = data.draw(st.text(alphabet="/.%;\\ 2fFe5C\x00\t", min_size=1, max_size=4))
    found = find("POST", path[:position] + inserted + path[position:])
    assert isinstance(found, RouteError) or found.kind is Kind.LOCAL or (found.method, found.path) == ("POST", path)


def test_unknown_paths_and_methods_as_captured() -> None:
    for name, path in (("ollama/008", "/api/nothing"), ("ollama/085", "/v1/nothing"), ("ollama/008", "/favicon.ico")):
        error, example = refused("GET", path), captured(name)
        assert (error.status, error.body) == (example.status, example.answer)
        assert error.headers == [("Content-Type", example.headers["content-type"])]
    for name, method, path in (("llama-server/008", "GET", "/slots/0"), ("llama-server/009", "GET", "/completion")):
        error, example = refused(method, path), captured(name)
        assert (error.status, error.body) == (example.status, example.answer)
        assert error.headers == [("Content-Type", example.headers["content-type"])]
    error, example = refused("GET", "/api/generate"), captured("ollama/009")
    assert (error.status, error.body) == (example.status, example.answer)
    assert dict(error.headers) == {"Allow": example.headers["allow"], "Content-Type": "text/plain"}
    assert dict(refused("POST", "/api/tags").headers)["Allow"] == "GET, HEAD"
    assert refused("GET", "/v1/chat/completions").status == 405
    assert refused("POST", "/v1/models/smol").status == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"),
     ("DELETE", "/api/delete"), ("HEAD", "/api/blobs/sha256:0"), ("POST", "/api/blobs/sha256:0")],
)  # fmt: skip
def test_the_model_store_is_closed(method: str, path: str) -> None:
    error = refused(method, path)
    assert error.status == 403
    assert "closed" in msgspec.json.decode(error.body)["error"]
    assert refused("PATCH", path).status == 405


def test_model_names_in_the_path() -> None:
    for raw, name in (
        ("smol", "smol"),
        ("smol:latest", "smol:latest"),
        ("hf.co/a/b:Q4", "hf.co/a/b:Q4"),
        ("a%2Fb%3A1", "a/b:1"),
    ):
        found = find("GET", f"/v1/models/{raw}?x=1")
        assert isinstance(found, Route)
        assert (found.model, found.kind) == (name, Kind.LOCAL)


def test_only_documented_query_parameters_are_kept() -> None:
    found = find("GET", "/slots?fail_on_no_slot=1&model=x&a")
    assert isinstance(found, Route)
    assert found.query == (("fail_on_no_slot", "1"),)
