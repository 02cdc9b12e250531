"""The model store of an emulated Ollama, laid out as the real one: manifests that name blobs by their digests.

Several engines may share a directory. Everything is read anew for each request; only what did not change is remembered.
Must not know loads, progress or HTTP. Weights are sparse files: their digest is made from a text, not from content.
"""

import hashlib
import time
from typing import Any

import msgspec
import orjson

from proxy.emulated.ollama_files import Files
from proxy.emulated.ollama_names import Name, name_of_path, read_name
from proxy.emulated.options import EmulatedModel

TEMPLATE = "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
STOP = ["<|im_end|>"]
MEDIA = "application/vnd.ollama.image."
_PARTIAL_KEPT_S = 3600
"""Ollama's start deletes partial downloads that are older (images.go)."""


class Layer(msgspec.Struct, frozen=True, rename="camel"):
    """One blob of a model."""

    media_type: str
    digest: str
    """`sha256:…`"""
    size: int


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a name stands for."""

    config: Layer
    layers: list[Layer]
    schema_version: int = 2
    media_type: str = "application/vnd.docker.distribution.manifest.v2+json"

    @property
    def blobs(self) -> list[Layer]:
        """Everything it needs, in the order in which it is downloaded."""
        return [*self.layers, self.config]


class StoredModel(msgspec.Struct, frozen=True):
    """One model of the store, read."""

    name: Name
    facts: EmulatedModel
    digest: str
    """Of the manifest, in hex: what the APIs call the model's digest."""
    blob: str
    """`sha256:…` of the weights: what a runner is known by."""
    manifest: Manifest
    settings: dict[str, Any]
    """PARAMETERs of the Modelfile."""
    system: str
    template: str
    modified_ns: int

    @property
    def tagged(self) -> str:
        """The name as the APIs show it."""
        return self.name.short

    @property
    def size_bytes(self) -> int:
        """All blobs together."""
        return sum(layer.size for layer in self.manifest.blobs)


def sha256(data: bytes) -> str:
    """A digest as Ollama writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def weights_digest(model: EmulatedModel) -> str:
    """The digest of an emulated model's weights."""
    return sha256(f"emulated weights of {model.weights or model.name}, {model.size_bytes} bytes".encode())


def blob_path(digest: str) -> str:
    """Where a blob lies in a store."""
    return f"blobs/{digest.replace(':', '-')}"


