"""Owns the answers to inference requests that need no engine. Pure: bytes out; nothing is loaded or unloaded here."""

import time
from collections.abc import Callable

from proxy.dialects.call import Call
from proxy.dialects.contract import Rendered
from proxy.dialects.ollama import embeds_nothing
from proxy.dialects.reply import WHOLE_HEAD
from proxy.dialects.shapes import ChatRecord, GenerateRecord, Message, encode
from proxy.dialects.times import rfc3339_nano
from scheduler.domain import Dialect, Engine, Operation


def local_reply(call: Call, engine: Engine | None, clock_ns: Callable[[], int] = time.time_ns) -> Rendered | None:
    """Status, headers and body where slotgate answers by itself; None where the engine has to be asked.

    An empty embedding input is answered whatever the engine (None: before one was chosen). Load-only and unload
    requests are answered for a llama-server, whose one model is always loaded and stays so; an Ollama is asked.
    """
    if call.dialect is not Dialect.OLLAMA:
        return None
    if call.operation is Operation.EMBED:
        if not embeds_nothing(call.route.path, call.fields):
            return None
        old = call.route.path == "/api/embeddings"
        return 200, [WHOLE_HEAD], encode({"embedding": []} if old else {"model": call.model, "embeddings": []})
    if engine is not Engine.LLAMA_SERVER or call.operation not in (Operation.LOAD, Operation.UNLOAD):
        return None
    model, now, reason = call.model or "", rfc3339_nano(clock_ns()), call.operation.value
    record: object
    if call.route.path == "/api/chat":
        record = ChatRecord(model, now, Message("assistant", ""), done=True, done_reason=reason)
    else:
        record = GenerateRecord(model=model, created_at=now, response="", done=True, done_reason=reason)
    return 200, [WHOLE_HEAD], encode(record)
