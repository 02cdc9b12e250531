"""An Ollama that answers what was recorded, byte for byte and chunk for chunk, beside what slotgate asks for itself."""

import asyncio
import json
from dataclasses import dataclass, field
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self

from tests.contract.exchanges import Exchange, exchanges

RECORDED = exchanges()
_LISTED = ("004-tags", "156-ps-two-models")


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def listing(*names: str) -> list[dict[str, Any]]:
    """Entries of /api/tags for the models of the recordings."""
    [smol] = json.loads(RECORDED["004-tags"].answer)["models"]
    loaded = {model["name"]: model for model in json.loads(RECORDED["156-ps-two-models"].answer)["models"]}
    entries = {"smol": smol}
    for name, sizes, capabilities in (
        ("smoltools", {"context_length": 8192, "embedding_length": 576}, ["completion", "tools"]),
        ("embed", {"context_length": 512, "embedding_length": 256}, ["embedding"]),
    ):
        model = loaded[f"{name}:latest"]
        same = {key: model[key] for key in ("name", "model", "digest", "size")}
        entries[name] = same | {
            "modified_at": "2026-11-29T19:12:00Z",
            "details": model["details"] | sizes,
            "capabilities": capabilities,
        }
    return [entries[name] for name in names]


@dataclass
class OllamaStandIn:
    """`async with OllamaStandIn(models, exchange) as engine: ... engine.url`."""

    models: list[dict[str, Any]]
    exchange: Exchange | None = None
    """What it answers to exactly this request; to /api/ps where that is what was recorded."""
    cloud: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Status and body by the name of a model that runs at ollama.com."""
    asked: list[Asked] = field(default_factory=list)
    loaded: dict[str, int] = field(default_factory=dict)
    """Context of what is loaded, by name."""
    url: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Of a recorded stream, all but the first chunk is sent once this is set: then a client has that one."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def got(self, path: str) -> list[Asked]:
        """What came to a path, preloads left out."""
        return [asked for asked in self.asked if asked.path == path and not _is_preload(asked)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip("\r\n").split("\r\n")
                method, target, _ = first.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                asked = Asked(method, target, headers, body)
                self.asked.append(asked)
                answer = self._answer(asked)
                if (beginning := self._beginning(asked)) and answer.startswith(beginning):
                    writer.write(beginning)
                    await self.go_on.wait()
                    answer = answer.removeprefix(beginning)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _beginning(self, asked: Asked) -> bytes:
        """Of the recorded stream, head and first chunk; nothing where there is only one."""
        recorded = self.exchange
        if recorded is None or len(recorded.chunks) < 2 or not _is_same(asked, recorded):
            return b""
        return _head(recorded) + _framed(recorded.chunks[0])

    def _answer(self, asked: Asked) -> bytes:
        if (recorded := self.exchange) is not None and _is_same(asked, recorded):
            return _recorded_bytes(recorded)
        match asked.method, asked.path:
            case "GET" | "HEAD", "/":
                return _plain(200, b"Ollama is running", "text/plain; charset=utf-8")
            case "GET" | "HEAD", "/api/version":
                return _plain(200, RECORDED["003-version"].answer)
            case "GET" | "HEAD", "/api/tags":
                return _plain(200, _compact({"models": self.models}))
            case "GET", "/api/ps":
                return _plain(200, json.dumps({"models": [self._ps(*each) for each in self.loaded.items()]}).encode())
            case "POST", "/api/show":
                return self._show(asked)
        body = asked.json if isinstance(asked.json, dict) else {}
        name = str(body.get("model", "")).partition(":")[0]
        if (told := self.cloud.get(str(body.get("model")))) is not None:
            return _plain(*told)
        if _is_preload(asked):
            self.loaded[name] = (body.get("options") or {}).get("num_ctx") or (512 if name == "embed" else 4096)
            return _plain(200, RECORDED["022-generate-load"].answer)
        if recorded is not None and asked.path == recorded.path and isinstance(body.get("input"), str | list):
            return self._piece(body, recorded)
        return _plain(500, json.dumps({"error": f"nothing was recorded for {asked}"}).encode())

    def _show(self, asked: Asked) -> bytes:
        name = str(asked.json.get("model") or asked.json.get("name"))
        if (told := self.cloud.get(name)) is not None:
            return _plain(*told)
        if not any(model["name"].partition(":")[0] == name.partition(":")[0] for model in self.models):
            return _recorded_bytes(RECORDED["007-show-verbose-missing"])
        return _recorded_bytes(RECORDED["006-show"])

    def _ps(self, name: str, context: int) -> dict[str, Any]:
        model = next(each for each in self.models if each["name"] == f"{name}:latest")
        details = {key: value for key, value in model["details"].items() if not key.endswith("_length")}
        fixed = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0, "context_length": context}
        return {key: model[key] for key in ("name", "model", "size", "digest")} | {"details": details} | fixed

    @staticmethod
    def _piece(body: dict[str, Any], recorded: Exchange) -> bytes:
        """A part of a recorded batch; a token is a word."""
        if recorded.status != 200:
            return _recorded_bytes(recorded)
        inputs, whole = json.loads(recorded.body)["input"], json.loads(recorded.answer)
        wanted = [body["input"]] if isinstance(body["input"], str) else body["input"]
        places = [inputs.index(text) for text in wanted]
        tokens = sum(len(text.split()) for text in wanted)
        if "data" in whole:
            data = [whole["data"][place] | {"index": index} for index, place in enumerate(places)]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return _plain(200, _compact(whole | {"data": data, "usage": usage}) + b"\n", "application/json")
        vectors = [whole["embeddings"][place] for place in places]
        return _plain(200, _compact(whole | {"embeddings": vectors, "prompt_eval_count": tokens}))


def _is_same(asked: Asked, recorded: Exchange) -> bool:
    """Whether it is what was recorded. The context that slotgate has the model loaded with may stand in it."""
    if (asked.method, asked.path) != (recorded.method, recorded.target):
        return False
    try:
        return bool(without_context(asked.json) == without_context(json.loads(recorded.body)))
    except ValueError:
        return asked.body == recorded.body


def without_context(body: Any) -> Any:
    """A body without `options.num_ctx`, and without `options` that hold nothing else."""
    if not isinstance(body, dict) or not isinstance(options := body.get("options"), dict):
        return body
    rest = {name: value for name, value in body.items() if name != "options"}
    options = {name: value for name, value in options.items() if name != "num_ctx"}
    return rest | {"options": options} if options else rest


def _is_preload(asked: Asked) -> bool:
    body = asked.json if isinstance(asked.json, dict) else {}
    if asked.path == "/api/generate":
        return not body.get("prompt") and not body.get("suffix")
    return asked.path == "/api/embed" and not body.get("input")


def _head(recorded: Exchange) -> bytes:
    """Of an answer on a connection that is kept: whether it is, is a matter of one hop."""
    lines = [f"HTTP/1.1 {recorded.status} Recorded"]
    for name, value in recorded.answer_headers:
        if name == "Content-Length" and recorded.method != "HEAD":
            value = str(len(recorded.answer))  # of some bodies a part is left out
        if name != "Connection":
            lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _framed(chunk: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk)


def _recorded_bytes(recorded: Exchange) -> bytes:
    body = b"".join(map(_framed, recorded.chunks)) + b"0\r\n\r\n" if recorded.chunked else recorded.answer
    return _head(recorded) + body


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain(status: int, body: bytes, content_type: str = "application/json; charset=utf-8") -> bytes:
    lines = [f"HTTP/1.1 {status} Made", f"Date: {formatdate(usegmt=True)}", f"Content-Type: {content_type}"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"])
    return head.encode() + body
