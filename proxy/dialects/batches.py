"""Owns taking an embedding or rerank batch apart, and putting the answers to its pieces together. Sans-io.

A llama-server makes a task of each input, and those that find no slot wait in its own queue. So a batch goes out in
pieces of as many inputs as it has seats, to one backend or several; what the client gets has the form of one answer.
Each piece is answered in the client's dialect already; the forms are told apart by what is in them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from proxy.dialects.call import Call
from proxy.dialects.contract import MAX_HELD_BYTES, EngineError
from proxy.dialects.errors import ClientError
from scheduler.domain import Operation

Entry = dict[str, msgspec.Raw]

_NAMES: Final = ("embeddings", "data", "results")
"""Keys under which whole answers hold their entries: Ollama, OpenAI, rerank. llama-server's own are bare lists."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_whole = msgspec.json.Decoder(int).decode
_number = msgspec.json.Decoder(float).decode
_usage = msgspec.json.Decoder(dict[str, Any]).decode


class Batch:
    """One batch: its pieces' answers come in any order."""

    def __init__(self, call: Call, clock_ns: Callable[[], int]) -> None:
        self.call = call
        self._clock_ns = clock_ns
        self._inputs: list[Any] = call.fields[call.batch]
        self._entries: list[msgspec.Raw | Entry | None] = [None] * len(self._inputs)
        self._head: Entry | None = None
        """The first piece's answer; None while there is none, or where answers are bare lists."""
        self._usage: dict[str, Any] = {}
        self._prompt_tokens = 0
        self._load_ns = 0
        self._held = 0
        self._end = b""

    def __len__(self) -> int:
        return len(self._inputs)

    def piece(self, indexes: Sequence[int]) -> Call:
        """The call for some of the inputs."""
        call = self.call
        fields = call.fields | {call.batch: [self._inputs[index] for index in indexes]}
        if call.operation is Operation.RERANK and (top := _top(fields)) is not None and top >= 0:
            fields["top_n"] = len(indexes)
        return msgspec.structs.replace(
            call, fields=fields, body=msgspec.json.encode(fields), seats=len(indexes), exact_keys=True
        )

    def take(self, indexes: Sequence[int], body: bytes) -> None:
        """The answer to a piece.

        Raises:
            EngineError: it has not one entry for each of its inputs.
            ClientError: 413: together the answers are too large to hold.
        """
        self._held += len(body)
        if self._held > MAX_HELD_BYTES:
            raise ClientError(413, f"the answer to this batch is larger than {MAX_HELD_BYTES} bytes: send fewer inputs")
        try:
            self._take(indexes, body)
        except (msgspec.DecodeError, KeyError, IndexError) as error:
            raise EngineError(f"not an answer to {len(indexes)} inputs: {error!r}") from None

    def _take(self, indexes: Sequence[int], body: bytes) -> None:
        self._end = b"\n" if body.endswith(b"\n") else b""
        bare = body.lstrip().startswith(b"[")
        answer = {} if bare else _object(body)
        name = next((name for name in _NAMES if name in answer), "")
        entries = _list(body if bare else answer[name])
        if len(entries) != len(indexes):
            raise IndexError(f"{len(entries)} entries")
        if name == "embeddings":  # vectors without a number of their own
            for index, vector in zip(indexes, entries, strict=True):
                self._entries[index] = vector
        else:
            for raw in entries:
                entry = _object(raw)
                index = indexes[_whole(entry["index"])]
                entry["index"] = msgspec.Raw(str(index).encode())
                self._entries[index] = entry
            if any(self._entries[index] is None for index in indexes):
                raise IndexError("an index twice")
        if bare:
            return
        for key, count in _usage(answer["usage"]).items() if "usage" in answer else ():
            self._usage[key] = self._usage.get(key, 0) + count if isinstance(count, int) else count
        self._prompt_tokens += _whole(answer.get("prompt_eval_count", b"0"))
        self._load_ns = max(self._load_ns, _whole(answer.get("load_duration", b"0")))
        self._head = self._head or answer

    @property
    def prompt_tokens(self) -> int:
        """Of all pieces so far; 0 where the form does not tell."""
        return int(self._usage.get("prompt_tokens", self._prompt_tokens))

    def answer(self) -> bytes:
        """The whole answer, once every piece has been taken."""
        entries: list[Any] = self._entries
        if self.call.operation is Operation.RERANK:
            entries = sorted(entries, key=_score, reverse=True)
            top = _top(self.call.fields)
            entries = entries if top is None else entries[:top]
        if self._head is None:
            return msgspec.json.encode(entries) + self._end
        head: dict[str, Any] = dict(self._head)
        head[next(name for name in _NAMES if name in head)] = entries
        told = {
            "usage": self._usage,
            "prompt_eval_count": self._prompt_tokens,
            "load_duration": self._load_ns,
            "total_duration": max(0, self._clock_ns() - self.call.arrived_ns),
        }
        return msgspec.json.encode(head | {key: value for key, value in told.items() if key in head}) + self._end


def _score(entry: Entry) -> float:
    return _number(entry["relevance_score"] if "relevance_score" in entry else entry["score"])


def _top(fields: dict[str, Any]) -> int | None:
    """How many results a rerank request wants, read as a llama-server reads it; None: all. It refuses negative ones."""
    top = fields.get("top_n")
    return int(top) if isinstance(top, int | float) else None
