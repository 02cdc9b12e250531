"""Where the store is: reads store.url, asks Sentinels for the primary, follows a cluster to the node that has the keys.

Knows no key and keeps no connection. What comes out is always a URL of one process: redis://, rediss:// or unix://.
"""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import structlog
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError

from proxy.endpoint import shown_url

log = structlog.get_logger("slotgate.store")

SENTINEL_PORT = 26379
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_FORM = "redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE[/DB]"
PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:,\s]+)(?::(\d{1,5}))?")


class Places:
    """The way from a URL to the process that is to be connected to."""

    def __init__(self, url: str, *, timeout_s: float = 1.0) -> None:
        """Read the URL; connects to nothing. `timeout_s`: for each Sentinel that is asked.

        Raises:
            ValueError: none of the known forms; the message names them.
        """
        self.url = url
        self._timeout_s = timeout_s
        self._moved_to: str | None = None
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._user, at, hosts = parts.netloc.rpartition("@")
        self._user += at
        self._sentinels: list[tuple[str, int]] = []
        self._sentinel_options: dict[str, str] = {}
        self._path, self._query = parts.path, parts.query
        self._service = ""
        if parts.scheme in SENTINEL_SCHEMES:
            self._read_sentinels(hosts)
        else:
            ConnectionPool.from_url(url)

    def _read_sentinels(self, hosts: str) -> None:
        for host in hosts.split(","):
            found = PLACE.fullmatch(host)
            if found is None or int(found[2] or SENTINEL_PORT) > 65_535:
                raise ValueError(f"write {SENTINEL_FORM}")
            self._sentinels.append((found[1].strip("[]"), int(found[2] or SENTINEL_PORT)))
        service, _, database = self._path.strip("/").partition("/")
        if not service or (database and not (database.isascii() and database.isdigit())):
            raise ValueError(f"write {SENTINEL_FORM}")
        options = parse_qsl(self._query, keep_blank_values=True)
        self._sentinel_options = {
            name.removeprefix("sentinel_"): value for name, value in options if name.startswith("sentinel_")
        }
        self._query = urlencode([(name, value) for name, value in options if not name.startswith("sentinel_")])
        self._service, self._path = unquote(service), f"/{database}"
        self._scheme = SENTINEL_SCHEMES[self._scheme]
        ConnectionPool.from_url(self._at("localhost", 1))

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return shown_url(self.url)

    async def find(self) -> str:
        """The URL to connect to now.

        Raises:
            RedisError, OSError: no Sentinel answers, or none knows a primary.
        """
        if self._moved_to is not None:
            return self._moved_to
        if not self._sentinels:
            return self.url
        options: dict[str, Any] = {
            **self._sentinel_options,
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": self._timeout_s,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),  # the next Sentinel is asked at once; redis-py would wait some seconds
        }
        if self._scheme == "rediss":
            options["ssl"] = True
        sentinel: Any = Sentinel(self._sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        try:
            host, port = await sentinel.discover_master(self._service)
        except MasterNotFoundError as error:
            silent = str(error).count("ConnectionError") + str(error).count("TimeoutError")
            detail = f"{silent} of {len(self._sentinels)} did not answer"
            raise RedisConnectionError(f"no Sentinel knows a primary of {self._service!r} ({detail})") from None
        finally:
            await sentinel.aclose()
        return self._at(host, port)

    def moved(self, error: MovedError) -> bool:
        """Note where a cluster says that the keys are. False: it does not say."""
        host: str = error.host or urlsplit(self._moved_to or self.url).hostname or ""
        if not host:
            return False
        self._moved_to = self._at(host, error.port)
        log.info("cluster has the keys of this fleet elsewhere", store=self.shown, moved_to=f"{host}:{error.port}")
        return True

    def forget(self) -> None:
        """Where the keys were is in trouble: begin at the URL again."""
        self._moved_to = None

    def _at(self, host: str, port: int) -> str:
        scheme = "rediss" if self._scheme == "rediss" else "redis"
        path = "/" if self._scheme == "unix" else self._path
        query = "" if self._scheme == "unix" else self._query
        place = f"[{host}]" if ":" in host else host
        return f"{scheme}://{self._user}{place}:{port}{path}" + (f"?{query}" if query else "")
