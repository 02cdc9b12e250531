"""Owns what a client's inference request is: read once, whole, before anything is decided. Must not know backends.

`read_call` checks what the dialect's own API would refuse at once, in that API's words, and leaves everything else to
the engine. The original bytes are kept: where dialect and engine match, they are what the engine gets.
"""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from proxy.dialects import anthropic, gojson, llamacpp, multipart, ollama, openai
from proxy.dialects.contract import Headers
from proxy.dialects.encoding import unpacked
from proxy.dialects.errors import ClientError
from proxy.dialects.reading import Reading, names
from proxy.dialects.routes import TRANSCRIPTIONS, Route
from scheduler.domain import Dialect, Engine, Operation
from scheduler.runner import Runner

_FORWARDED = frozenset(
    names(
        "accept user-agent anthropic-version anthropic-beta openai-beta x-request-id traceparent tracestate "
        "x-stainless-retry-count"
    )
)
"""Request headers that go on to an engine. Not among them on purpose: credentials, Origin, and X-Conversation-Id,
with which llama-server goes on generating after its client has left."""

MAX_FIELDS: Final = 1000
MAX_MESSAGES: Final = 100_000
MAX_INPUTS: Final = 100_000
"""Each message and input is looked at here, in the event loop that all other requests share."""
MAX_NAME_CHARS: Final = 1024
"""Of a model's name: it is remembered and logged with its request. Ollama's longest have 593 (types/model/name.go)."""

_INPUTS: Final = ("input", "content", "documents", "texts", "prompt")
"""Fields that hold several inputs, or tokens of a single one: those are not looked at, and there may be any number."""

_READERS: dict[Dialect, Callable[[str, dict[str, Any]], Reading]] = {
    Dialect.OLLAMA: ollama.read,
    Dialect.OPENAI: openai.read,
    Dialect.ANTHROPIC: anthropic.read,
    Dialect.LLAMACPP: llamacpp.read,
}


class Call(msgspec.Struct):
    """One inference request as the client sent it."""

    route: Route
    dialect: Dialect
    operation: Operation
    """LOAD or UNLOAD for Ollama requests that only do that, otherwise the route's."""
    model: str | None
    """As the client wrote it."""
    stream: bool
    seats: int
    """Slots occupied at once at a llama-server: prompts times choices, or inputs. 0 where no slot is needed."""
    batch: str
    """The field with the inputs of a batch, which may go to engines in pieces; empty: it is none."""
    body: bytes
    """As it came, save for a Content-Encoding."""
    fields: dict[str, Any]
    """The decoded body, keys in lower case."""
    exact_keys: bool
    """False where a key had another spelling than the API's: llama-server matches keys exactly and gets `fields`."""
    headers: Headers
    """Those that may go on to an engine."""
    engines: frozenset[Engine]
    """Engines that can answer it, natively or by translation."""
    unsupported: dict[Engine, str]
    """Why an engine is not among them, for the client to read."""
    prompt_bytes: int
    """Size of the body without images."""
    max_output_tokens: int | None
    """The client's own limit of the answer; None: it set none."""
    runner: Runner | None
    """Options that it wants an Ollama to load the model with; None: its API cannot say."""
    keep_alive_s: float | None
    """How long the model shall stay loaded; negative: for ever; None: not said."""
    arrived_ns: int
    """Unix time."""
    content_type: str = "application/json"
    """What the engine is told of the body. Clients say anything: only a form is what they say."""


def read_call(
    route: Route, body: bytes, headers: Iterable[tuple[str, str]], clock_ns: Callable[[], int] = time.time_ns
) -> Call:
    """Decode and check a request body, whatever its Content-Type says.

    Raises:
        ClientError: what the dialect's API refuses; 404 for a name of a model that is too long to be one; 415 for an
            encoding that it does not take.
    """
    headers = list(headers)
    body = unpacked(route, body, headers)
    content_type = "application/json"
    if route.path == TRANSCRIPTIONS:
        content_type, exact = multipart.content_type(headers), True
        fields = multipart.read_form(body, content_type)
    else:
        fields, exact = read_object(route, body)
    reading = _READERS[route.dialect](route.path, fields)
    _check_name(reading.model)
    return Call(
        route=route,
        dialect=route.dialect,
        operation=reading.operation or route.operation or Operation.GENERATE,
        model=reading.model,
        stream=reading.stream,
        seats=reading.seats,
        batch=reading.batch,
        body=body,
        fields=fields,
        exact_keys=exact,
        headers=[pair for pair in headers if _forwarded(pair[0])],
        engines=frozenset(Engine).difference(reading.unsupported),
        unsupported=reading.unsupported,
        prompt_bytes=max(0, len(body) - reading.image_bytes),
        max_output_tokens=reading.max_output_tokens,
        runner=reading.runner,
        keep_alive_s=reading.keep_alive_s,
        arrived_ns=clock_ns(),
        content_type=content_type,
    )


@functools.lru_cache(maxsize=1024)
def _forwarded(name: str) -> bool:
    """Whether a header goes on to an engine. Cached, because names are few and requests are many."""
    return name.lower() in _FORWARDED


def read_object(route: Route, body: bytes) -> tuple[dict[str, Any], bool]:
    """The body's JSON object with keys in lower case, and whether they were so already.

    Raises:
        ClientError: it is none, in the words of the dialect's API.
    """
    try:
        value = gojson.decode(body)
    except ClientError as error:
        if route.dialect is Dialect.LLAMACPP:
            text = f"[json.exception.parse_error.101] parse error: {error.message}"
            if isinstance(error, gojson.NumberTooLarge):
                text = f"[json.exception.out_of_range.406] number overflow parsing '{error.number}'"
            raise ClientError(error.status, text) from None
        raise
    if not isinstance(value, dict):
        if route.dialect is Dialect.LLAMACPP:
            raise ClientError(400, f"the request body must be a JSON object, not {gojson.word(value)}")
        struct = ollama.STRUCTS.get(route.path) or openai.STRUCTS.get(route.path) or "anthropic.MessagesRequest"
        raise ClientError(400, f"json: cannot unmarshal {gojson.word(value)} into Go value of type {struct}")
    if len(value) > MAX_FIELDS:
        raise ClientError(400, f"more than {MAX_FIELDS} fields in one request")
    fields, exact = (value, True) if route.dialect is Dialect.LLAMACPP else gojson.fold(value)
    _check_lengths(route, fields)
    return fields, exact


def _check_lengths(route: Route, fields: dict[str, Any]) -> None:
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ClientError(400, f"more than {MAX_MESSAGES} messages in one request")
    for name in _INPUTS:
        inputs = fields.get(name)
        if not isinstance(inputs, list) or len(inputs) <= MAX_INPUTS:
            continue
        if route.path == "/v1/responses" or not isinstance(inputs[0], int | float):
            raise ClientError(400, f"more than {MAX_INPUTS} inputs in one request ({name})")


def _check_name(model: str | None) -> None:
    if model is not None and len(model) > MAX_NAME_CHARS:
        raise ClientError(404, f"model '{model[:80]}…' not found: no name is longer than {MAX_NAME_CHARS} characters")


def read_model_name(route: Route, body: bytes) -> str:
    """The model that a body of `/api/show` names, as the client wrote it.

    Raises:
        ClientError: 400 in Ollama's words; 404 for what is too long to be a name.
    """
    fields, _ = read_object(route, body)
    for key in ("model", "name"):
        value = fields.get(key)
        if value is not None and not isinstance(value, str):
            raise gojson.mismatch(value, "ShowRequest", key, "string")
        if value:
            _check_name(value)
            return value
    raise ClientError(400, "model is required")
