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
from proxy.dialects.goduration import keep_alive_s
from proxy.dialects.gojson import too_deep
from proxy.dialects.reading import whole32
from scheduler.domain import Dialect, Operation

MAX_OTHER_BYTES: Final = 256 * 1024
"""Of a batch's fields that are not its inputs: every piece carries them, and a piece may be a single input. These are
some 60,000 tokens, more than models that rerank have room for, and more than any option takes."""

_NAMES: Final = ("embeddings", "data", "results")
"""Keys under which whole answers hold their entries: Ollama, OpenAI, rerank. llama-server's own are bare lists."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_whole = msgspec.json.Decoder(int).decode
_count = msgspec.json.Decoder(int | None).decode
_number = msgspec.json.Decoder(float).decode
_usage = msgspec.json.Decoder(dict[str, Any] | None).decode
_null = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()


class _UnfitError(Exception):
    """An answer in order that is not one to what was asked."""


class Batch:
    """One batch: its pieces' answers come in any order."""

    def __init__(self, call: Call, clock_ns: Callable[[], int]) -> None:
        """Prepare.

        Raises:
            ClientError: 413: beside its inputs it holds more than `MAX_OTHER_BYTES`; 400: too deeply nested.
        """
        self.call = call
        self.unloads = call.dialect is Dialect.OLLAMA and keep_alive_s(call.fields.get("keep_alive")) == 0
        """The client wants the model unloaded after this batch. Pieces do not say so: each would load it anew."""
        self._clock_ns = clock_ns
        self._inputs: list[Any] = call.fields[call.batch]
        self._others = _others(call.fields, call.batch)
        if self.unloads:
            del self._others["keep_alive"]
        _check_size(self._others)
        self._top = _top(call.fields) if call.operation is Operation.RERANK else None
        self._entries: list[msgspec.Raw | None] = [None] * len(self._inputs)
        self._scores = [0.0] * len(self._inputs)
        """Of a rerank batch."""
        self._head: dict[str, msgspec.Raw] | None = None
        """The first piece's answer; None while there is none, or where answers are bare lists."""
        self._usage: dict[str, Any] = {}
        self._prompt_tokens = 0
        self._load_ns = 0
        self._held = 0
        self._end = False
        """The answer ends with a line break."""

    def __len__(self) -> int:
        return len(self._inputs)

    def piece(self, indexes: Sequence[int]) -> Call:
        """The call for some of the inputs."""
        call = self.call
        fields = self._others | {call.batch: [self._inputs[index] for index in indexes]}
        if self._top is not None and self._top >= 0:
            fields["top_n"] = len(indexes)
        return msgspec.structs.replace(
            call, fields=fields, body=_encoder.encode(fields), seats=len(indexes), exact_keys=True
        )

    def take(self, indexes: Sequence[int], body: bytes) -> None:
        """The answer to a piece.

        Raises:
            EngineError: it cannot be read.
            ClientError: 413: together the answers are too large to hold. 502: it has not one entry for each of its
                inputs, which is no fault of this one backend: the same request would get the same from all of them.
        """
        self._held += len(body)
        if self._held > MAX_HELD_BYTES:
            raise ClientError(413, f"the answer to this batch is larger than {MAX_HELD_BYTES} bytes: send fewer inputs")
        try:
            self._take(indexes, body)
        except (_UnfitError, msgspec.ValidationError) as error:
            text = f"the backend's answer does not fit the {len(indexes)} inputs that it got: {error}"
            raise ClientError(502, text) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(f"not an answer to {len(indexes)} inputs: {error}") from None

    def _take(self, indexes: Sequence[int], body: bytes) -> None:
        self._end = body.endswith(b"\n")
        bare = body.lstrip().startswith(b"[")
        answer = {} if bare else _object(body)
        name = next((name for name in _NAMES if name in answer), "")
        if not bare and not name:
            raise _UnfitError("no entries")
        entries = _list(body if bare else answer[name])
        if len(entries) != len(indexes):
            raise _UnfitError(f"{len(entries)} entries")
        plain = name == "embeddings"  # vectors without a number of their own
        taken = dict(zip(indexes, entries, strict=True)) if plain else self._numbered(indexes, entries)
        if not bare:
            self._add_up(answer)
        for index, entry in taken.items():
            self._entries[index] = entry

    def _numbered(self, indexes: Sequence[int], entries: Sequence[msgspec.Raw]) -> dict[int, msgspec.Raw]:
        """Entries by their index in the batch, which they get to say in place of that in the piece."""
        taken: dict[int, msgspec.Raw] = {}
        for raw in entries:
            entry = _object(raw)
            number = _whole(entry.get("index", _null))
            if not 0 <= number < len(indexes) or indexes[number] in taken:
                raise _UnfitError(
                    f"index {number} is {'there twice' if 0 <= number < len(indexes) else 'none of theirs'}"
                )
            index = indexes[number]
            if self.call.operation is Operation.RERANK:
                self._scores[index] = _number(entry.get("relevance_score", entry.get("score", _null)))
            entry["index"] = msgspec.Raw(str(index).encode())
            taken[index] = msgspec.Raw(_encoder.encode(entry))
        return taken

    def _add_up(self, answer: dict[str, msgspec.Raw]) -> None:
        for key, count in (_usage(answer.get("usage", _null)) or {}).items():
            self._usage[key] = self._usage.get(key, 0) + count if isinstance(count, int) else count
        self._prompt_tokens += _count(answer.get("prompt_eval_count", _null)) or 0
        self._load_ns = max(self._load_ns, _count(answer.get("load_duration", _null)) or 0)
        self._head = self._head or answer

    @property
    def prompt_tokens(self) -> int:
        """Of all pieces so far; 0 where the form does not tell."""
        tokens = self._usage.get("prompt_tokens")
        return tokens if isinstance(tokens, int) else self._prompt_tokens

    def answer(self) -> bytes:
        """The whole answer, once every piece has been taken."""
        entries: Sequence[Any] = self._entries
        if self.call.operation is Operation.RERANK:
            best = sorted(range(len(entries)), key=self._scores.__getitem__, reverse=True)
            if self._top is not None and self._top >= 0:
                best = best[: self._top]
            entries = [entries[index] for index in best]
        whole: Any = entries
        if self._head is not None:
            told: dict[str, Any] = {
                next(name for name in _NAMES if name in self._head): entries,
                "prompt_eval_count": self._prompt_tokens,
                "load_duration": self._load_ns,
                "total_duration": max(0, self._clock_ns() - self.call.arrived_ns),
            }
            if self._usage:
                told["usage"] = self._usage
            whole = self._head | {key: value for key, value in told.items() if key in self._head}
        # The end goes in here: adding it later would copy what may be hundreds of megabytes.
        return _encoder.encode_lines([whole]) if self._end else _encoder.encode(whole)


def _others(fields: dict[str, Any], batch: str) -> dict[str, Any]:
    """The fields beside the inputs, without those that engines leave unread because of them."""
    unread = {"input": "content", "texts": "documents"}.get(batch)
    others = {name: value for name, value in fields.items() if name not in (batch, unread)}
    if batch == "documents" and "texts" in others:
        others["texts"] = []  # that it is there decides the form of the answer
    return others


def _check_size(others: dict[str, Any]) -> None:
    try:
        size = len(_encoder.encode(others))
    except RecursionError:
        raise too_deep() from None
    if size > MAX_OTHER_BYTES:
        text = f"a request with several inputs may hold {MAX_OTHER_BYTES} bytes beside them, not {size}"
        raise ClientError(413, f"{text}: send the inputs one by one")


def _top(fields: dict[str, Any]) -> int | None:
    """How many results a rerank request wants; None: all. A llama-server fails with negative ones."""
    top = fields.get("top_n")
    return whole32(top) if isinstance(top, int | float) else None
