"""Who may change the model store over HTTP. Owns the rule and its words; knows no route."""

from collections.abc import Mapping

from proxy.config_model_store import ModelStoreConfig
from proxy.dialects import ClientError
from proxy.tenancy import Tenancy

_ON_THE_BOX = "use `slotgate pull`, `slotgate rm` or `slotgate cp` on its box"


class Guard:
    """The rule as configured."""

    def __init__(self, config: ModelStoreConfig, tenancy: Tenancy) -> None:
        self._allow = config.allow
        self._tenancy = tenancy

    def admit(self, headers: Mapping[str, str]) -> bool:
        """Let a client in; returns whether it has admin rights.

        Raises:
            ClientError: 403, with what to set.
        """
        if self._allow == "nobody":
            raise ClientError(403, f"slotgate changes no models for clients (model_store.allow): {_ON_THE_BOX}")
        if self._tenancy.is_admin(headers):
            return True
        if self._allow == "everyone":
            return False
        key = "send an API key that has it" if self._tenancy.has_admins else "give an API key admin = true"
        raise ClientError(
            403,
            f"changing models at slotgate needs admin rights: {key} (tenancy.keys; send it as Authorization: Bearer), "
            f'set model_store.allow = "everyone", or {_ON_THE_BOX}',
        )
