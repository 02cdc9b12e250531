"""A scripted engine behind a real gate, and the way through it: what tests of the gate and of its dialing share."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from proxy.endpoint import Endpoint, Gate
from proxy.gate import GateListener
from proxy.gate_client import GateClient
from proxy.listener import open_sockets
from proxy.relay import ConnectionPool
from tests.certificates import Certificates
from tests.proxy.relay.rig import Rig, ScriptedEngine

SECRET = "0123456789abcdef-the-boxes-secret"


class Backends:
    """The backends of one box by name."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}

    def endpoint(self, backend_id: str) -> Endpoint:
        return self.endpoints[backend_id]


class Gated:
    """One box: its gate, with `gpu0` behind it."""

    def __init__(self, gate: GateListener, backends: Backends, port: int, certificates: Certificates | None) -> None:
        self.gate = gate
        self.backends = backends
        self.port = port
        self.certificates = certificates

    def endpoint(self, backend: str = "gpu0", **changes: Any) -> Endpoint:
        """The backend as another box knows it."""
        way = Gate("127.0.0.1", self.port, backend, tls=self.certificates is not None)
        return Endpoint(host="told-by-the-gate", gate=msgspec.structs.replace(way, **changes))

    def client(self, secret: str = SECRET) -> GateClient:
        """Another box."""
        return GateClient(secret, self.certificates.ca if self.certificates else None)

    def pool(self, **options: Any) -> ConnectionPool:
        """Another box's connections to `gpu0`."""
        return ConnectionPool(self.endpoint(), self.client(), **options)


@contextlib.asynccontextmanager
async def gated(
    engine: Endpoint | None, certificates: Certificates | None = None, **options: Any
) -> AsyncIterator[Gated]:
    """Run a gate on a free port; `options` are those of `GateListener`."""
    backends = Backends()
    if engine is not None:
        backends.endpoints["gpu0"] = engine
    files: dict[str, Any] = {}
    if certificates is not None:
        files = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    gate = GateListener(backends, SECRET, box="box-a", **files, **options)
    sockets: list[socket.socket] = open_sockets("127.0.0.1:0", [])
    port = sockets[0].getsockname()[1]
    await gate.start(sockets)
    try:
        yield Gated(gate, backends, port, certificates)
    finally:
        await gate.close()


@contextlib.asynccontextmanager
async def gated_rig(certificates: Certificates | None, *, unix: bool = False) -> AsyncIterator[tuple[Rig, Gated]]:
    """The relay's rig with a gate between its pool and its engine."""
    async with Rig() as rig:
        if unix:
            await rig.engine.stop()
            await rig.engine.start(unix=True)
        async with gated(rig.engine.endpoint, certificates) as box:
            rig.pool.close()
            rig.pool = box.pool(sweep_interval_s=0.02)
            yield rig, box


__all__ = ["SECRET", "Backends", "Gated", "ScriptedEngine", "gated", "gated_rig"]
