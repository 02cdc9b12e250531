"""A gate, and one question through a gate, as programs of their own: what runs inside the boxes of a test.

python -m tests.gate_program open HOST:PORT ENGINE_URL [CERT KEY]
python -m tests.gate_program ask HOST:PORT PATH BODY [CA]
"""

import asyncio
import sys
from pathlib import Path

from proxy.endpoint import Endpoint, Gate, parse_endpoint
from proxy.gate import GateListener
from proxy.gate_client import GateClient
from proxy.listen_address import parse_listen
from proxy.listener import open_sockets
from proxy.relay import AttemptError, Collector, ConnectionPool, Outgoing, exchange

SECRET = "0123456789abcdef-between-namespaces"


class _One:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def endpoint(self, backend_id: str) -> Endpoint:
        if backend_id != "gpu0":
            raise LookupError(backend_id)
        return self._endpoint


async def keep_open(listen: str, engine: str, cert: str = "", key: str = "") -> None:
    files = (Path(cert), Path(key)) if cert else (None, None)
    gate = GateListener(_One(parse_endpoint(engine)), SECRET, box="box-a", tls_cert=files[0], tls_key=files[1])
    await gate.start(open_sockets(listen, []))
    print("open", flush=True)
    await asyncio.Event().wait()


async def ask(gate: str, path: str, body: str, ca: str = "") -> None:
    place = parse_listen(gate)
    endpoint = Endpoint(host="far", gate=Gate(place.host, place.port, "gpu0", tls=bool(ca)))
    pool = ConnectionPool(endpoint, GateClient(SECRET, Path(ca) if ca else None))
    collector = Collector()
    outgoing = Outgoing("POST" if body else "GET", path, [], body.encode())
    try:
        await exchange(pool, outgoing, collector, on_first_byte=lambda: None, headers=[])
    except AttemptError as error:
        print(error)
    else:
        print(collector.status, collector.body.decode())
    pool.close()


if __name__ == "__main__":
    command = keep_open if sys.argv[1] == "open" else ask
    asyncio.run(command(*sys.argv[2:]))
