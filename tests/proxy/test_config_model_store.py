"""The options of [model_store]."""

import pytest
from pydantic import ValidationError

from proxy.config import BackendConfig, Config
from proxy.config_model_store import ModelStoreConfig


def test_only_admins_unless_told_otherwise() -> None:
    assert ModelStoreConfig().allow == "admin"
    assert Config.model_validate({"model_store": {"allow": "nobody"}}).model_store.allow == "nobody"


@pytest.mark.parametrize("allow", ["", "all", True])
def test_others_are_refused(allow: object) -> None:
    with pytest.raises(ValidationError):
        ModelStoreConfig.model_validate({"allow": allow})


def test_backends_name_what_they_share() -> None:
    assert BackendConfig.model_validate({"url": "http://a:1", "store": "nfs-1"}).store == "nfs-1"
    with pytest.raises(ValidationError):
        BackendConfig.model_validate({"url": "http://a:1", "store": "a/b"})
