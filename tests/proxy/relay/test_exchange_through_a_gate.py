"""The relay's promises about answers, all of them again where the engine is on another box, with TLS and without."""

from collections.abc import AsyncIterator

import pytest

from tests.certificates import Certificates
from tests.proxy.gated import gated_rig
from tests.proxy.relay.rig import Rig
from tests.proxy.relay.test_exchange import *  # noqa: F403
from tests.proxy.relay.test_exchange_cut_short import *  # noqa: F403
from tests.proxy.relay.test_exchange_transformed import *  # noqa: F403


@pytest.fixture(params=["plain", "tls"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    tls: Certificates | None = request.getfixturevalue("certificates") if request.param == "tls" else None
    async with gated_rig(tls) as (rig, _):
        yield rig
