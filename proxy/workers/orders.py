"""What the main process and a worker say to each other: JSON lines over a socket pair. Owns the shapes only.

The worker ends when the other end of its socket closes, so none outlives the main process. Both run the same version
unless somebody upgraded slotgate's files while it runs; then a worker that does not understand its orders ends, and
the old ones go on until the service is restarted.
"""

from typing import Any

import msgspec


class Orders(msgspec.Struct, tag="orders"):
    """To a worker, first of all: everything that it needs to know."""

    number: int
    """From 1 up."""
    config: dict[str, Any]
    """The options that were given, with the store's address filled in."""
    state_dir: str
    admin_socket: str
    sockets: list[list[int]]
    """File descriptors of the listening sockets, in groups; see `listener.open_groups`."""
    group: int
    """The group that it accepts from."""
    ready: list[str] = []
    """Backends that can take requests, as the main process sees it: a worker that sees less is not warm yet."""


class Accept(msgspec.Struct, tag="accept"):
    """To a worker: accept from these groups beside its own, since their workers are not there."""

    groups: list[int]


class Reload(msgspec.Struct, tag="reload"):
    """To a worker: the configuration is another one; only what can change while it runs is taken over."""

    config: dict[str, Any]


class Retire(msgspec.Struct, tag="retire"):
    """To a worker: accept nothing more, and end when the last client has left, or after this time."""

    within_s: float


class Ready(msgspec.Struct, tag="ready"):
    """From a worker: it accepts connections."""

    warm: bool
    """It sees all backends that it should; False: it waited for that in vain."""


class Alive(msgspec.Struct, tag="alive"):
    """From a worker, every second: how it is."""

    connections: int = 0
    running: int = 0
    """Seats taken by its requests."""
    waiting: int = 0
    requests: int = 0
    """Requests that are being answered, those included that wait."""
    served: int = 0
    """Requests that ended."""


class Leaving(msgspec.Struct, tag="leaving"):
    """From a worker: it accepts nothing more and drains, because somebody told it to end."""


ToWorker = Orders | Accept | Reload | Retire
FromWorker = Ready | Alive | Leaving

to_worker = msgspec.json.Decoder(ToWorker)
from_worker = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    """One message as it is sent."""
    return msgspec.json.encode(message) + b"\n"
