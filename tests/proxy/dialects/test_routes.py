import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.routes import ROUTES, Kind, Route, RouteError, allowed_methods, find
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
        "//api/chat", "/api//chat", "/api/chat//", "/api/../api/chat", "/api/./chat", "/api%2fchat", "/api%2Fchat",
        "/%61pi/chat", "/api/chat;x=1", "/api\\chat", "/api/chat%00", "/API/chat", "/api/chat%3f", "/v1/../slots",
        "/slots/0?action=save", "/slots/0", "/slots%2f0", "/lora-adapters", "/metrics", "/v1/stream",
        "/v1/streams/lookup",
        "/v1/chat/completions/control", "/models/load", "/tools", "/cors-proxy", "/predict",
        "/api/me%2f", "/api/signout.",
        "http://host/api/chat", "/api/chat#x", "", "*", "/v1/models/../slots", "/v1/models/%2e%2e/slots",
        "/v1/models//",
        "/api/%63hat", "/api/chat%c0%af", "/api/%e0%80%af/chat", "/api/chat%ff", "/api/chat\x00", "/api/chat.",
        "/api/chat..",
        "/Api/Chat", "/api/chat%2f", "/api/chat/.", "/api/chat/..", "/api/chat/%2e", "/%2e%2e/api/chat", "/api/chat\t",
        "https://host:11434/api/chat", "//host/api/chat", "/v1/models/{model}", "/api/user/keys/", "/api/user/keys/a/b",
        "/api/user/keys/a%2fb", "/api/user/keys/..", "/api/user/keys/{key}", "/api/blobs", "/api/experimental/",
        "/api/experimental/web_fetch%2f", "/api/web_fetch", "//", "/v1/audio/transcriptions.", "/v1/audio/translations",
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
    assert dict(refused("POST", "/api/tags").headers)["Allow"] == "HEAD, GET"
    assert refused("GET", "/v1/chat/completions").status == 405
    assert refused("POST", "/v1/models/smol").status == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"),
     ("DELETE", "/api/delete"), ("HEAD", "/api/blobs/sha256:0"), ("POST", "/api/blobs/sha256:0")],
)  # fmt: skip
def test_what_changes_models_is_apart(method: str, path: str) -> None:
    """It is neither relayed nor answered from what is known: `model_store` asks first who may."""
    route = find(method, path)
    assert isinstance(route, Route)
    assert route.kind is Kind.STORE
    assert route.operation is None
    assert refused("PATCH", path).status == 405


@pytest.mark.parametrize(
    "path",
    ["/api/pull%00", "/api/%70ull", "/api//pull", "//api/pull", "/api/./pull", "/api/x/../pull", "/API/PULL",
     "/api/pull;x", "/api/blobs/", "/api/blobs/a/b", "/api/blobs/..%2f..%2fetc%2fpasswd", "/api/blobs/../pull",
     "/api/blobs/sha256:0%00", "/api/blobs/{digest}", "/api/blobs/" + "a" * 129],
)  # fmt: skip
def test_no_other_spelling_leads_to_the_model_store(path: str) -> None:
    assert refused("POST", path).status == 404


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [("GET", "/api/tags/", 301, "/api/tags"), ("HEAD", "/api/tags/", 307, "/api/tags"),
     ("POST", "/api/chat/?a=/&b", 307, "/api/chat?a=/&b"), ("GET", "/v1/models/", 301, "/v1/models"),
     ("GET", "/v1/models/smol:1/", 301, "/v1/models/smol:1"), ("DELETE", "/api/user/keys/a/", 307, "/api/user/keys/a"),
     ("POST", '/api/chat/?x=\u00e9 "<', 307, '/api/chat?x=%C3%A9%20"<')],
)  # fmt: skip
def test_a_slash_too_much_is_redirected(method: str, target: str, status: int, location: str) -> None:
    error = refused(method, target)
    assert (error.status, dict(error.headers)["Location"]) == (status, location)
    if method == "GET":  # as Go's net/http writes it
        assert error.body == f'<a href="{location}">Moved Permanently</a>.\n\n'.encode()


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/api/chat/"), ("POST", "/api/tags/"), ("GET", "/slots/"), ("GET", "/health/"), ("POST", "/v1/rerank/"),
     ("POST", "/v1/messages/count_tokens/"), ("GET", "//"), ("GET", "//evil.example/"), ("GET", "/nothing/")],
)  # fmt: skip
def test_only_what_ollama_has_is_redirected(method: str, target: str) -> None:
    assert refused(method, target).status == 404


@given(st.text(min_size=1, max_size=20))
def test_a_redirect_goes_to_a_route_of_this_address(tail: str) -> None:
    for prefix in ("/", "/api/tags/", "/v1/models/", "/api/tags/?"):
        found = find("GET", prefix + tail)
        if isinstance(found, RouteError) and (location := dict(found.headers).get("Location")) is not None:
            assert isinstance(find("GET", location), Route)
            assert location.isascii()
            assert location.isprintable()
            assert location[:2] != "//"


def test_what_may_be_done_with_a_path() -> None:
    assert allowed_methods("/api/version") == ["HEAD", "GET"]
    assert allowed_methods("/api/chat") == ["POST"]
    assert allowed_methods("/v1/models/smol") == ["GET"]
    assert allowed_methods("/nothing") == allowed_methods("/v1/models/{model}") == []


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
