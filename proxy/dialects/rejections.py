"""Owns how "no backend for this request" is said in each dialect. Must not know how backends are chosen."""

from proxy.dialects.call import Call
from proxy.dialects.errors import ClientError
from scheduler.domain import Dialect, Engine, Operation, Rejection
from scheduler.names import canonical

OLLAMA_BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's own words; clients look for them."""

_EMBEDDINGS_OFF = "This server does not support embeddings. Start it with `--embeddings`"
_RERANK_OFF = "This server does not support reranking. Start it with `--reranking`"

_INFILL_OFF = (
    "Infill is not supported by this model: prefix token is missing. suffix token is missing. middle token is missing. "
)

_WHY = {
    Rejection.STARTING: "every backend that has the model is still starting",
    Rejection.DOWN: "every backend that has the model is down",
    Rejection.DRAINING: "every backend that has the model is being drained",
    Rejection.COOLING: "every backend that has the model failed lately and is left alone for a moment",
    Rejection.TRIED: "every backend that has the model was tried",
    Rejection.NO_ROOM: "no backend that has the model has a free slot",
    Rejection.NOT_LOADED: "the model is not loaded, and no backend could load it in time",
    Rejection.NO_MEMORY: "no backend that could load the model has room for it in memory",
    Rejection.PREFILLING: "every backend that has the model computes as many prompts as it may",
    Rejection.TENANT_BUSY: "this client has as many requests open as it may",
    Rejection.QUEUE_FULL: "all slots are taken and the waiting line is full",
    Rejection.WAITED_TOO_LONG: "no slot became free within the longest wait",
    Rejection.RETRIES_SPENT: "the backend failed and no further try is left",
    Rejection.LOAD_FAILED: "the model could not be loaded",
    Rejection.SHUTTING_DOWN: "slotgate is shutting down",
}


_OFF = {Operation.EMBED: _EMBEDDINGS_OFF, Operation.RERANK: _RERANK_OFF, Operation.INFILL: _INFILL_OFF}
"""What a llama-server answers that cannot do this."""


def rejection_error(call: Call, rejection: Rejection, detail: str = "") -> tuple[int, str, str]:
    """Status, error type and text for a request that gets no backend; see `render_error`.

    `detail` says what is missing and what would help; it is added where the dialect has no fixed words.
    """
    match rejection:
        case Rejection.UNKNOWN_MODEL:
            return 404, "", not_found_text(call.model or "")
        case Rejection.UNSUPPORTED:
            return _unsupported(call, detail)
        case Rejection.TOO_MANY_SLOTS:
            text = f"the request needs {call.seats} slots at once, more than any backend runs"
            return 400, "", detail or f"{text}: send fewer prompts or a smaller n"
        case Rejection.QUEUE_FULL | Rejection.TENANT_BUSY:
            if call.dialect is Dialect.OLLAMA:
                own = rejection is Rejection.TENANT_BUSY  # who waits behind its own requests should know
                return 503, "", f"{OLLAMA_BUSY}: {_joined(_WHY[rejection], detail)}" if own else OLLAMA_BUSY
            status = {Dialect.OPENAI: 429, Dialect.ANTHROPIC: 529}.get(call.dialect, 503)
            return status, "", _joined(_WHY[rejection], detail)
        case Rejection.RETRIES_SPENT:
            status = 500 if call.dialect is Dialect.OLLAMA else 502
            return status, "", _joined(_WHY[rejection], detail)
        case Rejection.LOAD_FAILED:
            return 500, "", detail or _WHY[rejection]  # the engine's own words, as it would have answered with them
        case Rejection.STARTING if call.dialect is Dialect.LLAMACPP:
            return 503, "", "Loading model"
        case _:
            return 503, "", _joined(_WHY[rejection], detail)


def not_found_text(model: str, *, tagged: bool = False) -> str:
    """The API's words for a model that nobody has; `tagged`: with its tag, as /api/show and /v1/models say it."""
    return f"model '{canonical(model) if tagged else model}' not found"


def model_not_found(model: str) -> ClientError:
    """404 as /api/show and /v1/models/{model} say it."""
    return ClientError(404, not_found_text(model, tagged=True))


def _unsupported(call: Call, detail: str) -> tuple[int, str, str]:
    off = _OFF.get(call.operation)
    if off is not None:
        return (500 if call.route.path == "/api/embeddings" else 501), "", off
    reasons = " ".join(call.unsupported[engine] for engine in Engine if engine in call.unsupported)
    if reasons:
        status = 501 if call.dialect is Dialect.LLAMACPP else 404 if call.operation is Operation.TOKENIZE else 400
        return status, "", reasons
    if call.dialect is Dialect.OLLAMA:
        what = "generate" if call.route.path == "/api/generate" else "chat"
        return 400, "", f'"{call.model}" does not support {what}'
    return 400, "", _joined("no backend can do this with this model", detail)


def _joined(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text
