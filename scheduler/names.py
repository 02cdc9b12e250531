"""Model names: the same model under all the names that clients use for it."""

_PREFIXES = ("registry.ollama.ai/", "library/")


def canonical(name: str) -> str:
    """One spelling per model: lower case, without Ollama's default registry and namespace, always with a tag.

    Ollama matches names without regard to case, takes a missing tag as `latest`, and `:local` behind a name as the wish
    that it be no cloud model.
    """
    name = name.strip().lower().removesuffix(":local")
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name


def short(name: str) -> str:
    """The canonical name as people write it: without `:latest`."""
    return canonical(name).removesuffix(":latest")
