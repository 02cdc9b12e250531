"""Making models out of others (`/api/create`): layers taken over, replaced and added. Must not know HTTP."""

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from proxy.emulated.ollama_names import Name
from proxy.emulated.ollama_store import MEDIA, Layer, Manifest, Store, StoredModel, config_of
from proxy.emulated.options import EmulatedModel

_TEXTS = ("template", "system", "license")
"""In the order in which Ollama sets them (create.go)."""


def create(
    store: Store, name: Name, fields: dict[str, Any], base: StoredModel | None, weights: str
) -> Iterator[dict[str, Any]]:
    """The records of making a model.

    Args:
        store: in which.
        name: the new one.
        fields: the request: template, system, license, parameters, messages.
        base: from which (FROM); None: from `weights`.
        weights: the digest of an uploaded blob, which is in the store.
    """
    told: list[str] = []
    if base is not None:
        facts, layers = base.facts, list(base.manifest.layers)
        told = [_existing(layer) for layer in layers]
    else:
        size = store.files.size(f"blobs/{weights.replace(':', '-')}") or 0
        facts, layers = EmulatedModel(name.short, size_bytes=size), [Layer(f"{MEDIA}model", weights, size)]
        yield {"status": "parsing GGUF"}
        told = [_existing(layers[0])]
    replaced = [(kind, fields[kind]) for kind in _TEXTS if fields.get(kind)]
    if fields.get("messages"):
        replaced.append(("messages", orjson.dumps(fields["messages"]).decode()))
    settings = {**(base.settings if base is not None else {}), **(fields.get("parameters") or {})}
    if settings:
        replaced.append(("params", orjson.dumps(settings).decode()))
    for kind, text in replaced:
        whole = "\n".join(text) if isinstance(text, list) else str(text)
        kept = [number for number, layer in enumerate(layers) if layer.media_type != f"{MEDIA}{kind}"]
        layers, told = [layers[number] for number in kept], [told[number] for number in kept]
        layer, known = store.layer(kind, whole.encode())
        layers.append(layer)
        told.append(_existing(layer) if known else f"creating new layer {layer.digest}")
    for status in told:
        yield {"status": status}
    config, _ = store.layer("", config_of(msgspec.structs.replace(facts, name=name.short)))
    yield {"status": "writing manifest"}
    kind = "application/vnd.docker.container.image.v1+json"
    store.write(name, Manifest(msgspec.structs.replace(config, media_type=kind), layers))
    yield {"status": "success"}


def _existing(layer: Layer) -> str:
    return f"using existing layer {layer.digest}"
