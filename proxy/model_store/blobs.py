"""Blobs that clients upload for /api/create: asked for at, and streamed to, every model store. Owns no more than that.

No lock stands before them: an Ollama writes each upload to a file of a name of its own and renames it when its digest
is right, so two uploads do each other no harm. Nothing of a blob is kept here: the slowest Ollama sets the pace.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import structlog

from proxy.dialects import ClientError
from proxy.model_store.asking import Answered, Upload, ask
from proxy.model_store.grouping import ModelStore
from proxy.model_store.models import Models
from proxy.model_store.progress import error_of
from proxy.model_store.single import Connections
from proxy.relay import AttemptError

log = structlog.get_logger("slotgate.model-store")

T = TypeVar("T")

HEAD_STALL_S = 30.0
"""An Ollama only looks whether a file is there."""


class Blobs:
    """Uploads to all model stores at once."""

    def __init__(self, models: Models, connections: Connections) -> None:
        self._models = models
        self._connections = connections

    async def exists(self, digest: str) -> bool:
        """Whether all model stores have it.

        Raises:
            ClientError: one of them cannot say.
        """
        path = f"/api/blobs/{digest}"
        return all(await asyncio.gather(*(self._has(store, path) for store in self._models.stores())))

    async def upload(self, digest: str, length: int | None, pieces: AsyncIterator[bytes]) -> int:
        """Send a blob to all; returns the status that Ollama gives: 201, or 200 where all had it.

        Args:
            digest: checked.
            length: of the blob, in bytes; None: not known.
            pieces: of it, read as fast as the slowest takes them.

        Raises:
            ClientError: one of them did not take it. The others may have it now, which does no harm.
            ConnectionError: the client broke off.
        """
        path = f"/api/blobs/{digest}"
        backends = [self._backend(store) for store in self._models.stores()]
        ways = {name: Upload(self._connections.of(name), path, length) for name in backends}
        try:
            await self._all({name: way.begin() for name, way in ways.items()})
            async for piece in pieces:
                await self._all({name: way.write(piece) for name, way in ways.items()})
            answers = await self._all({name: way.end() for name, way in ways.items()})
        finally:
            for way in ways.values():
                way.close()
        for name, answered in answers.items():
            if answered.status >= 300:
                raise self._refused(answered, name, several=len(ways) > 1)
        return 200 if all(answered.status == 200 for answered in answers.values()) else 201

    def _backend(self, store: ModelStore) -> str:
        usable = self._models.usable(store)
        if not usable:
            raise ClientError(503, f"no backend of the model store answers: {store.shown}")
        return usable[0]

    async def _has(self, store: ModelStore, path: str) -> bool:
        backend = self._backend(store)
        try:
            answered = await ask(self._connections.of(backend), "HEAD", path, stall_s=HEAD_STALL_S)
        except AttemptError as error:
            raise ClientError(502, f"backend {backend} did not answer: {error.detail or error}") from None
        return answered.status < 300

    @staticmethod
    async def _all(steps: dict[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
        """The same step of all uploads, each as fast as it can."""
        results = await asyncio.gather(*steps.values(), return_exceptions=True)
        done: dict[str, T] = {}
        for name, result in zip(steps, results, strict=True):
            if isinstance(result, AttemptError):
                log.warning("upload of a blob failed", backend=name, error=str(result))
                raise ClientError(502, f"backend {name} did not take the blob: {result.detail or result}")
            if isinstance(result, BaseException):
                raise result
            done[name] = result
        return done

    @staticmethod
    def _refused(answered: Answered, backend: str, *, several: bool) -> ClientError:
        text = error_of(answered.body) or f"status {answered.status}"
        return ClientError(answered.status, f"{backend}: {text}" if several else text)
