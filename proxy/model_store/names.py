"""Which names of models, files and blobs may go on to an Ollama. Pure; owns the grammar and what is wrong with a name.

The grammar is Ollama's own (types/model/name.go), checked here because some of its versions were talked into paths
outside their store, or to registries of strangers, by names that were not: CVE-2024-37032, CVE-2024-39719,
CVE-2024-39722, CVE-2024-45436, CVE-2026-103663 and their kind.
"""

import re

from proxy.dialects import ClientError

REGISTRY = "registry.ollama.ai"
"""Where names without a host are pulled from."""
_MOST = {"host": 350, "namespace": 80, "model": 80, "tag": 80}
"""Characters of each part, as in Ollama."""
_NAME = re.compile(
    r"(?:(?:(?P<host>[A-Za-z0-9_][A-Za-z0-9_.:-]*)/)?(?P<namespace>[A-Za-z0-9_][A-Za-z0-9_-]*)/)?"
    r"(?P<model>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*))?"
)
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +()@-]{0,254}")
_FILE_DEPTH = 8


def host_of(name: str) -> str:
    """The registry that a name is of.

    Raises:
        ValueError: it is no name.
    """
    found = _NAME.fullmatch(name)
    if found is None or any(len(part or "") > _MOST[kind] for kind, part in found.groupdict().items()):
        raise ValueError(f"{name!r} is no name of a model")
    if ".." in name:
        raise ValueError(f"{name!r} has two dots in a row")
    return (found["host"] or REGISTRY).lower()


def check_name(name: str, refusal: str = "invalid model name") -> None:
    """Judge a name that a client gave.

    Raises:
        ClientError: 400 in Ollama's words: it is none.
    """
    try:
        host_of(name)
    except ValueError:
        raise ClientError(400, refusal) from None


def check_registry(name: str) -> None:
    """Judge where a name would have an Ollama connect to.

    Raises:
        ClientError: 403: to another registry than Ollama's own, whose answers could be anything (SSRF).
    """
    if (host := host_of(name)) != REGISTRY:
        raise ClientError(
            403, f"models of {host} need admin rights: use `slotgate pull`, or an API key with admin = true"
        )


def blob_digest(text: str) -> str:
    """The digest that a blob's path ends in, as `sha256:` and 64 digits in lower case.

    Raises:
        ClientError: 400: it is none.
    """
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise ClientError(400, "invalid digest format")
    return f"sha256:{found[1].lower()}"


def check_file(name: str) -> None:
    """Judge the name under which /api/create is given a blob: relative, and inside its directory.

    Raises:
        ClientError: 400: it could lead elsewhere.
    """
    parts = name.split("/")
    if len(parts) > _FILE_DEPTH or not all(_FILE.fullmatch(part) and ".." not in part for part in parts):
        raise ClientError(400, f"invalid file name {name[:80]!a}: write a relative path without ..")
