"""One pool per backend, thrown away with its engine."""

from pathlib import Path

import pytest

from proxy.endpoint import Endpoint, parse_endpoint
from proxy.pools import Pools
from proxy.relay import AttemptError
from tests.proxy.box import box, emulated
from tests.proxy.gated import gated
from tests.proxy.relay.rig import ScriptedEngine


class OneBackend:
    """A fleet of one backend whose address can change."""

    def __init__(self) -> None:
        self.address: Endpoint | None = parse_endpoint("http://127.0.0.1:1")

    def endpoint(self, backend_id: str) -> Endpoint:
        if self.address is None:
            raise LookupError(backend_id)
        return self.address


async def test_a_pool_is_kept_until_the_address_changes() -> None:
    fleet = OneBackend()
    pools = Pools(fleet)
    first = pools.of("gpu0")
    assert pools.of("gpu0") is first
    fleet.address = parse_endpoint("http://127.0.0.1:2")
    assert pools.of("gpu0") is not first
    fleet.address = None
    with pytest.raises(AttemptError, match="gpu0 is not there"):
        pools.of("gpu0")
    pools.close()


async def test_backends_of_other_boxes_are_reached_through_their_gates() -> None:
    engine = ScriptedEngine(lambda call: call.gone())
    await engine.start()
    async with gated(engine.endpoint) as other:
        fleet = OneBackend()
        fleet.address = other.endpoint()
        pools = Pools(fleet, other.client())
        await pools.of("box-a.gpu0").open()
        assert (engine.connections, other.gate.passages) == (1, 1)
        pools.close()
    await engine.stop()


async def test_connections_are_used_again(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        for _ in range(10):
            await running.generate()

        assert running.app.pools.of("gpu0").opened == 1
