"""Whose a request is, and how urgent: owns the reading of the headers that tell. Knows nothing of shares and limits.

Who may connect may use slotgate, and says by itself who it is; only to change models an API key can be wanted
(`is_admin`). Keys are never kept: they are looked up by their hash, so how long that takes tells nothing of them. What
is shown of one is the beginning of its hash, or the name that the configuration gives it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from proxy.config import KEY_DIGEST, TenancyConfig, key_digest
from proxy.dialects import ClientError
from scheduler.waiting import PRIORITIES

PRIORITY_HEADER = "X-Slotgate-Priority"

PLACEHOLDERS = frozenset({"", "ollama", "sk-no-key-required", "no-key", "none", "null", "dummy", "empty"})
"""What documentation tells people to write where no key is needed (Ollama, llama.cpp, vLLM and others), in lower case.
All the world sends them: they tell nobody apart."""

_SHOWN_DIGITS = 8
_LONGEST = 64


class Sender(NamedTuple):
    """Whose a request is."""

    tenant: str
    """Name for fair shares and limits; empty: one of those that nothing tells apart."""
    priority: str
    """One of `PRIORITIES`."""


class Tenancy:
    """Tells clients apart as configured."""

    def __init__(self, config: TenancyConfig) -> None:
        self._keys = config.keys
        self._by = [_FINDERS[name] for name in config.by]

    def of(self, headers: Mapping[str, str], address: str) -> Sender:
        """Whose a request is.

        Args:
            headers: of the request; names in any case.
            address: where it came from.

        Raises:
            ClientError: 400: it names a priority that there is none of.
        """
        digest = _digest(headers)
        known = self._keys.get(digest) if digest else None
        asked = headers.get(PRIORITY_HEADER)
        priority = _priority(asked) if asked is not None else known.priority if known is not None else "normal"
        if known is not None and known.name:
            digest = known.name
        elif digest:
            digest = f"key:{digest[len(KEY_DIGEST) :][:_SHOWN_DIGITS]}"
        tenant = ""
        for find in self._by:
            if tenant := find(headers, address, digest):
                break
        return Sender(tenant, priority)

    def is_admin(self, headers: Mapping[str, str]) -> bool:
        """Whether the request brings an API key that may change models: one with `admin = true`."""
        digest = _digest(headers)
        known = self._keys.get(digest) if digest else None
        return known is not None and known.admin

    @property
    def has_admins(self) -> bool:
        """Whether there is such a key."""
        return any(key.admin for key in self._keys.values())


def _priority(asked: str) -> str:
    priority = asked.strip().lower()
    if priority not in PRIORITIES:
        raise ClientError(400, f"{PRIORITY_HEADER}: {asked!a} is not one of {', '.join(PRIORITIES)}")
    return priority


def _digest(headers: Mapping[str, str]) -> str:
    """Of the key that the request brings; empty: it brings none that could tell anything."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("X-Api-Key", "")
    key = key.strip()
    return "" if key.lower() in PLACEHOLDERS else key_digest(key)


def _key(_headers: Mapping[str, str], _address: str, shown_key: str) -> str:
    return shown_key


def _open_webui_user(headers: Mapping[str, str], _address: str, _shown_key: str) -> str:
    """Open WebUI names its user where ENABLE_FORWARD_USER_INFO_HEADERS is on."""
    user = (headers.get("X-OpenWebUI-User-Id") or headers.get("X-OpenWebUI-User-Email") or "").strip()
    if not user:
        return ""
    plain = len(user) <= _LONGEST and user.isascii() and user.isprintable()
    return f"user:{user if plain else key_digest(user)[len(KEY_DIGEST) :][:_SHOWN_DIGITS]}"


def _address(_headers: Mapping[str, str], address: str, _shown_key: str) -> str:
    return address


_FINDERS: dict[str, Callable[[Mapping[str, str], str, str], str]] = {
    "api-key": _key,
    "open-webui-user": _open_webui_user,
    "address": _address,
}
