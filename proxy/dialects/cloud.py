"""Owns how a model's name says where it runs: `:cloud`, a tag ending in `-cloud`, `:local`. Pure; knows no backends."""

from collections.abc import Mapping
from typing import Any


def named_cloud(model: str) -> bool:
    """Whether the name itself asks for a model at ollama.com: `gpt-oss:cloud`, `gpt-oss:120b-cloud`. Case is ignored.

    As Ollama's modelref reads it: what follows the last colon counts, and a slash in it makes it no tag.
    """
    _, colon, tag = model.strip().rpartition(":")
    tag = tag.strip().lower()
    return bool(colon) and (tag == "cloud" or ("/" not in tag and tag.endswith("-cloud")))


def named_local(model: str) -> bool:
    """Whether the name asks for this machine's own model, whatever else has the name: `gpt-oss:20b:local`."""
    return model.strip().lower().endswith(":local")


def is_stub(listing: Mapping[str, Any]) -> bool:
    """Whether an entry of Ollama's /api/tags stands for a model elsewhere: nothing of it can be loaded here."""
    return bool(listing.get("remote_host") and listing.get("remote_model"))
