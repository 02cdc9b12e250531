"""The options of [model_store]: who may change which models the Ollamas have. Owns their shape, not what they do."""

from typing import Literal

from proxy.config_section import Section


class ModelStoreConfig(Section):
    """Changing the models that Ollamas have on disk: pull, push, create, copy, delete; see docs/ollama.md."""

    allow: Literal["admin", "everyone", "nobody"] = "admin"
    """Who may do it over HTTP. admin: API keys with admin = true in tenancy.keys. `slotgate pull` always may."""
