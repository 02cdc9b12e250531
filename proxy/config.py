"""The shape of the configuration: every option with its default, its unit, its rule and one line of documentation.

How values are found (files, environment, flags) is `config_sources`'s business.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.types import SecretStr

from proxy.config_model_store import ModelStoreConfig
from proxy.config_residency import ResidencyConfig
from proxy.config_section import KeepAlive, PositiveInt, Seconds, Section
from proxy.endpoint import parse_endpoint
from proxy.listen_address import checked_listen

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]*,]+)(?::(\d{1,5}))?/?")


def _origin(text: str) -> str:
    found = _ORIGIN.fullmatch(text)
    if text != "*" and (found is None or int(found[1] or 0) > 65535):
        raise ValueError(f'{text!r}: write SCHEME://HOST[:PORT] as in https://chat.example, or "*" alone')
    return text


def _indexes_as_text(value: object) -> object:
    if isinstance(value, list):
        return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    return value


Gpus = Annotated[
    Literal["auto", "none"] | Annotated[list[str], Field(min_length=1)],
    BeforeValidator(_indexes_as_text),
]


class RestartConfig(Section):
    """How a managed backend that died is started again."""

    backoff_s: Seconds = 0.5
    """Wait before the first restart; doubles with each further one."""
    backoff_max_s: Seconds = 30.0
    """Longest wait between two restarts."""
    budget: PositiveInt = 10
    """Restarts allowed within `budget_window_s`; beyond it the backend stays down until `slotgate restart`."""
    budget_window_s: Seconds = 600.0
    """Seconds that the restart budget looks back."""


class BackendConfig(Section):
    """One entry of [[backends]]: an external engine (url), or engines that slotgate starts (one per GPU)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    """Name of the backend; several GPUs get name-0, name-1, ... Default: the engine's name."""
    url: str | None = None
    """External engine: http://HOST:PORT[/PREFIX] or unix:/PATH. Leave out to have slotgate start one."""
    engine: Literal["auto", "ollama", "llama-server", "embedded"] = "auto"
    """What it runs. auto: asked of an external engine; for managed ones llama-server on PATH, else the embedded one."""
    api_key: str | None = None
    """Key that the external engine wants as `Authorization: Bearer`."""
    gpu_name: str | None = None
    """Card of the external engine, such as "RTX 4090" or "cpu": how fast it is thought to be until its answers tell."""
    gpus: Gpus = "auto"
    """GPUs to start one engine each on: auto (all that NVML finds, else the CPU), none (CPU), or UUIDs or indexes."""
    count: PositiveInt | None = None
    """Engines to start on the CPU, sharing its threads. Default: 1. Ignored on GPUs: one engine per GPU."""
    binary: Path | None = None
    """Path of llama-server or ollama. Default: found on PATH."""
    model: Path | None = None
    """GGUF file that llama-server loads. Required for a managed llama-server."""
    model_name: str | None = None
    """Name that clients use for it. Default: the file's name without .gguf."""
    slots: PositiveInt = 4
    """Parallel sequences (llama-server -np, OLLAMA_NUM_PARALLEL). Default: 4; for an external Ollama what it was
    started with, where that can be read, else 1, as it ships."""
    running_limit: PositiveInt | Literal["auto"] | None = None
    """Requests that may run at once, at most `slots`; the other slots only keep prefixes. auto: as many as keep the
    policy's token_target_ms, as learned. Default: min(slots, 8)."""
    context_tokens: PositiveInt = 4096
    """Context of one slot, in tokens. Of an external Ollama: its OLLAMA_CONTEXT_LENGTH, where that cannot be read."""
    batch_tokens: PositiveInt = 512
    """Tokens per batch (-b): bounds how long a prefill stalls other streams."""
    host_cache_mib: Annotated[int, Field(ge=0)] | None = None
    """Host prompt cache in MiB (--cache-ram). Default: 0 on a GPU, 256 on the CPU."""
    threads: PositiveInt | None = None
    """CPU threads of one engine. Default on the CPU: all cores divided by the engines."""
    flags: list[str] = []
    """Further flags for llama-server, as on its command line."""
    env: dict[str, str] = {}
    """Further environment variables for the engine."""
    models_dir: Path | None = None
    """Ollama's model store (OLLAMA_MODELS), shared by all backends of this entry. Default: Ollama's own."""
    store: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    """Ollamas with the same name here share one directory of models. Default: found out where that can be seen."""
    keep_alive: KeepAlive = "5m"
    """How long an idle model stays loaded: 1h30m, 300 (seconds), -1 for ever (OLLAMA_KEEP_ALIVE)."""
    max_loaded_models: PositiveInt = 1
    """Models that one Ollama may hold at once (OLLAMA_MAX_LOADED_MODELS). Of an external one: what it was started with,
    where that cannot be read."""
    first_port: Annotated[int, Field(ge=1, le=65535)] = 11500
    """Managed Ollamas listen on 127.0.0.1 from this port on; taken ports are skipped."""
    start_timeout_s: Seconds = 600.0
    """A managed engine that is not ready by then is stopped and started again."""
    restart: RestartConfig = RestartConfig()
    cloud: bool = False
    """Requests for models that run at ollama.com go to this Ollama, under its account. Default: to the first Ollama."""

    @field_validator("url")
    @classmethod
    def _readable_url(cls, url: str | None) -> str | None:
        if url is not None:
            parse_endpoint(url)
        return url

    @field_validator("engine")
    @classmethod
    def _startable(cls, engine: str, info: ValidationInfo) -> str:
        if engine == "embedded" and info.data.get("url") is not None:
            raise ValueError("the embedded engine is started by slotgate itself: leave out url, or name its engine")
        return engine

    @field_validator("running_limit")
    @classmethod
    def _within_slots(cls, limit: int | str | None, info: ValidationInfo) -> int | str | None:
        slots = info.data.get("slots")
        if isinstance(limit, int) and slots is not None and limit > slots and info.data.get("url") is None:
            raise ValueError(f"{limit} is more than slots = {slots}")
        return limit


