"""The parts together, as the rest of the proxy sees them."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.emulated.options import EmulatedModel
from tests.proxy.model_store.rig import TINY, fleet, ollama

OTHER = EmulatedModel("tiny", size_bytes=5_000_000, weights="another")


async def test_a_model_that_differs_is_told_everywhere(tmp_path: Path) -> None:
    with capture_logs() as logged:
        async with fleet(tmp_path, [ollama(models=[TINY]), ollama(models=[OTHER]), ollama(models=[TINY])]) as running:
            stores = running.app._membership.model_stores
            found = stores.conflicts()
            shown = stores.chosen("tiny:latest")
            [listed] = (await running.client.get("/api/tags")).json()["models"]
            stores.log_conflicts()
            stores.log_conflicts()
            with pytest.raises(LookupError):
                stores.chosen("nope:latest")

    assert sorted(found["tiny:latest"]) == ["gpu0", "gpu1", "gpu2"]
    assert found["tiny:latest"]["gpu0"] != found["tiny:latest"]["gpu1"]
    assert shown.digest == listed["digest"] == found["tiny:latest"]["gpu0"]
    assert sum(entry["event"] == "a model differs between backends" for entry in logged) == 1
