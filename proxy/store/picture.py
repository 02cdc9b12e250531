"""Keeps the picture of what a proxy has learned, on a connection of its own: no call waits behind some MiB."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from redis.exceptions import RedisError

from proxy.store.keys import PICTURE_MAX_BYTES, PICTURE_TTL_MS
from proxy.store.places import Places
from proxy.store.trouble import trouble_of
from proxy.store.wire import Wire, WireBroken

log = structlog.get_logger("slotgate.store")

TIMEOUT_S = 10.0
"""For some MiB over a slow network."""
POSITION_BYTES = 8


async def save(places: Places, key: str, payload: bytes, at: int) -> bool:
    """Keep a picture that includes the log up to `at`. False: too large, or the store is in trouble (both logged)."""
    if len(payload) > PICTURE_MAX_BYTES:
        log.warning("picture not saved: too large", size_bytes=len(payload), most_bytes=PICTURE_MAX_BYTES)
        return False
    value = at.to_bytes(POSITION_BYTES, "big") + payload
    try:
        async with _wire(places) as wire:
            await wire.call(("SET", key, value, "PX", PICTURE_TTL_MS))
    except (RedisError, OSError, WireBroken) as error:
        log.info("picture not saved", detail=trouble_of(error.__cause__ or error).detail)
        return False
    return True


async def load(places: Places, key: str) -> tuple[bytes, int] | None:
    """The picture kept last and the position that it includes; None: there is none, or the store is in trouble."""
    try:
        async with _wire(places) as wire:
            value: bytes | None = await wire.call(("GET", key))
    except (RedisError, OSError, WireBroken) as error:
        log.info("picture not loaded", detail=trouble_of(error.__cause__ or error).detail)
        return None
    if value is None or len(value) < POSITION_BYTES:
        return None
    return value[POSITION_BYTES:], int.from_bytes(value[:POSITION_BYTES], "big")


@asynccontextmanager
async def _wire(places: Places) -> AsyncIterator[Wire]:
    wire = Wire(await places.find(), call_timeout_s=TIMEOUT_S, on_broken=lambda _: None)
    try:
        await wire.open()
        yield wire
    finally:
        await wire.close()
