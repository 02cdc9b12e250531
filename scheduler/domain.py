"""The nouns: frozen structs that everything else speaks in. Owns no behaviour beyond tiny derived properties."""

from enum import StrEnum

import msgspec

from scheduler.runner import Runner


class Engine(StrEnum):
    """What a backend runs; decides which API it speaks."""

    OLLAMA = "ollama"
    LLAMA_SERVER = "llama-server"


class Dialect(StrEnum):
    """An HTTP API as a client speaks it."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LLAMACPP = "llamacpp"


class Operation(StrEnum):
    """What a request wants done, whatever the dialect calls it."""

    CHAT = "chat"
    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    INFILL = "infill"
    TOKENIZE = "tokenize"  # tokenize, detokenize, apply-template, count: answered by an engine without a slot
    LOAD = "load"
    UNLOAD = "unload"


class Health(StrEnum):
    """A backend's life; the transitions are the table in `health`."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"  # failed lately: still used, but only when nothing better has room
    DOWN = "down"
    DRAINING = "draining"


class Failure(StrEnum):
    """Why an attempt at a backend ended without an answer. Closed and small: it is a metric label."""

    CONNECT = "connect"  # nothing was sent
    RESET = "reset"  # the connection broke before the first byte of an answer
    TIMEOUT = "timeout"
    LOADING = "loading"  # 503: the engine still loads its model
    OVERLOADED = "overloaded"  # 429, or 503 with a full queue
    ENGINE_ERROR = "engine-error"  # 5xx that another backend may not have
    TRUNCATED = "truncated"  # after the first byte: the stream ended without its end mark


class Rejection(StrEnum):
    """Why a backend cannot take a request now (per backend), or why a request got none (in `Reject`)."""

    UNKNOWN_MODEL = "unknown-model"
    UNSUPPORTED = "unsupported"  # the engine has no such API, or the model no such capability
    TOO_MANY_SLOTS = "too-many-slots"  # the request needs more slots at once than the running limit
    STARTING = "starting"
    DOWN = "down"
    DRAINING = "draining"
    COOLING = "cooling-down"
    TRIED = "already-tried"
    NO_ROOM = "no-room"
    NOT_LOADED = "not-loaded"  # the model is not resident there with options that suit; a load may be planned
    NO_MEMORY = "no-memory"  # the model would have to be loaded, and does not fit beside what is there
    PREFILLING = "prefilling"  # it computes as many prompts as it may
    TENANT_BUSY = "tenant-busy"  # as many of its client's requests wait as may; one beyond the running cap only waits
    QUEUE_FULL = "queue-full"
    WAITED_TOO_LONG = "waited-too-long"
    RETRIES_SPENT = "retries-spent"
    LOAD_FAILED = "load-failed"  # the engine could not load the model; the detail is what it said
    SHUTTING_DOWN = "shutting-down"


class Outcome(StrEnum):
    """How a request ended. Closed and small: it is a metric label."""

    DONE = "done"
    CLIENT_LEFT = "client-left"
    REJECTED = "rejected"
    FAILED = "failed"  # every attempt failed before the first byte
    TRUNCATED = "truncated"  # the engine died after the first byte
    ENGINE_REFUSED = "engine-refused"  # the engine answered 4xx; passed on


class Gpu(msgspec.Struct, frozen=True):
    """One graphics card as NVML names it."""

    uuid: str
    index: int
    name: str
    memory_bytes: int


class Residency(msgspec.Struct, frozen=True):
    """A model loaded on a backend with its runner options: what can be reused without a reload."""

    model: str
    """Canonical name, see `names.canonical`."""
    context_tokens: int | None = None
    """Context of one slot."""
    size_bytes: int | None = None
    """Weights, KV cache and buffers, as the engine reports them."""
    gpu_bytes: int | None = None
    expires_at_unix_s: float | None = None
    """When the engine will unload it by itself; None: never."""
    weights: str = ""
    """What it was loaded from, as `Backend.weights`; empty: not known. Names with the same weights share it."""
    runner: Runner | None = None
    """With which options, where known; `context_tokens` is told apart."""
    slots: tuple["SlotState", ...] = ()
    """Its own slots, where the engine of this model can be looked into; empty: not known."""
    asked: Runner | None = None
    """With what a proxy of the fleet had it loaded, as far as it is still so; None: somebody else did, or long ago."""