class StoreConfig(Section):
    """Where state lives that outlives a process or is shared."""

    url: str | None = None
    """redis://, rediss://, unix:// or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB of a Redis 7 or Valkey 8/9.
    Default: an embedded Valkey in the state directory."""
    call_timeout_s: Seconds = 0.25
    """Longest wait for one answer of the store before going on without it."""
    lease_ttl_s: Seconds = 15.0
    """A lease that is not renewed is void after this time: how soon a dead proxy's slots are free."""

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme in {"redis+sentinel", "rediss+sentinel"}:
            if not re.fullmatch(r"([^/]*@)?[^/@,]+(,[^/@,]+)*/[^/]+(/\d*)?", parts.netloc + parts.path, re.ASCII):
                raise ValueError("write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB")
            return url
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise ValueError("write redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH")
        databases = parse_qs(parts.query, keep_blank_values=True).get("db", [])
        if parts.scheme != "unix" and parts.path.strip("/"):
            databases.append(parts.path.strip("/"))
        for database in databases:
            if not database.isascii() or not database.isdigit():
                raise ValueError("the database is a number: write redis://HOST:PORT/0 or unix:///PATH?db=0")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("the port is a number from 0 to 65535: write redis://HOST:PORT/DB") from None
        return url


class BoxConfig(Section):
    """One box of several whose backends make one fleet; see docs/boxes.md."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    """Name of this box. Default: its host name."""
    gate: Annotated[str, AfterValidator(checked_listen)] | None = None
    """HOST:PORT or :PORT where the other boxes reach this box's backends. Default: only this box uses them."""
    gate_address: Annotated[str, AfterValidator(checked_listen)] | None = None
    """HOST:PORT that the other boxes dial. Default: that of `gate`; this box's own address if that is every address."""
    secret: SecretStr | None = None
    """What the boxes know each other by: the same on all, at least 16 characters. A gate needs one."""
    secret_file: Path | None = None
    """File that holds the secret; not read where `secret` is set."""
    tls_cert: Path | None = None
    """Certificate of the gate, in PEM with those above it: then the gate speaks TLS."""
    tls_key: Path | None = None
    """Private key of that certificate, in PEM."""
    tls_ca: Path | None = None
    """Certificates that gates of other boxes are checked against, in PEM. Default: those that the system trusts."""


