"""Pulling from and pushing to a registry that is not there: Ollama's words, its partial files, and what goes wrong.

Downloads of one process are shared. Those of two processes that share a store are not: both write to the same partial
file, and the digest of what comes out is wrong (download.go). Must not know HTTP.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson

from proxy.emulated.ollama_names import Name
from proxy.emulated.ollama_store import Layer, Manifest, Store, blob_path, describe
from proxy.emulated.options import EmulatedModel
from proxy.tasks import Tasks

_TICK_S = 0.06
"""How often Ollama tells progress (download.go)."""
_HOST = "https://registry.ollama.ai/v2"
_NO_NETWORK = "dial tcp: lookup registry.ollama.ai: no such host"

Record = dict[str, Any]


class RegistryError(Exception):
    """What Ollama says in the stream; the message is its text. `status`: if nothing was said before."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class Download:
    """One blob on its way into the store, for all of this process who want it."""

    def __init__(self, store: Store, layer: Layer, content: bytes | None, bytes_per_s: float) -> None:
        self.layer, self.wanted_by = layer, 0
        self.completed = 0
        self.problem = ""
        self.task: asyncio.Task[None] | None = None
        self._store, self._content, self._bytes_per_s = store, content, bytes_per_s
        self._mark = secrets.token_hex(8)
        """Whose the bytes in the partial file are."""

    async def run(self, fails_after: int | None, message: str) -> None:
        """Go on from what is there, to the end."""
        files, path = self._store.files, blob_path(self.layer.digest)
        partial = f"{path}-partial-0"
        found = orjson.loads(files.read(partial) or b"{}")
        self.completed = min(int(found.get("Completed", 0)), self.layer.size)
        mixed = bool(found.get("Mixed"))
        files.stretch(f"{path}-partial", self.layer.size)
        self._note(partial, mixed=mixed)
        loop = asyncio.get_running_loop()
        last = loop.time()
        while self.completed < self.layer.size:
            await asyncio.sleep(_TICK_S if self._bytes_per_s < math.inf else 0)
            now = loop.time()
            came = self._bytes_per_s * (now - last) if self._bytes_per_s < math.inf else self.layer.size
            last = now
            there = orjson.loads(files.read(partial) or b"{}")
            mixed = mixed or bool(there.get("Mixed")) or there.get("Mark") != self._mark
            self.completed = min(self.layer.size, self.completed + int(came))
            if fails_after is not None and self.completed > fails_after:
                self.completed = min(self.completed, fails_after)
                self._note(partial, mixed=mixed)
                self.problem = message
                return
            self._note(partial, mixed=mixed)
        files.remove(partial)
        if mixed or not files.rename(f"{path}-partial", path):
            files.remove(f"{path}-partial")
            wrong = f"sha256:{secrets.token_hex(32)}"
            self.problem = f"digest mismatch, file must be downloaded again: want {self.layer.digest}, got {wrong}"
        elif self._content is not None:
            files.write(path, self._content)

    def _note(self, partial: str, *, mixed: bool) -> None:
        note = {"N": 0, "Offset": 0, "Size": self.layer.size, "Completed": self.completed, "Mark": self._mark}
        self._store.files.write(partial, orjson.dumps(note | ({"Mixed": True} if mixed else {})))