class SlotState(msgspec.Struct, frozen=True):
    """One slot as the engine last reported it."""

    id: int
    busy: bool
    context_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens whose KV the slot holds now: the prefix that a next request may reuse."""


class Backend(msgspec.Struct, frozen=True):
    """What is known of one engine process and does not change with every request."""

    id: str
    engine: Engine
    slots: int
    """Parallel sequences the engine has."""
    running_limit: int
    """Requests that may run at once; 1 <= running_limit <= slots."""
    auto_limit: bool = False
    """The running limit is the most: what runs is bounded by the policy's time per token, as learned."""
    models: frozenset[str] = frozenset()
    """Canonical names that it can serve, loaded or loadable."""
    capabilities: frozenset[Operation] = frozenset({Operation.CHAT, Operation.GENERATE, Operation.TOKENIZE})
    gpu: Gpu | None = None
    gpu_name: str | None = None
    """The card of an engine that runs elsewhere, as somebody told; None: not known, or see `gpu`."""
    managed: bool = False
    epoch: int = 0
    """Grows with every restart of the engine; leases and reports of an older epoch are void."""
    model_bytes: dict[str, int] = {}
    """Size of the weights of its models, by canonical name, where the engine tells it."""
    host_cache_tokens: int = 0
    """Tokens whose keys and values the engine may keep in host memory, beside its slots; 0: none, or not known."""
    contexts: dict[str, int] = {}
    """Context of one slot, in tokens, that a model gets where a request does not say, by canonical name; absent: not
    known."""
    most_context: dict[str, int] = {}
    """Context that a model was trained for, in tokens, by canonical name: engines give no more."""
    weights: dict[str, str] = {}
    """What a model is loaded from (sha256 hex of the blob), by canonical name; absent: not known."""
    embeds_only: frozenset[str] = frozenset()
    """Models that only embed, by canonical name: they are loaded by an empty embedding request."""
    cloud: bool = False
    """It is the one that passes requests for cloud models on; its engine is an Ollama."""
    max_loaded: int = 0
    """Models that it may hold at once; 0: not known."""
    slot_source: str = "leases"
    """Where occupancy comes from beside our leases: "slots" (the engine's /slots), "children" (those of the
    llama-servers that an Ollama runs) or "leases" (nothing better)."""


class Prompt(msgspec.Struct, frozen=True):
    """A request's canonical prompt (see `proxy.dialects.canonical`), as far as it can be compared with another."""

    blocks: tuple[int, ...]
    """One hash per full block of `BLOCK_BYTES`, each over everything up to its end: equal ones mean equal prefixes."""
    ends: tuple[tuple[int, int], ...]
    """(bytes, hash of everything so far) at the end of each message, ascending; the last is the whole prompt."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole canonical prompt."""
        return self.ends[-1][0] if self.ends else 0


BLOCK_BYTES = 256
"""About 64 tokens of English."""


class Measured(msgspec.Struct, frozen=True):
    """What one answer cost. None: not told."""

    prompt_tokens: int | None = None
    """All of the prompt, cached part included."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prompt_ms: float | None = None
    """The engine's own time for the part that was not cached, without waiting and without copies."""
    output_ms: float | None = None
    """The engine's own time from the first token to the last."""
    first_byte_ms: float | None = None
    """From sending the request to the first byte of its answer, as seen here: copies and waiting included."""
    slot: int | None = None
    """The slot that answered."""


