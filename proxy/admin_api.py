"""The admin API: its routes and the JSON of its answers. Owns the shapes only; neither end of the conversation.

Everything here is read by scripts (`--json` prints it as it is), so fields are added, never renamed.
"""

from typing import Any

import msgspec

from proxy.residency_api import PinnedPlace, ResidentModel
from scheduler.estimates import EstimateRow
from scheduler.presets import Value

STATUS = "/status"
PS = "/ps"
MODELS = "/models"
"""GET: `ModelsAnswer`. POST with a pull, delete or copy added, and Ollama's body for that: see `admin_models`."""
RECENT = "/recent"
HEALTHZ = "/healthz"
POLICY = "/policy"
POLICY_SET = "/policy/set"
POLICY_PRESET = "/policy/preset"
POLICY_RESET = "/policy/reset"
WORKERS = "/workers"
WORKERS_RESTART = "/workers/restart"


def explain_path(request_id: str) -> str:
    """GET: why a request ran where it did. Answered by `explained.ExplainAnswer`, or 404 and `ErrorAnswer`."""
    return f"/requests/{request_id}/explain"


def drain_path(backend: str) -> str:
    """POST: take nothing new at this backend. Answered by `DrainAnswer`, or 404 and `ErrorAnswer`."""
    return f"/backends/{backend}/drain"


def undrain_path(backend: str) -> str:
    """POST: take requests again at this backend. Answered by `DrainAnswer`, or 404 and `ErrorAnswer`."""
    return f"/backends/{backend}/undrain"


def restart_path(backend: str) -> str:
    """POST: end the engine of this backend and start it again. Answered by `RestartAnswer`; by `ErrorAnswer` and 404,
    or 409 where slotgate did not start the engine. Asked again while the engine ends: nothing more happens.
    """
    return f"/backends/{backend}/restart"


class GpuStatus(msgspec.Struct):
    """The card that a backend is bound to."""

    index: int
    name: str
    uuid: str
    memory_bytes: int


class BackendStatus(msgspec.Struct):
    """One backend as the proxy sees it now."""

    name: str
    engine: str
    managed: bool
    endpoint: str
    health: str
    """starting, ready, suspect, down or draining."""
    draining: bool = False
    gpu: GpuStatus | None = None
    slots: int = 0
    running_limit: int = 0
    running: int = 0
    """Seats taken by requests of this proxy."""
    elsewhere: int = 0
    """Seats taken by other proxies of the fleet."""
    foreign_busy: int = 0
    """Slots that the engine reports busy beyond all leases: somebody goes around slotgate."""
    deferred: int | None = None
    """Requests in the engine's own queue; None where it does not tell."""
    slot_source: str = "leases"
    """Where occupancy comes from: "slots" (the engine's own account), "children" (that of the llama-servers that an
    Ollama runs) or "leases" (ours)."""
    slot_source_why: str = ""
    """Why from there, in a sentence without its full stop; empty: it goes without saying."""
    epoch: int = 0
    restarts: int = 0
    pid: int | None = None
    models: list[str] = []
    last_error: str | None = None
    warnings: list[str] = []
    state: str = ""
    """Of its process: stopped, starting, ready, ending, backoff (started again soon) or failed (restart budget spent:
    it stays down); not-answering for an engine that should and does not."""
    version: str = ""
    """As the engine tells it."""
    slot_context_tokens: int | None = None
    """Context that a slot really has; None where the engine does not tell."""
    wanted: list[str] = []
    """Settings and command line that the engine was started with, secrets masked; empty for an external one."""
    taken: dict[str, Any] = {}
    """What the engine says it really took."""
    log_path: str | None = None
    """Where its output goes; None for an external one."""
    looked_s_ago: float | None = None
    """Since the last look at it, answered or not."""
    gpu_free_bytes: int | None = None
    """Memory of its card that is free; None where the driver does not tell."""
    names_slots: bool = False
    """Requests are told which slot to use; False: the engine chooses."""
    resident: list[ResidentModel] = []
    """Models in its memory, on their way there or out of it."""
    context_exceeded: int = 0
    """Requests sent there, since this proxy started, whose prompt and answer may not have fit their context."""


class StoreStatus(msgspec.Struct):
    """The store as the proxy sees it now."""

    url_shown: str
    """Without its password."""
    up: bool
    embedded: bool
    fleet: str = ""
    """Name of the fleet in it."""
    proxies: int = 1
    """Proxies of the fleet that are there, this one included; with workers each of them, and the main process."""
    trouble: str = ""
    """Why it is not used now, and what to do; empty: it is."""


class WorkerStatus(msgspec.Struct):
    """One process that serves clients."""

    number: int
    pid: int
    state: str
    """starting, serving, retiring (finishes what it has), or down (started again soon; its pid is 0)."""
    uptime_s: float
    warm: bool
    """It saw all backends when it began to serve."""
    connections: int = 0
    """Of clients."""
    running: int = 0
    """Seats taken by its requests."""
    waiting: int = 0
    requests: int = 0
    """Requests that it is answering, those included that wait."""
    served: int = 0
    """Requests that it has answered."""
    restarts: int = 0
    """Times that this worker died and was started again."""


class WorkersAnswer(msgspec.Struct):
    """GET /workers, and POST /workers/restart, which begins to replace one after the other; 409 and `ErrorAnswer` where
    that cannot be.
    """

    workers: list[WorkerStatus]
    """Empty: one process does everything (workers = 1)."""
    restarting: bool = False
    """They are being replaced now."""
    replaced: int = 0
    """How many were, in the restart that is going on or was the last."""
    problem: str = ""
    """Why that restart ended early; the others go on as they were."""


