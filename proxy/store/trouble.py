"""What can be wrong with the store, told from its errors, worded for the operator. Decides nothing."""

from enum import StrEnum

import msgspec
from redis import exceptions


class TroubleKind(StrEnum):
    """Closed and small: it is a metric label."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    PASSWORD = "password"  # noqa: S105 - a label
    FORBIDDEN = "forbidden"
    READ_ONLY = "read-only"
    MEMORY_FULL = "memory-full"
    DISK = "disk"
    BUSY = "busy"
    CLUSTER = "cluster"
    VERSION = "version"
    UNEXPECTED = "unexpected"


ADVICE = {
    TroubleKind.UNREACHABLE: "start it, or correct store.url",
    TroubleKind.SLOW: "look at its load, its disk and the network, or raise store.call_timeout_s",
    TroubleKind.PASSWORD: "put the right user and password into store.url: redis://USER:PASSWORD@HOST:PORT",
    TroubleKind.FORBIDDEN: "its ACL must allow this user @read, @write, @scripting and ping on keys {slotgate:*",
    TroubleKind.READ_ONLY: "this is a replica; put the address of the primary (or of the Sentinels) into store.url",
    TroubleKind.MEMORY_FULL: "raise its maxmemory or remove other data; slotgate needs a few MiB",
    TroubleKind.DISK: "it cannot write to its disk: free space there, see its log",
    TroubleKind.BUSY: "it loads its data or runs a long script; nothing to do if this ends soon",
    TroubleKind.CLUSTER: "the cluster has nobody for these keys, or moves them now: see CLUSTER INFO and CLUSTER SLOTS",
    TroubleKind.VERSION: "slotgate needs Redis 7 or Valkey 8/9",
    TroubleKind.UNEXPECTED: "please report this with the lines above",
}
"""What the operator can do about each."""

MIN_VERSION = 7
"""Major version of the Redis that a store must be or be compatible with (Valkey 8 and 9 say 7.2)."""

_PREFIXES = {
    "OOM": TroubleKind.MEMORY_FULL,
    "READONLY": TroubleKind.READ_ONLY,
    "MISCONF": TroubleKind.DISK,
    "NOPERM": TroubleKind.FORBIDDEN,
    "NOAUTH": TroubleKind.PASSWORD,
    "WRONGPASS": TroubleKind.PASSWORD,
    "LOADING": TroubleKind.BUSY,
    "BUSY": TroubleKind.BUSY,
    "MASTERDOWN": TroubleKind.BUSY,
    "NOREPLICAS": TroubleKind.BUSY,
    "TRYAGAIN": TroubleKind.BUSY,
    "MOVED": TroubleKind.CLUSTER,
    "ASK": TroubleKind.CLUSTER,
    "CROSSSLOT": TroubleKind.CLUSTER,
    "CLUSTERDOWN": TroubleKind.CLUSTER,
}


class Trouble(msgspec.Struct, frozen=True):
    """Why the store is not used now."""

    kind: TroubleKind
    detail: str

    @property
    def advice(self) -> str:
        """What the operator can do."""
        return ADVICE[self.kind]


class StoreDown(Exception):
    """The store cannot answer now; the caller goes on without it."""


class StoreSlow(Exception):
    """No answer within the deadline."""


def trouble_of(error: BaseException) -> Trouble:
    """Tell from an exception of redis-py or of the connection what is wrong."""
    if isinstance(error.__cause__, exceptions.RedisError):  # on unix sockets redis-py wraps a refused login
        error = error.__cause__
    detail = str(error) or type(error).__name__
    if isinstance(error, StoreSlow):
        return Trouble(TroubleKind.SLOW, detail)
    code = getattr(error, "status_code", None) or detail.partition(" ")[0]
    if kind := _PREFIXES.get(code):
        return Trouble(kind, detail)
    match error:
        case exceptions.AuthenticationError():
            kind = TroubleKind.PASSWORD
        case exceptions.ResponseError() if "AUTH" in detail and "without any password configured" in detail:
            kind = TroubleKind.PASSWORD
        case exceptions.ResponseError():
            kind = TroubleKind.UNEXPECTED
        case exceptions.TimeoutError() | exceptions.ConnectionError() | OSError() | EOFError():
            kind = TroubleKind.UNREACHABLE
        case _:
            kind = TroubleKind.UNEXPECTED
    return Trouble(kind, detail)


def version_trouble(info: str) -> Trouble | None:
    """Read `INFO server`: None if this version will do."""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    version = fields.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MIN_VERSION:
        return Trouble(TroubleKind.VERSION, f"this is Redis {version}")
    return None
