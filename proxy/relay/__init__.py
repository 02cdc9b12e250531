"""The relay: moves bytes between clients and engines. Owns sockets and framing; decides nothing about routing.

`Frontend` takes clients in, `check_request` and `read_body` judge what they send, `exchange` makes one attempt at one
backend over its `ConnectionPool` and writes the answer through `Client`, or keeps it in a `Collector`; `Sweeper` closes
what only holds a socket.
"""

from proxy.dialects.contract import Outgoing, ReplyTransform, TruncatedReply, Watch
from proxy.relay.client import Client
from proxy.relay.collector import Collector
from proxy.relay.contract import NO_END_MARK, AttemptError, Exchanged, Framing, Receiver
from proxy.relay.exchange import exchange
from proxy.relay.frontend import ClientConnection, Frontend
from proxy.relay.intake import BodyTooLarge, check_request, read_body
from proxy.relay.pool import ConnectionPool
from proxy.relay.sweeper import Sweeper

__all__ = [
    "NO_END_MARK",
    "AttemptError",
    "BodyTooLarge",
    "Client",
    "ClientConnection",
    "Collector",
    "ConnectionPool",
    "Exchanged",
    "Framing",
    "Frontend",
    "Outgoing",
    "Receiver",
    "ReplyTransform",
    "Sweeper",
    "TruncatedReply",
    "Watch",
    "check_request",
    "exchange",
    "read_body",
]