class StatusAnswer(msgspec.Struct):
    """GET /status: the fleet."""

    version: str
    listen: str
    """HOST:PORT or unix:/PATH that is really bound."""
    uptime_s: float
    pid: int
    policy_version: int
    store: StoreStatus
    waiting: int
    running: int
    backends: list[BackendStatus]
    warnings: list[str] = []
    estimates: list[EstimateRow] = []
    """What was learned of each model on each backend, and what is thought until then."""
    workers: list[WorkerStatus] = []
    """The processes that serve clients; empty: this one does (workers = 1)."""


class LoadedModel(msgspec.Struct):
    """One model in the memory of one backend."""

    name: str
    backend: str
    digest: str | None = None
    """Hexadecimal; None where the engine knows none."""
    size_bytes: int | None = None
    gpu_bytes: int | None = None
    """Part of `size_bytes` that is in GPU memory."""
    context_tokens: int | None = None
    """Context of one slot."""
    expires_at_unix_s: float | None = None
    """When the engine unloads it; None: never."""
    gpu: GpuStatus | None = None
    slots_busy: int = 0
    slots: int = 0
    state: str = "loaded"
    """As in `ResidentModel`."""
    pinned: bool = False


class LiveRequest(msgspec.Struct):
    """A request that waits or runs now."""

    id: str
    state: str
    """waiting or running."""
    dialect: str
    operation: str
    model: str | None
    age_s: float
    """Since it arrived."""
    backend: str | None = None
    tenant: str = ""
    priority: str = "normal"
    position: int | None = None
    """Of a waiting request: its place in line, 1 for the next."""
    expected_wait_s: float | None = None
    """Of a waiting request: how long it will probably wait still."""


class PsAnswer(msgspec.Struct):
    """GET /ps: what is loaded where, and what waits and runs."""

    models: list[LoadedModel]
    requests: list[LiveRequest] = []
    pins: list[PinnedPlace] = []


class KnownModel(msgspec.Struct):
    """One model that clients may ask for."""

    name: str
    backends: list[str]
    """Backends that can serve it."""
    loaded_on: list[str] = []
    pinned: bool = False
    digest: str | None = None
    size_bytes: int | None = None
    """On disk."""
    modified_at_unix_s: float | None = None
    digests: dict[str, str] = {}
    """By backend, where they differ: the name does not mean the same everywhere."""


class ModelsAnswer(msgspec.Struct):
    """GET /models."""

    models: list[KnownModel]


class RecentRequest(msgspec.Struct):
    """A request that ended. Times are milliseconds from its arrival, as in the request log."""

    id: str
    ended_at_unix_s: float
    status: int
    outcome: str
    termination: str
    total_ms: float
    dialect: str | None = None
    operation: str | None = None
    model: str | None = None
    backend: str | None = None
    queue_ms: float | None = None
    first_byte_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    """What `cached_tokens` should have been, by our account of the engine's slots."""
    output_tokens: int | None = None
    slot: int | None = None
    """The slot that it ran on, as far as known."""
    tenant: str = ""
    priority: str = "normal"
    position: int | None = None
    """Its place in line when it began to wait, 1 for the next; None: it never did."""
    expected_wait_s: float | None = None
    """How long it would probably wait, then."""
    context: str = ""
    """Why its prompt and answer may not have fit the context that they got; empty: they did, or nobody can tell."""


class RecentAnswer(msgspec.Struct):
    """GET /recent: the last requests, newest last; how many are kept is the proxy's choice."""

    requests: list[RecentRequest]


class DrainAnswer(msgspec.Struct):
    """POST drain and undrain."""

    name: str
    draining: bool
    running: int
    """Seats still taken there, by any proxy of the fleet."""


class RestartAnswer(msgspec.Struct):
    """POST restart: it was begun. `BackendStatus.health` tells when the engine is ready again."""

    name: str
    was: str
    """`BackendStatus.state` when it was asked for."""
    running: int
    """Seats taken there then, by any proxy of the fleet. What has no byte of its answer yet is tried elsewhere."""


class PolicySetting(msgspec.Struct):
    """One key of the policy."""

    key: str
    value: Value
    default: Value
    origin: str
    """default, preset, config (the configuration file) or set (live)."""
    takes: str
    """Type and range, in words."""
    meaning: str = ""


class PolicyPreset(msgspec.Struct):
    """One ready-made policy."""

    name: str
    meaning: str
    changes: dict[str, Value]
    """What it changes of the defaults."""


class PolicyAnswer(msgspec.Struct):
    """GET /policy: what is in force, and what it is made of."""

    version: int
    preset: str
    preset_origin: str
    """default, config or set."""
    settings: list[PolicySetting]
    presets: list[PolicyPreset]
    file: str
    """Where what was set live is kept."""
    problems: list[str] = []
    """What of that file is not in force, and why."""


class PolicySet(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /policy/set: keys and values; text is converted to the key's type. All or none."""

    set: dict[str, Value]


class PolicyChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /policy/preset."""

    preset: str


class PolicyReset(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /policy/reset: the keys; none means all, and the preset too."""

    keys: list[str] = []


class PolicyChange(msgspec.Struct):
    """One key whose value is another now."""

    key: str
    before: Value
    after: Value
    origin: str


class PolicyChangedAnswer(msgspec.Struct):
    """POST /policy/...: what is in force now. 400 and `ErrorAnswer`: nothing has changed."""

    version: int
    preset: str
    changes: list[PolicyChange]


class ErrorAnswer(msgspec.Struct):
    """Any answer with a status of 400 or more."""

    error: str
    known: list[str] = []
    """What exists, where a name was not found."""
    asked: str = ""
    """That name."""
