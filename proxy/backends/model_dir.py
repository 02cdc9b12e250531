"""Owns finding out in which directory an Ollama keeps its models, so that those who share one are recognised.

A directory is known by its file system and its number there, on this machine: whatever it is called by whom, also from
inside a container. Nothing is said where it cannot be looked at.
"""

import os
from collections.abc import Mapping

from proxy.backends.ollama_settings import value
from proxy.backends.statedir import boot_id

OPERATORS = "operator:"
"""How an identity begins that an operator gave (option `store`)."""


def directory(environment: Mapping[str, str]) -> str | None:
    """Where an Ollama with this environment keeps its models; None: that does not tell.

    Source: envconfig/config.go, Models, of Ollama 0.33.
    """
    named = value(environment, "OLLAMA_MODELS")
    home = environment.get("HOME", "")
    path = named or (f"{home}/.ollama/models" if home else "")
    return path if path.startswith("/") else None


def identity(environment: Mapping[str, str] | None, pid: int | None = None) -> str:
    """The directory's identity: the same for all processes of this machine that use it. Empty: not known. Blocks.

    Args:
        environment: what the Ollama was started with; None: not known.
        pid: its process, which may see other files than we do; None: it sees the same.
    """
    path = directory(environment) if environment is not None else None
    if path is None:
        return ""
    root = "" if pid is None else f"/proc/{pid}/root"
    try:
        found = os.stat(f"{root}{path}")  # noqa: PTH116 - through another's root
    except OSError:
        return ""
    return f"{machine}:{found.st_dev}:{found.st_ino}" if (machine := boot_id()) else ""


def named(store: str | None) -> str:
    """The identity that an operator gave; empty: none."""
    return f"{OPERATORS}{store}" if store else ""
