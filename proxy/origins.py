"""Which web pages may talk to the proxy, and under which host names: the same rules as Ollama's, so pages keep working.

Engines never see `Origin`: slotgate owns this policy. The rules guard against pages of strangers in the user's own
browser, DNS rebinding included; they are no access control for programs.
"""

import ipaddress
import socket
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]")
"""Pages served from this machine, on any port."""
APP_SCHEMES = (
    "app", "file", "tauri", "vscode-webview", "vscode-file",
    "chrome-extension", "moz-extension", "safari-web-extension",
)  # fmt: skip
"""Desktop programs and browser extensions; what Ollama allows as shipped."""
LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
ALLOWED_HEADERS = ",".join(
    ["Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "Openai-Beta", "X-Api-Key"]
    + ["X-Slotgate-Priority"]
    + ["Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access"]
    + [
        f"X-Stainless-{name}"
        for name in (
            "Arch", "Async", "Custom-Poll-Interval", "Helper-Method", "Lang", "Os", "Package-Version", "Poll-Helper",
            "Retry-Count", "Runtime", "Runtime-Version", "Timeout",
        )
    ]
)  # fmt: skip


_PREFLIGHT_VARIES = ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")


class Origins:
    """The policy for one listening address."""

    def __init__(self, allowed: Sequence[str], *, loopback: bool) -> None:
        self._all = "*" in allowed
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        self._loopback = loopback
        self._hostname = socket.gethostname().lower()

    def origin_allowed(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may use the proxy, reached as `host`."""
        origin = origin.lower()
        if self._all or origin in self._allowed:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False  # no browser says that: http://[x
        if parts.scheme in APP_SCHEMES:
            return True
        if parts.scheme not in {"http", "https"}:
            return False
        return self.same_origin(origin, host) or _name(parts.netloc) in LOCAL_HOSTS

    def host_allowed(self, host: str) -> bool:
        """Whether a request may name this host: on a loopback listener only names that mean this machine or network."""
        if not self._loopback:
            return True
        return _means_us(_name(host.lower()), self._hostname)

    def response_headers(self, origin: str | None, host: str) -> list[tuple[str, str]]:
        """CORS headers of an answer to a page of elsewhere; none for programs, which send no Origin."""
        if origin is None or self.same_origin(origin, host) or not self.origin_allowed(origin, host):
            return []
        if self._all:
            return [("Access-Control-Allow-Origin", "*")]
        return [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]

    @staticmethod
    def same_origin(origin: str, host: str) -> bool:
        """Whether the page came from here: no question between two origins then, for Ollama as for browsers."""
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    def preflight_headers(self, origin: str, allowed_methods: Sequence[str]) -> list[tuple[str, str]]:
        """Headers of the 204 that answers a browser's OPTIONS, in Ollama's order.

        Args:
            origin: of the page, allowed.
            allowed_methods: of the path; none where there is no such path.
        """
        headers = [
            ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
            ("Access-Control-Allow-Methods", "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"),
            ("Access-Control-Allow-Origin", "*" if self._all else origin),
            ("Access-Control-Max-Age", "43200"),
        ]
        if allowed_methods:
            headers.append(("Allow", ", ".join(allowed_methods)))
        if not self._all:
            headers += [("Vary", name) for name in _PREFLIGHT_VARIES]
        return headers


@lru_cache(maxsize=256)  # clients name the same few hosts in every request
def _means_us(name: str, hostname: str) -> bool:
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in {"", "localhost", hostname} or name.endswith(LOCAL_SUFFIXES)
    return address.is_loopback or address.is_private or address.is_unspecified


def _name(authority: str) -> str:
    """The host without its port; brackets of an IPv6 address stay."""
    if authority.startswith("["):
        address, _, port = authority.partition("]")
        return f"{address}]" if not port or port.startswith(":") else authority
    return authority.partition(":")[0]
