"""Blobs on their way to all model stores. Against scripted engines."""

from collections.abc import AsyncIterator

import pytest

from proxy.dialects import ClientError
from proxy.model_store.blobs import Blobs
from proxy.model_store.grouping import ModelStore
from proxy.relay import ConnectionPool
from tests.proxy.relay.rig import Call, Script, ScriptedEngine, sized

DIGEST = f"sha256:{'a' * 64}"


class Scene:
    """Two model stores, one engine each. Stands in for `Models` and the pools."""

    def __init__(self) -> None:
        self.engines = {"a": ScriptedEngine(answering("201 Created")), "b": ScriptedEngine(answering("201 Created"))}
        self.up = {"a", "b"}
        self._pools: dict[str, ConnectionPool] = {}
        self.blobs = Blobs(self, self)  # type: ignore[arg-type]

    def stores(self) -> tuple[ModelStore, ...]:
        return tuple(ModelStore(name, (name,)) for name in self.engines)

    def usable(self, store: ModelStore) -> list[str]:
        return [name for name in store.backends if name in self.up]

    def of(self, backend_id: str) -> ConnectionPool:
        return self._pools.setdefault(backend_id, ConnectionPool(self.engines[backend_id].endpoint))

    async def upload(self, *pieces: bytes) -> int:
        async def each() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return await self.blobs.upload(DIGEST, sum(map(len, pieces)), each())

    def answer(self, name: str, status: str, body: bytes = b"") -> None:
        self.engines[name].script = answering(status, body)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def answering(status: str, body: bytes = b"") -> Script:
    async def script(call: Call) -> None:
        if call.head.startswith(b"HEAD"):
            call.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)))
        else:
            call.write(sized(body, status))

    return script


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    for engine in scene.engines.values():
        await engine.start()
    yield scene
    scene.close()
    for engine in scene.engines.values():
        await engine.stop()


async def test_all_get_it(scene: Scene) -> None:
    assert await scene.upload(b"one", b"two") == 201
    assert [engine.calls[0].body for engine in scene.engines.values()] == [b"onetwo", b"onetwo"]


async def test_created_unless_all_had_it(scene: Scene) -> None:
    scene.answer("a", "200 OK")
    assert await scene.upload(b"x") == 201
    scene.answer("b", "200 OK")
    assert await scene.upload(b"x") == 200


async def test_it_is_there_if_all_have_it(scene: Scene) -> None:
    scene.answer("a", "200 OK")
    scene.answer("b", "404 Not Found", b'{"error":"x"}')
    assert not await scene.blobs.exists(DIGEST)
    scene.answer("b", "200 OK")
    assert await scene.blobs.exists(DIGEST)


async def test_a_refusal_is_told_with_its_backend(scene: Scene) -> None:
    scene.answer("b", "400 Bad Request", b'{"error":"digest mismatch"}')
    with pytest.raises(ClientError) as refused:
        await scene.upload(b"x")
    assert (refused.value.status, refused.value.message) == (400, "b: digest mismatch")


async def test_one_that_breaks_ends_it_for_all(scene: Scene) -> None:
    async def breaks(call: Call) -> None:
        call.reset()

    scene.engines["b"].script = breaks
    with pytest.raises(ClientError, match="backend b did not take the blob") as broken:
        await scene.upload(b"x")
    assert broken.value.status == 502


async def test_a_client_that_breaks_off_is_told_to_nobody_as_an_end(scene: Scene) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionError("left")

    with pytest.raises(ConnectionError):
        await scene.blobs.upload(DIGEST, 100, pieces())
    assert all(engine.calls == [] for engine in scene.engines.values())  # no body came whole


async def test_nobody_to_ask(scene: Scene) -> None:
    scene.up = {"a"}
    for asked in (scene.blobs.exists(DIGEST), scene.upload(b"x")):
        with pytest.raises(ClientError) as refused:
            await asked
        assert refused.value.status == 503