class Store:
    """A model store."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._read: dict[str, tuple[tuple[int, int], StoredModel]] = {}

    # -- blobs

    def has(self, digest: str) -> bool:
        """Whether a blob is there."""
        return self.files.size(blob_path(digest)) is not None

    def place(self, digest: str) -> str:
        """The path of a blob as Ollama tells it."""
        return f"{self.files.root}/{blob_path(digest)}"

    def put_blob(self, data: bytes) -> tuple[str, bool]:
        """Store a small blob: its digest, and whether it was there already."""
        digest = sha256(data)
        known = self.has(digest)
        if not known:
            self.files.write(blob_path(digest), data)
        return digest, known

    def layer(self, kind: str, data: bytes) -> tuple[Layer, bool]:
        """A layer with this content, stored; and whether its blob was there already."""
        digest, known = self.put_blob(data)
        return Layer(MEDIA + kind, digest, len(data)), known

    # -- models

    def names(self) -> list[Name]:
        """All, the newest first."""
        found = [(self.files.stamp(path) or (0, 0), path) for path in self.files.names("manifests")]
        names = [name_of_path(path) for _, path in sorted(found, key=lambda entry: -entry[0][0])]
        return [name for name in names if name is not None]

    def models(self) -> list[StoredModel]:
        """All that can be read, the newest first."""
        found = [self._load(name) for name in self.names()]
        return [model for model in found if model is not None]

    def find(self, text: str) -> StoredModel | None:
        """A model by its name, with or without the tag, in any case."""
        name = read_name(text.removesuffix(":local"))
        if name is None:
            return None
        if (found := self._load(name)) is not None:
            return found
        full = name.full.lower()
        other = next((one for one in self.names() if one.full.lower() == full), None)
        return self._load(other) if other is not None else None

    def write(self, name: Name, manifest: Manifest) -> None:
        """Make a name stand for something."""
        self.files.write(name.path, msgspec.json.encode(manifest))

    def provide(self, model: EmulatedModel) -> None:
        """Have a model, as if it had been pulled long ago.

        Raises:
            ValueError: its name is none.
        """
        name = read_name(model.name)
        if name is None:
            raise ValueError(f"{model.name!r} is no name of a model")
        manifest, contents = describe(model)
        for layer in manifest.blobs:
            if not self.has(layer.digest):
                if layer.digest in contents:
                    self.files.write(blob_path(layer.digest), contents[layer.digest])
                else:
                    self.files.stretch(blob_path(layer.digest), layer.size)
        if self.files.read(name.path) != msgspec.json.encode(manifest):
            self.write(name, manifest)

    def copy(self, model: StoredModel, name: Name) -> None:
        """Let another name stand for the same."""
        self.write(name, model.manifest)

    def remove(self, model: StoredModel) -> None:
        """Delete a name, and the blobs that no other needs."""
        self.files.remove(model.name.path)
        self.drop_unused(model.manifest.blobs)

    def drop_unused(self, layers: list[Layer]) -> None:
        """Delete these blobs as far as no manifest names them."""
        used = self._used()
        for layer in layers:
            if layer.digest not in used:
                self.files.remove(blob_path(layer.digest))

    def prune(self) -> None:
        """What Ollama's start does: delete blobs without a manifest, and old partial downloads."""
        used = {blob_path(digest) for digest in self._used()}
        long_ago = time.time_ns() - _PARTIAL_KEPT_S * 10**9
        for path in self.files.names("blobs"):
            partial = "-partial" in path
            stamp = self.files.stamp(path)
            if path not in used and (not partial or (stamp is not None and stamp[0] < long_ago)):
                self.files.remove(path)

    def _used(self) -> set[str]:
        manifests = [self._manifest(name) for name in self.names()]
        return {layer.digest for manifest in manifests if manifest is not None for layer in manifest.blobs}

    def _manifest(self, name: Name) -> Manifest | None:
        raw = self.files.read(name.path)
        try:
            return msgspec.json.decode(raw, type=Manifest) if raw is not None else None
        except msgspec.DecodeError:
            return None

    def _load(self, name: Name) -> StoredModel | None:
        stamp = self.files.stamp(name.path)
        if stamp is None:
            self._read.pop(name.path, None)
            return None
        known = self._read.get(name.path)
        if known is not None and known[0] == stamp:
            return known[1]
        raw, manifest = self.files.read(name.path), self._manifest(name)
        if raw is None or manifest is None:
            return None
        model = self._assemble(name, manifest, hashlib.sha256(raw).hexdigest(), stamp[0])
        if model is not None:
            self._read[name.path] = stamp, model
        return model

    def _assemble(self, name: Name, manifest: Manifest, digest: str, modified_ns: int) -> StoredModel | None:
        texts: dict[str, bytes] = {}
        blob = ""
        for layer in manifest.layers:
            kind = layer.media_type.removeprefix(MEDIA)
            if kind == "model":
                blob = layer.digest
            else:
                texts[kind] = self.files.read(blob_path(layer.digest)) or b""
        config = self.files.read(blob_path(manifest.config.digest))
        if config is None or not blob:
            return None
        fields = orjson.loads(config).get("emulated") or {}
        facts = msgspec.convert(fields | {"name": name.short}, EmulatedModel)
        return StoredModel(
            name=name,
            facts=facts,
            digest=digest,
            blob=blob,
            manifest=manifest,
            settings=orjson.loads(texts.get("params") or b"{}"),
            system=texts.get("system", b"").decode(),
            template=texts.get("template", b"").decode(),
            modified_ns=modified_ns,
        )


def config_of(model: EmulatedModel) -> bytes:
    """The config blob: what Ollama writes of a model, and the facts of an emulated one."""
    facts = {name: value for name, value in msgspec.to_builtins(model).items() if name not in {"name", "settings"}}
    return orjson.dumps(
        {
            "model_format": "gguf",
            "model_family": model.family,
            "model_families": [model.family],
            "file_type": model.quantization,
            "architecture": "amd64",
            "os": "linux",
            "emulated": facts,
        }
    )


def describe(model: EmulatedModel) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest of an emulated model, and the content of its small blobs by digest."""
    config, template = config_of(model), TEMPLATE.encode()
    settings = orjson.dumps({"stop": STOP, **model.settings})
    contents = {sha256(data): data for data in (config, template, settings)}
    layers = [
        Layer(f"{MEDIA}model", weights_digest(model), model.size_bytes),
        Layer(f"{MEDIA}template", sha256(template), len(template)),
        Layer(f"{MEDIA}params", sha256(settings), len(settings)),
    ]
    kind = "application/vnd.docker.container.image.v1+json"
    return Manifest(Layer(kind, sha256(config), len(config)), layers), contents
