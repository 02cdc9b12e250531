"""What one box needs to be among others of its fleet: the secret, and how they reach it. Speaks to nobody."""

import socket
from pathlib import Path

from proxy.config import BoxConfig
from proxy.config_rules import HOW_TO_MAKE_ONE, secret_problem
from proxy.endpoint import Gate
from proxy.listen_address import parse_listen

_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})
_ELSEWHERE = ("192.0.2.1", 9)
"""An address that nobody has (RFC 5737): asks the kernel for its route there, nothing is sent."""


class BoxError(ValueError):
    """The box cannot be one of a fleet as it is configured; the message says why and what to do."""


def read_secret(config: BoxConfig) -> str:
    """The secret that the boxes share; empty: there is none.

    Raises:
        BoxError: its file cannot be read, or what is there is no secret.
    """
    if config.secret is not None:
        place, secret = "box.secret", config.secret.get_secret_value()
    elif config.secret_file is not None:
        place, secret = f"box.secret_file {config.secret_file}", _content(config.secret_file)
    else:
        return ""
    if what := secret_problem(secret):
        raise BoxError(f"{place} {what}. How to fix: {HOW_TO_MAKE_ONE}")
    return secret


def way_in(config: BoxConfig, port: int, towards: tuple[str, int] = _ELSEWHERE) -> Gate | None:
    """How other boxes reach the gate, but for the backend's name; None: there is none.

    Args:
        config: the box's options, valid among themselves.
        port: that the gate is really bound to.
        towards: what other boxes speak to as well, the store for instance: in whose network this box is to be found.
    """
    if config.gate is None:
        return None
    dialed = parse_listen(config.gate_address or config.gate)
    host = own_address(towards) if dialed.host in _EVERY_ADDRESS else dialed.host
    return Gate(host, port if config.gate_address is None else dialed.port, "", tls=config.tls_cert is not None)


def own_address(towards: tuple[str, int] = _ELSEWHERE) -> str:
    """The address that this machine has for one it would speak to; its host name if no network leads there."""
    try:
        found = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise BoxError(f"box.secret_file {path} is not text. How to fix: {HOW_TO_MAKE_ONE}") from None
    except OSError as error:
        raise BoxError(
            f"box.secret_file {path} cannot be read: {error.strerror}. "
            "How to fix: make it readable for the user that slotgate runs as, and for nobody else"
        ) from error
