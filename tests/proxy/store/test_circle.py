"""Without a circle nobody is told."""

import asyncio

from proxy.store.circle import Circle, NoCircle


async def test_nobody_can_be_told() -> None:
    circle: Circle = NoCircle()
    circle.tell(b"news")
    async with asyncio.timeout(10.0):
        await circle.formed(asyncio.get_running_loop().time() + 1000.0)
    assert not circle.whole
    assert not circle.forming
