"""Which names go on to an Ollama. Each hole that some version of Ollama had through a name has its test here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import ClientError
from proxy.model_store.names import REGISTRY, blob_digest, check_file, check_name, check_registry, host_of

SHA = "a" * 64


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("llama3", REGISTRY),
        ("llama3:8b-instruct-q4_K_M", REGISTRY),
        ("user/model", REGISTRY),
        ("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "hf.co"),
        ("Localhost:5000/me/m:x", "localhost:5000"),
        ("registry.ollama.ai/library/smol:latest", REGISTRY),
        ("a_b", REGISTRY),
    ],
)
def test_names_that_are_some(name: str, host: str) -> None:
    check_name(name)
    assert host_of(name) == host


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/etc/passwd",
        "../../etc/passwd",
        "..",
        "a/../b",
        "a/b/../../c",
        "a..b",
        "model:..",
        "model:../../x",
        "..%2f..%2fetc",
        "a\\..\\b",
        "a//b",
        "a/b/c/d",
        "http://evil.example/a/b",
        "a@sha256:" + SHA,
        "a:b:c",
        "a\n",
        "a b",
        "a\0",
        ".hidden",
        "a/.hidden/b",
        "é",
        "m" * 81,
        "n" * 81 + "/m",
        "m:" + "t" * 81,
        "h" * 351 + "/n/m",
    ],
)
def test_names_that_are_none(name: str) -> None:
    """CVE-2024-37032, CVE-2024-39722, CVE-2026-103663: paths in names."""
    with pytest.raises(ClientError) as refused:
        check_name(name)
    assert (refused.value.status, refused.value.message) == (400, "invalid model name")


@given(st.text(max_size=60))
def test_no_accepted_name_leads_anywhere(name: str) -> None:
    try:
        check_name(name)
    except ClientError:
        return
    assert ".." not in name
    assert not name.startswith(("/", ".", "-"))
    assert name.isascii()
    assert name.count("/") <= 2


@pytest.mark.parametrize("name", ["evil.example/a/b", "127.0.0.1:8080/a/b", "hf.co/a/b", "metadata:80/latest/x"])
def test_other_registries_are_for_admins(name: str) -> None:
    """CVE-2025-51471, CVE-2026-5530, CVE-2026-85180, CVE-2026-108836: a stranger's registry."""
    with pytest.raises(ClientError) as refused:
        check_registry(name)
    assert refused.value.status == 403
    assert "admin" in refused.value.message


def test_ollamas_own_registry_is_for_all() -> None:
    check_registry("llama3")
    check_registry("REGISTRY.OLLAMA.AI/library/llama3")


@pytest.mark.parametrize("text", [f"sha256:{SHA}", f"sha256-{SHA}", f"sha256:{SHA.upper()}"])
def test_digests(text: str) -> None:
    assert blob_digest(text) == f"sha256:{SHA}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        f"sha256:{SHA[1:]}",
        f"sha256:{SHA}0",
        f"sha256:{SHA}\n",
        "sha256:" + "g" * 64,
        f"md5:{SHA}",
        f"../{SHA}",
    ],
)
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(ClientError) as refused:
        blob_digest(text)
    assert (refused.value.status, refused.value.message) == (400, "invalid digest format")


@pytest.mark.parametrize("name", ["model.gguf", "sub/model-00001-of-00002.safetensors", "my model (1).gguf"])
def test_file_names(name: str) -> None:
    check_file(name)


@pytest.mark.parametrize(
    "name", ["", "/abs", "../up", "a/../../b", "a//b", "a\\b", "a\0b", "..", "a/.", "x" * 300, "/".join("a" * 9)]
)
def test_file_names_that_lead_elsewhere(name: str) -> None:
    """CVE-2024-45436: a file of an archive written outside its directory."""
    with pytest.raises(ClientError) as refused:
        check_file(name)
    assert refused.value.status == 400
