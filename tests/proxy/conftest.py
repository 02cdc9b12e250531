"""What several parts of the proxy's tests need."""

import pytest

from tests.certificates import Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """For gates on 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