class LimitsConfig(Section):
    """Bounds on what clients may ask."""

    max_waiting: Annotated[int, Field(ge=0)] = 1000
    """Requests that may wait for a slot; beyond it they are refused with Retry-After."""
    max_wait_s: Seconds = 300.0
    """Longest wait for a slot."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """Largest request body."""
    max_open_bytes: PositiveInt = 1024 * 1024 * 1024
    """Request bodies that are held at once, waiting and running; beyond it requests are refused."""
    max_attempts: PositiveInt = 3
    """Failed attempts at one request before the first byte of an answer, after which it is given up."""
    heartbeat_after_s: Seconds = 20.0
    """A streamed request that waited this long gets its head and heartbeats; until then a clean error is possible."""
    heartbeat_every_s: Seconds = 15.0
    """Pause between heartbeats."""
    header_timeout_s: Seconds = 10.0
    """A client that has not sent its whole request head by then is disconnected."""
    body_timeout_s: Seconds = 30.0
    """A client that sends less than 4 KiB of its body within this time, and not its end, is disconnected."""
    keepalive_timeout_s: Seconds = 75.0
    """Idle client connections are closed after this time."""
    stall_timeout_s: Seconds = 600.0
    """An engine that sends nothing for this long in the middle of a request is given up."""
    write_timeout_s: Seconds = 60.0
    """A client that reads nothing for this long, while bytes for it wait, is disconnected."""
    drain_s: Seconds = 60.0
    """On stop, running requests get this long to finish."""
    retire_s: Seconds = 3600.0
    """When `slotgate workers restart` replaces a worker, the requests of the old one get this long to finish."""


class PolicyConfig(Section):
    """How requests are routed, before anything is changed with `slotgate policy`; see docs/policy.md."""

    preset: Literal["balanced", "latency", "throughput", "lmetric", "sticky", "least-busy", "round-robin"] = "balanced"
    """Weights to start from. `slotgate policy preset` lists them."""
    set: dict[str, bool | int | float | str] = {}
    """Weights and thresholds that differ from the preset's. `slotgate policy show` lists them."""


KEY_DIGEST = "sha256:"
"""How the hash of an API key begins where it stands in place of the key."""


def key_digest(key: str) -> str:
    """What an API key is known by: `sha256:` and 64 hexadecimal digits."""
    return KEY_DIGEST + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyConfig(Section):
    """What is known of an API key."""

    name: Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,64}$")] = ""
    """Whose it is. Keys with the same name count as one client. Default: the beginning of the key's hash."""
    priority: Literal["high", "normal", "low"] = "normal"
    """Of requests that name none themselves."""
    admin: bool = False
    """It may change the model store and unload models."""