class Report(msgspec.Struct, frozen=True):
    """What one look at a backend saw. Fields that the engine does not tell are None, never zero."""

    backend_id: str
    epoch: int
    asked_at_s: float
    """When the look began: anything leased or freed since is not in it."""
    busy_slots: int | None = None
    deferred: int | None = None
    """Requests in the engine's own queue. Anything above 0 means that somebody goes around slotgate."""
    slots: tuple[SlotState, ...] = ()
    residencies: tuple[Residency, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """What a client asks for, as far as routing needs to know."""

    id: str
    """Unique over all proxies of a fleet."""
    operation: Operation
    dialect: Dialect
    model: str | None
    """Canonical name; None where the dialect lets clients leave it out: any backend will do."""
    arrived_s: float
    wait_until_s: float
    """After this it no longer waits for a slot."""
    stream: bool = False
    seats: int = 1
    """Slots that it occupies at once (prompts × n). 0: answered without a slot."""
    divisible: bool = False
    """It may get fewer seats, one at least, for a part of its work; a `further` request follows for the rest."""
    further: bool = False
    """More of a request that ran in part already: neither a full line nor a stop turns it away."""
    engines: frozenset[Engine] = frozenset(Engine)
    """Engines that can answer it, natively or by translation."""
    tenant: str = ""
    priority: str = "normal"
    prompt_bytes: int = 0
    prompt: Prompt | None = None
    """None where nothing can be reused, or nobody can tell."""
    max_output_tokens: int | None = None
    """The client's own limit."""
    can_name_slot: bool = False
    """A llama-server takes `id_slot` from it."""
    runner: Runner | None = None
    """Options that an Ollama shall have loaded its model with, normalised; None: its API cannot say, so it runs with
    the engine's own default."""
    cloud: bool = False
    """Its model runs elsewhere, reached through the Ollama that is `Backend.cloud`: nothing is loaded for it."""
    keep_alive_s: float | None = None
    """How long the model shall stay loaded after it; negative: for ever; None: not said."""

    @property
    def least_seats(self) -> int:
        """Seats that must be free at once for it to run."""
        return min(1, self.seats) if self.divisible else self.seats


class BackendView(msgspec.Struct, frozen=True):
    """One backend as one decision sees it."""

    backend: Backend
    health: Health
    seats_leased: int = 0
    """Seats of this proxy: running, being claimed, and abandoned ones that the engine has not freed yet."""
    seats_elsewhere: int = 0
    """Seats of other proxies of the fleet, as they told, or as the store did where that is more."""
    foreign_busy: int = 0
    """Slots that the engine reports busy beyond all leases: somebody goes around slotgate."""
    residencies: tuple[Residency, ...] = ()
    slots: tuple[SlotState, ...] = ()
    """As last reported; advisory."""
    last_used_s: float = float("-inf")
    cooling_until_s: float = float("-inf")
    cooling_firm: bool = False
    """The engine or the store asked for the pause (still loading, full): trying earlier cannot help."""
    draining: bool = False
    """An operator's wish; also set while the engine is down or starting, where `health` says that instead."""
    loading: str = ""
    """Canonical name of the model that is being loaded there; empty: none."""
    names_slots: bool = False
    """We may say on which slot a request runs: no other use of the engine is known."""
    held_for: str = ""
    """Id of a waiting request for several seats that the free seats are kept for; empty: for anyone."""
    closing: frozenset[str] = frozenset()
    """Loaded models, by canonical name, that get nothing new: they are about to be unloaded."""
    seats_by_model: dict[str, int] = {}
    """Seats of the whole fleet by canonical name, at an engine that loads models by itself."""
    max_loaded: int = 0
    """Models that it holds at once, as it was told, or else as loads have shown; 0: not known."""
    seats_kept: int = 0
    """Seats that are not ours to take while the store is away, whether other proxies use them or not."""

    @property
    def seats_held(self) -> int:
        """Seats of the whole fleet."""
        return self.seats_leased + self.seats_elsewhere

    @property
    def taken(self) -> int:
        """Seats in use, whoever uses them."""
        return self.seats_held + self.foreign_busy

    @property
    def room(self) -> int:
        """Seats free for us under the running limit; never negative."""
        return max(0, self.backend.running_limit - self.taken - max(0, self.seats_kept - self.seats_elsewhere))


class Snapshot(msgspec.Struct, frozen=True):
    """The immutable view of the fleet that one decision sees."""

    now_s: float
    backends: tuple[BackendView, ...]


class Candidate(msgspec.Struct, frozen=True):
    """A backend that could run the request now, and what that would cost."""

    backend_id: str
    cost_ms: float
    """Milliseconds of GPU time: the sum of `terms_ms`."""
    terms_ms: dict[str, float]
    slot: int | None = None
    """The idle slot that the engine shall use; None: its own choice."""
    reused_tokens: int = 0
    """Tokens of the prompt that are expected to be cached there."""
    fresh_tokens: int = 0
    """Tokens of the prompt that are expected to be computed."""


class Decision(msgspec.Struct, frozen=True):
    """Why a request went, or did not go, somewhere."""

    request_id: str
    ranking: tuple[Candidate, ...] = ()
    """Best first."""
    rejections: dict[str, Rejection] = {}
    """Backend id -> the first filter that it failed."""
    details: dict[str, str] = {}
    """Backend id -> numbers behind its rejection, where there are any."""
    policy_version: int = 0

    @property
    def best(self) -> Candidate | None:
        """The candidate to try first, if there is one."""
        return self.ranking[0] if self.ranking else None
