"""What a client wants done with the model store: bodies read, checked and written anew. Pure; knows no backend.

Only the fields named here go on: what an Ollama of some version makes of others is not ours to find out.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from proxy.dialects import ClientError, gojson
from proxy.model_store.names import blob_digest, check_file, check_name, check_registry
from scheduler.names import canonical


class Change(StrEnum):
    """What can be done with a model store."""

    PULL = "pull"
    PUSH = "push"
    CREATE = "create"
    COPY = "copy"
    DELETE = "delete"


STREAMS = frozenset({Change.PULL, Change.PUSH, Change.CREATE})
"""Those that tell their progress."""
ONCE = frozenset({Change.PUSH})
"""Those that are done when one model store has done them."""
WHERE_IT_IS = frozenset({Change.COPY, Change.DELETE, Change.PUSH})
"""Those that concern only model stores that have the model."""

_STRUCTS = {
    Change.PULL: "PullRequest",
    Change.PUSH: "PushRequest",
    Change.CREATE: "CreateRequest",
    Change.COPY: "CopyRequest",
    Change.DELETE: "DeleteRequest",
}
_CREATE_TEXTS = ("system", "renderer", "parser", "requires")
_CREATE_OTHERS = ("template", "license", "parameters", "messages", "info")


class Wish(msgspec.Struct, frozen=True):
    """One change that somebody wants."""

    change: Change
    model: str
    """Of copy: the source."""
    body: dict[str, Any]
    """What an Ollama gets, but for `stream`."""
    destination: str = ""
    """Of copy."""
    stream: bool = True
    """False: only the end is wanted."""

    @property
    def path(self) -> str:
        """The route of an Ollama."""
        return f"/api/{self.change}"

    @property
    def method(self) -> str:
        """The method of that route."""
        return "DELETE" if self.change is Change.DELETE else "POST"

    @property
    def is_joinable(self) -> bool:
        """A second one like it is the same."""
        return self.change is Change.PULL

    @property
    def key(self) -> tuple[str, str, bool]:
        """The same for wishes that are the same."""
        return self.change.value, canonical(self.model), bool(self.body.get("insecure"))

    def encoded(self) -> bytes:
        """The body for an Ollama; progress is always wanted."""
        told = self.body | ({"stream": True} if self.change in STREAMS else {})
        return msgspec.json.encode(told)


def read_wish(change: Change, body: bytes, *, admin: bool) -> Wish:
    """Read a client's body.

    Args:
        change: by the route.
        body: as it came.
        admin: the client may change models by right, not only because everybody may: other registries are open to it.

    Raises:
        ClientError: 400 in Ollama's words; 403 for what only admins may.
    """
    value = gojson.decode(body)
    struct = _STRUCTS[change]
    if not isinstance(value, dict):
        raise ClientError(400, f"json: cannot unmarshal {gojson.word(value)} into Go value of type api.{struct}")
    fields = _Fields(gojson.fold(value)[0], struct)
    wish = _READERS[change](fields)
    if not admin:
        _check_rights(wish)
    return wish


class _Fields:
    """A body's fields, typed as Go would."""

    def __init__(self, fields: dict[str, Any], struct: str) -> None:
        self._fields = fields
        self._struct = struct

    def text(self, *names: str) -> str:
        """The first that says something; all must be texts."""
        values = [self._typed(name, str, "string", "") for name in names]
        return next((value for value in values if value), "")

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._typed(name, bool, "bool", default))

    def table(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self._typed(name, dict, "map[string]string", {})
        return value

    def some(self, names: Iterable[str]) -> dict[str, Any]:
        """Those that are there."""
        return {name: value for name in names if (value := self._fields.get(name)) is not None}

    def _typed(self, name: str, kind: type, go_type: str, default: Any) -> Any:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise gojson.mismatch(value, self._struct, name, go_type)
        return value


def _pull(fields: _Fields) -> Wish:
    name = fields.text("model", "name")
    check_name(name)
    return Wish(Change.PULL, name, _transfer(name, fields), stream=fields.flag("stream", True))


def _push(fields: _Fields) -> Wish:
    name = fields.text("model", "name")
    if not name:
        raise ClientError(400, "model is required")
    check_name(name)
    return Wish(Change.PUSH, name, _transfer(name, fields), stream=fields.flag("stream", True))


def _transfer(name: str, fields: _Fields) -> dict[str, Any]:
    return {"model": name} | ({"insecure": True} if fields.flag("insecure", False) else {})


def _copy(fields: _Fields) -> Wish:
    source, destination = fields.text("source"), fields.text("destination")
    for role, name in (("source", source), ("destination", destination)):
        check_name(name, f'{role} "{name[:200]}" is invalid')
    body = {"source": source, "destination": destination}
    return Wish(Change.COPY, source, body, destination=destination)


def _delete(fields: _Fields) -> Wish:
    name = fields.text("model", "name")
    check_name(name, f'name "{name[:200]}" is invalid')
    return Wish(Change.DELETE, name, {"model": name})


def _create(fields: _Fields) -> Wish:
    name = fields.text("model", "name")
    check_name(name)
    body: dict[str, Any] = {"model": name}
    for old in ("modelfile", "path"):
        if fields.text(old):
            raise ClientError(400, f"{old} is not taken: it names files of the backend; send from, or files by digest")
    if source := fields.text("from"):
        check_name(source)
        body["from"] = source
    for table in ("files", "adapters"):
        if given := fields.table(table):
            body[table] = {_file(each): _blob(each, digest) for each, digest in given.items()}
    if host := fields.text("remote_host"):
        body["remote_host"] = host
    if quantize := fields.text("quantize", "quantization"):
        body["quantize"] = quantize
    body |= {text: value for text in _CREATE_TEXTS if (value := fields.text(text))}
    body |= fields.some(_CREATE_OTHERS)
    return Wish(Change.CREATE, name, body, stream=fields.flag("stream", True))


def _file(name: str) -> str:
    check_file(name)
    return name


def _blob(name: str, digest: Any) -> str:
    if not isinstance(digest, str):
        raise ClientError(400, f"files: {name[:80]!a} needs the digest of a blob")
    return blob_digest(digest)


def _check_rights(wish: Wish) -> None:
    """What is not for those who may only because everybody may: it has the backend speak to other hosts."""
    if wish.change in {Change.PULL, Change.PUSH}:
        check_registry(wish.model)
    if source := wish.body.get("from"):
        check_registry(source)
    if wish.body.get("insecure"):
        raise ClientError(403, "insecure needs admin rights: use `slotgate pull`, or an API key with admin = true")
    if wish.body.get("remote_host"):
        raise ClientError(403, "remote_host needs admin rights: use an API key with admin = true")


_READERS = {
    Change.PULL: _pull,
    Change.PUSH: _push,
    Change.CREATE: _create,
    Change.COPY: _copy,
    Change.DELETE: _delete,
}