class Registry:
    """The pretended registry, seen from one engine.

    Args:
        store: into which models are pulled.
        models: what there is; none: there is no network.
        bytes_per_s: how fast blobs come.
        prunes: whether layers of a name's former manifest are deleted once nobody needs them.
    """

    def __init__(
        self, store: Store, models: tuple[EmulatedModel, ...], bytes_per_s: float, *, prunes: bool = True
    ) -> None:
        self._store, self._bytes_per_s, self._prunes = store, bytes_per_s, prunes
        self._offers = {model.tagged: describe(model) for model in models}
        self._downloads: dict[str, Download] = {}
        self._tasks = Tasks()

    async def close(self) -> None:
        """Stop all downloads."""
        await self._tasks.close()

    async def pull(self, name: Name, fails_after: int | None = None, message: str = "") -> AsyncGenerator[Record, None]:
        """The records of a pull, as they come. Whoever stops listening stops it, unless others want the same blob.

        Args:
            name: which model.
            fails_after: bytes of a blob after which its download fails; None: it does not.
            message: of that failure.

        Raises:
            RegistryError: it failed.
        """
        yield {"status": "pulling manifest"}
        manifest, contents = self._offer(name)
        former = self._store.find(name.full)
        for layer in manifest.blobs:
            async with aclosing(self._blob(layer, contents.get(layer.digest), fails_after, message)) as records:
                async for record in records:
                    yield record
        yield {"status": "verifying sha256 digest"}
        yield {"status": "writing manifest"}
        self._store.write(name, manifest)
        if former is not None and self._prunes:
            kept = {layer.digest for layer in manifest.blobs}
            unused = [layer for layer in former.manifest.blobs if layer.digest not in kept]
            if unused:
                yield {"status": "removing unused layers"}
                self._store.drop_unused(unused)
        yield {"status": "success"}

    async def push(self, name: Name, manifest: Manifest) -> AsyncGenerator[Record, None]:
        """The records of a push.

        Raises:
            RegistryError: it failed.
        """
        yield {"status": "retrieving manifest"}
        if not self._offers:
            where = f"{_HOST}/{name.namespace}/{name.model}/blobs/{manifest.blobs[0].digest}"
            raise RegistryError(f'Head "{where}": {_NO_NETWORK}')
        known = {layer.digest for offer, _ in self._offers.values() for layer in offer.blobs}
        for layer in manifest.blobs:
            told = {"status": f"pushing {layer.digest[7:19]}", "digest": layer.digest, "total": layer.size}
            done = 0 if layer.digest not in known else layer.size
            while done < layer.size:
                yield told | ({"completed": done} if done else {})
                step = self._bytes_per_s * _TICK_S
                await asyncio.sleep(_TICK_S if step < math.inf else 0)
                done = layer.size if step == math.inf else min(layer.size, done + int(step))
            yield told | {"completed": layer.size}
        yield {"status": "pushing manifest"}
        contents = {layer.digest: self._store.files.read(blob_path(layer.digest)) or b"" for layer in manifest.blobs}
        small = {digest: data for digest, data in contents.items() if data}
        self._offers[name.short] = manifest, small
        yield {"status": "success"}

    def _offer(self, name: Name) -> tuple[Manifest, dict[str, bytes]]:
        if not self._offers:
            where = f"{_HOST}/{name.namespace}/{name.model}/manifests/{name.tag}"
            raise RegistryError(f'pull model manifest: Get "{where}": {_NO_NETWORK}')
        offer = self._offers.get(name.short)
        if offer is None:
            raise RegistryError("pull model manifest: file does not exist")
        return offer

    async def _blob(
        self, layer: Layer, content: bytes | None, fails_after: int | None, message: str
    ) -> AsyncGenerator[Record, None]:
        told: Record = {"status": f"pulling {layer.digest[7:19]}", "digest": layer.digest, "total": layer.size}
        if self._store.has(layer.digest):
            yield told | {"completed": layer.size}
            return
        download = self._downloads.get(layer.digest)
        if download is None:
            download = self._downloads[layer.digest] = Download(self._store, layer, content, self._bytes_per_s)
            download.task = self._tasks.start(download.run(fails_after, message), "emulated download")
        download.wanted_by += 1
        try:
            yield told
            while download.task is not None and not download.task.done():
                await asyncio.wait([download.task], timeout=_TICK_S)
                yield told | ({"completed": download.completed} if download.completed else {})
            if download.problem:
                raise RegistryError(download.problem)
            if download.task is None or download.task.cancelled():
                raise RegistryError("context canceled")
        finally:
            download.wanted_by -= 1
            if not download.wanted_by:
                self._downloads.pop(layer.digest, None)
                if download.task is not None:
                    download.task.cancel()
