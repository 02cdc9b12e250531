"""Owns the answers to Ollama's routes about accounts at ollama.com and its web tools. Pure; nothing is forwarded.

slotgate has no account. One of the Ollamas behind it may have one, and runs the cloud models: what it may do with it
(sign out, fetch pages of a client's choice under its name) is its owner's business, at its own address.
"""

import msgspec

from proxy.dialects.contract import Headers, Rendered

_JSON: Headers = [("Content-Type", "application/json; charset=utf-8")]

NAME = "slotgate"
"""The user that `/api/me` tells of where an Ollama runs cloud models."""

_NOBODY = "00000000-0000-0000-0000-000000000000"
"""The id of that user: no user of ollama.com has it."""

_SWITCHED_OFF = "ollama cloud is disabled: "
"""How Ollama begins its refusals where its cloud features are off; clients look for it."""

_TOOLS = {"/api/experimental/web_search": "web search", "/api/experimental/web_fetch": "web fetch"}


def account_reply(path: str, body: bytes, *, cloud: bool) -> Rendered | None:
    """Status, headers and body for one of these routes; None for another path.

    Args:
        path: the route's canonical path.
        body: the client's.
        cloud: whether an Ollama behind slotgate runs cloud models.

    `/api/me` is asked by `ollama run` before it uses a cloud model, to find out whether anybody is signed in. With
    `cloud` it is told yes: should that Ollama not be, its own 401 with `signin_url` follows.
    """
    match path:
        case "/api/status":
            return _answer(200, {"cloud": {"disabled": not cloud, "source": "none" if cloud else "config"}})
        case "/api/me":
            if cloud:
                return _answer(200, {"id": _NOBODY, "email": "", "name": NAME})
            return _answer(401, {"error": "unauthorized"})
        case "/api/signout" | "/api/user/keys/{key}":
            return _answer(401, {"error": "you are not currently signed in"})
        case "/api/experimental/model-recommendations":
            return _answer(200, {"recommendations": []})
    if (tool := _TOOLS.get(path)) is None:
        return None
    if not body.strip():
        return _answer(400, {"error": "missing request body"})
    return _answer(403, {"error": f"{_SWITCHED_OFF}{tool} is unavailable"})


def _answer(status: int, value: object) -> Rendered:
    return status, list(_JSON), msgspec.json.encode(value)
