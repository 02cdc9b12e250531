from typing import Any

import orjson

from proxy.emulated.ollama_create import create
from proxy.emulated.ollama_names import Name, read_name
from proxy.emulated.ollama_store import Store, sha256
from proxy.emulated.options import EmulatedModel
from tests.proxy.emulated.support import found, make_store


def named(text: str) -> Name:
    name = read_name(text)
    assert name is not None
    return name


def made(store: Store, name: str, base: str, **fields: Any) -> list[str]:
    return [record["status"] for record in create(store, named(name), fields, found(store, base), "")]


def test_layers_are_taken_over_replaced_and_added() -> None:
    store = make_store(EmulatedModel("a", settings={"num_ctx": 4096, "seed": 1}))
    told = made(store, "b", "a", system="Be brief.", parameters={"num_ctx": 1024})
    assert [status.partition(" sha256:")[0] for status in told] == [
        "using existing layer",  # weights
        "using existing layer",  # template
        "creating new layer",  # system
        "creating new layer",  # parameters, merged
        "writing manifest",
        "success",
    ]
    made_of = found(store, "b")
    assert (made_of.blob, made_of.system) == (found(store, "a").blob, "Be brief.")
    assert made_of.settings == {"stop": ["<|im_end|>"], "num_ctx": 1024, "seed": 1}
    assert made_of.facts.tagged == "b:latest"
    assert made_of.facts.capabilities == found(store, "a").facts.capabilities


def test_once_made_all_layers_are_there() -> None:
    store = make_store("a")
    made(store, "b", "a", system="x", template="{{ .Prompt }}")
    again = made(store, "c", "a", system="x", template="{{ .Prompt }}")
    assert all(status.startswith("using existing layer") for status in again[:-2])
    assert (found(store, "c").template, found(store, "c").digest) == ("{{ .Prompt }}", found(store, "b").digest)


def test_a_model_of_uploaded_weights() -> None:
    store = make_store()
    digest, _ = store.put_blob(b"GGUF" + b"x" * 96)
    messages = [{"role": "user", "content": "hi"}]
    fields = {"license": ["MIT", "BSD"], "messages": messages}
    told = [record["status"] for record in create(store, named("mine"), fields, None, digest)]
    assert (told[0], told[1]) == ("parsing GGUF", f"using existing layer {digest}")
    mine = found(store, "mine")
    assert (mine.blob, mine.facts.size_bytes) == (digest, 100)
    digests = {layer.media_type.rpartition(".")[2]: layer.digest for layer in mine.manifest.layers}
    assert digests["license"] == sha256(b"MIT\nBSD")
    assert digests["messages"] == sha256(orjson.dumps(messages))