class TenancyConfig(Section):
    """Which requests count as one client's, for fair shares, limits and priorities."""

    by: list[Literal["api-key", "open-webui-user", "address"]] = ["api-key", "open-webui-user", "address"]
    """What tells clients apart: the first of these that a request has. Requests with none of them are one client's."""
    keys: dict[str, KeyConfig] = {}
    """API keys, or `sha256:` and the hash of one, each with { name = "...", priority = "high", admin = true } or one of
    these, or the name alone."""

    @field_validator("keys", mode="before")
    @classmethod
    def _hashed(cls, value: object, info: ValidationInfo) -> object:
        """Keys are kept as hashes only, and named by the beginning of it in every message."""
        if not isinstance(value, dict):
            return value
        admins = any(isinstance(entry, dict) and entry.get("admin") for entry in value.values())
        if value and not admins and "api-key" not in info.data.get("by", ["api-key"]):
            raise ValueError('they mean nothing unless "api-key" is in tenancy.by, or one has admin = true')
        hashed: dict[str, object] = {}
        for key, entry in value.items():
            digest = str(key).lower() if str(key).startswith(KEY_DIGEST) else key_digest(str(key))
            shown = f"{digest[:15]}..."
            if not re.fullmatch(KEY_DIGEST + "[0-9a-f]{64}", digest):
                raise ValueError(f"{shown} is no hash: write {KEY_DIGEST} and 64 hexadecimal digits")
            if digest in hashed:
                raise ValueError(f"the key {shown} is there twice")
            given = hashed[digest] = {"name": entry} if isinstance(entry, str) else entry
            if isinstance(given, dict) and not given.keys() <= KeyConfig.model_fields.keys():
                raise ValueError(f"the key {shown} takes name, priority and admin, not {', '.join(map(str, given))}")
            if not isinstance(given, dict | KeyConfig):
                raise ValueError(f"the key {shown} takes a name, or a table of name, priority and admin")
        return hashed


class LogConfig(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else one JSON object per line."""
    requests: bool = True
    """One line per request, with timers and a termination code."""


class Config(Section):
    """The whole configuration."""

    listen: Annotated[str, AfterValidator(checked_listen)] = "127.0.0.1:11434"
    """Address that clients use: HOST:PORT, [IPV6]:PORT, :PORT (every address), or unix:/PATH."""
    fleet: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "default"
    """Proxies with the same store and fleet name share their backends."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve clients, on one address. One is enough for most boxes; more use more CPU cores."""
    state_dir: Path | None = None
    """Sockets, logs, the embedded store. Default: $STATE_DIRECTORY, else $XDG_STATE_HOME/slotgate."""
    admin_socket: Path | None = None
    """Unix socket of the admin API. Default: admin.sock in $RUNTIME_DIRECTORY, else in the state directory."""
    origins: list[Annotated[str, AfterValidator(_origin)]] = []
    """Web pages that may use the proxy beside local ones, such as https://chat.example; "*" allows all."""
    backends: list[BackendConfig] = []
    """The engines, one [[backends]] each. At least one is needed to serve."""
    store: StoreConfig = StoreConfig()
    box: BoxConfig = BoxConfig()
    limits: LimitsConfig = LimitsConfig()
    policy: PolicyConfig = PolicyConfig()
    model_store: ModelStoreConfig = ModelStoreConfig()
    residency: ResidencyConfig = ResidencyConfig()
    tenancy: TenancyConfig = TenancyConfig()
    log: LogConfig = LogConfig()


class Paths(msgspec.Struct, frozen=True):
    """Where a proxy keeps its files: the configuration's paths with their defaults filled in."""

    state_dir: Path
    admin_socket: Path


def resolve(config: Config, environ: Mapping[str, str]) -> Paths:
    """Fill in the paths that the configuration leaves open; nothing is created.

    systemd sets STATE_DIRECTORY and RUNTIME_DIRECTORY from the unit (systemd.exec(5), colon-separated lists); without
    them the XDG base directory rules hold.
    """
    state_dir = config.state_dir
    if state_dir is None:
        if named := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
            state_dir = Path(named)
        elif (xdg := environ.get("XDG_STATE_HOME", "")).startswith("/"):
            state_dir = Path(xdg) / "slotgate"
        else:
            state_dir = Path(environ.get("HOME") or "~").expanduser() / ".local" / "state" / "slotgate"
    admin_socket = config.admin_socket
    if admin_socket is None:
        run_dir = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        admin_socket = (Path(run_dir) if run_dir else state_dir) / "admin.sock"
    return Paths(state_dir=state_dir.absolute(), admin_socket=admin_socket.absolute())
