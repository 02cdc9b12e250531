import os
from pathlib import Path

import msgspec
import pytest

from proxy.emulated.ollama_files import DirectoryFiles
from proxy.emulated.ollama_names import Name, read_name
from proxy.emulated.ollama_store import Store, blob_path, weights_digest
from proxy.emulated.options import EmulatedModel
from tests.proxy.emulated.support import found, make_store


def named(text: str) -> Name:
    name = read_name(text)
    assert name is not None
    return name


def test_names_have_a_tag_and_no_case() -> None:
    store = make_store("A", "b:7b")
    assert found(store, "A") == found(store, "a:latest") == found(store, "registry.ollama.ai/library/a")
    assert found(store, "b:7B") == found(store, "b:7b:local") == found(store, "B:7b")
    for text in ("a:other", "b", "c", "", "../x"):
        assert store.find(text) is None


def test_a_model_is_what_was_provided() -> None:
    model = EmulatedModel("a", ("embedding",), family="bert", size_bytes=5, settings={"num_ctx": 9})
    stored = found(make_store(model), "a")
    assert msgspec.structs.replace(model, name="a:latest", settings={}) == stored.facts
    assert stored.settings == {"stop": ["<|im_end|>"], "num_ctx": 9}
    assert stored.size_bytes > 5
    with pytest.raises(ValueError, match="no name"):
        make_store("a b")


def test_the_same_weights_are_one_blob() -> None:
    store = make_store(EmulatedModel("a"), EmulatedModel("b", weights="a"), EmulatedModel("c"))
    assert found(store, "a").blob == found(store, "b").blob == weights_digest(EmulatedModel("a"))
    assert found(store, "a").blob != found(store, "c").blob
    assert found(store, "a").digest != found(store, "b").digest


def test_a_copy_is_the_same_and_goes_alone() -> None:
    store = make_store("a")
    store.copy(found(store, "a"), named("copy"))
    copy = found(store, "copy")
    assert (copy.digest, copy.blob, copy.tagged) == (found(store, "a").digest, found(store, "a").blob, "copy:latest")
    store.remove(found(store, "a"))
    assert store.has(copy.blob)
    store.remove(copy)
    assert not store.has(copy.blob)
    assert store.models() == []


def test_a_shared_directory_is_read_anew(tmp_path: Path) -> None:
    one, other = Store(DirectoryFiles(tmp_path)), Store(DirectoryFiles(tmp_path))
    one.provide(EmulatedModel("a"))
    assert other.find("a") is not None
    before = found(one, "a").modified_ns
    other.provide(EmulatedModel("a"))  # is there already
    assert found(one, "a").modified_ns == before
    other.remove(found(other, "a"))
    assert one.find("a") is None
    assert one.place("sha256:1") == f"{tmp_path}/blobs/sha256-1"


def test_broken_manifests_are_passed_over(tmp_path: Path) -> None:
    store = Store(DirectoryFiles(tmp_path))
    store.provide(EmulatedModel("a"))
    store.files.write(named("broken").path, b"{")
    store.files.write("manifests/readme", b"x")
    assert [model.tagged for model in store.models()] == ["a:latest"]
    store.files.remove(blob_path(found(store, "a").manifest.config.digest))
    assert Store(DirectoryFiles(tmp_path)).find("a") is None


def test_the_start_deletes_what_no_model_needs_but_not_what_is_on_its_way(tmp_path: Path) -> None:
    store = Store(DirectoryFiles(tmp_path))
    store.provide(EmulatedModel("a"))
    for name in ("sha256-orphan", "sha256-new-partial", "sha256-old-partial-0"):
        store.files.write(f"blobs/{name}", b"x")
    os.utime(tmp_path / "blobs/sha256-old-partial-0", (1, 1))
    store.prune()
    assert found(store, "a").manifest.blobs
    assert all(store.has(layer.digest) for layer in found(store, "a").manifest.blobs)
    left = {path.rpartition("/")[2] for path in store.files.names("blobs")}
    assert "sha256-new-partial" in left
    assert not left & {"sha256-orphan", "sha256-old-partial-0"}
