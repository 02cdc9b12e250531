"""Owns what goes to an engine for a call, and what is done to its answer. Must not know how bytes travel.

Where dialect and engine match, bytes pass untouched both ways. The exceptions are listed in docs/dialects.md. At a
llama-server streams ask for progress frames that a filter takes out again, whole answers are put together from a
stream, `id_slot` is slotgate's to say and not for clients, and Ollama's dialect is translated. An Ollama is told the
load options of the residency that the request shall run on, where the client's would make it load the model anew.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from proxy.dialects import watch as marks
from proxy.dialects.assemble import added_fields, assembler, can_assemble
from proxy.dialects.call import Call
from proxy.dialects.contract import ErrorBody, Headers, Outgoing, ReplyTransform
from proxy.dialects.facts import EngineFacts
from proxy.dialects.gojson import too_deep
from proxy.dialects.pieces import chat_piece, completion_piece
from proxy.dialects.progress import ProgressFilter
from proxy.dialects.reply import EmbedReply, OllamaReply
from proxy.dialects.rewording import llama_error
from proxy.dialects.runner import Residing, reworded
from proxy.dialects.splice import splice
from proxy.dialects.translate import Translated, chat, embed, generate
from proxy.dialects.watch import StreamWatch
from scheduler.domain import Backend, Dialect, Engine, Operation

Clock = Callable[[], int]
"""Unix time in nanoseconds."""

ANYHOW = Residing()
"""Nothing is to be said of how a model is loaded."""

_PROGRESS_PATHS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/completion", "/completions", "/infill")
)
"""Where llama-server knows `return_progress` in streams. /v1/messages does not pass it on."""

_NAMES_SLOT = _PROGRESS_PATHS | {"/api/chat", "/api/generate"}
"""Where llama-server obeys `id_slot`, or what Ollama's paths become does. /v1/messages drops it."""

_ENDED = {
    "/api/chat": marks.ndjson_ended,
    "/api/generate": marks.ndjson_ended,
    "/v1/chat/completions": marks.done_ended,
    "/v1/completions": marks.done_ended,
    "/v1/responses": marks.responses_ended,
    "/v1/messages": marks.messages_ended,
    "/completion": marks.completion_ended,
    "/completions": marks.completion_ended,
    "/infill": marks.completion_ended,
}
"""How the streams of the engines' paths end."""


class Plan(msgspec.Struct):
    """One attempt at one backend."""

    outgoing: Outgoing
    transform: ReplyTransform | None
    """None: the engine's bytes are the client's."""
    watch: StreamWatch
    """For the engine's bytes."""
    streams: bool
    """The engine answers with a stream, whatever the client gets."""
    error_body: ErrorBody | None = None
    """How the engine's errors are shown to this client; None: as they are."""

    @property
    def untouched(self) -> bool:
        """The engine's last bytes are the client's: what `watch` says of them is true of the client's stream too."""
        return self.transform is None or self.transform.passthrough


def can_name_slot(call: Call) -> bool:
    """Whether a llama-server can be told which slot to use for this call."""
    return call.seats == 1 and call.route.path in _NAMES_SLOT and Engine.LLAMA_SERVER in call.engines


def plan(
    call: Call,
    backend: Backend,
    facts: EngineFacts,
    slot: int | None = None,
    clock_ns: Clock = time.time_ns,
    residing: Residing = ANYHOW,
) -> Plan:
    """What to send to this backend for this call, and what to do with the answer.

    Args:
        call: what the client asked for.
        backend: where it goes.
        facts: what is known of the engine there.
        slot: the slot that it shall use, where that can be said; None: the engine chooses.
        clock_ns: the time, for the answer.
        residing: how an Ollama has the model loaded.

    Raises:
        ClientError: the model of this engine cannot do what is asked for, or the body is nested too deeply to be
            written again.
    """
    try:
        if backend.engine is Engine.OLLAMA:
            return _plan(call, call.route.path, _for_ollama(call, residing), streams=call.stream)
        return _made(call, facts, slot if can_name_slot(call) else None, clock_ns)
    except RecursionError:
        raise too_deep() from None


def _for_ollama(call: Call, residing: Residing) -> bytes:
    """Only Ollama's own API can say how a model is loaded; to unload one, it need not."""
    if call.dialect is not Dialect.OLLAMA or call.operation is Operation.UNLOAD:
        return call.body
    return reworded(call.body, call.fields, residing)


def _made(call: Call, facts: EngineFacts, slot: int | None, clock_ns: Clock) -> Plan:
    if call.dialect is Dialect.OLLAMA:
        return _translated(call, facts, slot, clock_ns)
    return _native(call, slot)


def _native(call: Call, slot: int | None) -> Plan:
    path = call.route.path
    body = call.body if call.exact_keys else msgspec.json.encode(call.fields)
    added: dict[str, Any] = {}
    if slot is not None or "id_slot" in call.fields:
        added["id_slot"] = -1 if slot is None else slot
    transform: ReplyTransform | None = None
    streams = call.stream
    if call.stream:
        # With timings in every record, the frame that /v1/responses sends in any case would keep those of the progress.
        odd = path == "/v1/responses" and call.fields.get("timings_per_token")
        if path in _PROGRESS_PATHS and "return_progress" not in call.fields and not odd:
            added["return_progress"] = True
            transform = ProgressFilter(to_end=call.seats > 1)
    elif can_assemble(path, call.fields, call.seats):
        added |= added_fields(path)
        transform, streams = assembler(path), True
    made = _plan(call, path, splice(body, added), streams=streams)
    made.transform = transform
    made.error_body = llama_error(call)
    return made


def _translated(call: Call, facts: EngineFacts, slot: int | None, clock_ns: Clock) -> Plan:
    transform: ReplyTransform
    if call.route.path in ("/api/embed", "/api/embeddings"):
        wanted, transform, streams = embed(call, facts), EmbedReply(call, clock_ns), False
    else:
        wanted = _wanted(call, facts)
        if slot is not None:
            wanted.fields["id_slot"] = slot
        read = chat_piece if wanted.path == "/v1/chat/completions" else completion_piece
        transform, streams = OllamaReply(call, read, clock_ns), True
    made = _plan(call, wanted.path, msgspec.json.encode(wanted.fields), streams=streams)
    made.transform = transform
    made.error_body = llama_error(call)
    return made


def _wanted(call: Call, facts: EngineFacts) -> Translated:
    return chat(call, facts) if call.route.path == "/api/chat" else generate(call, facts)


def _plan(call: Call, path: str, body: bytes, *, streams: bool) -> Plan:
    # cpp-httplib cuts bodies that say they are a form, which is what `curl -d` says: all of them are JSON.
    headers: Headers = [("Content-Type", call.content_type), *call.headers]
    ended = _ENDED.get(path) if streams and _shows_end(call) else None
    watch = StreamWatch(ended, record_end=b"\n" if path.startswith("/api/") else b"\n\n")
    return Plan(outgoing=Outgoing("POST", path, headers, body), transform=None, watch=watch, streams=streams)


def _shows_end(call: Call) -> bool:
    """Whether the last record of a stream may hold its end mark: `response_fields` names all that is left of it."""
    wanted = call.fields.get("response_fields") if call.dialect is Dialect.LLAMACPP else None
    return not wanted or (isinstance(wanted, list) and ("stop" in wanted or "stop_type" in wanted))
