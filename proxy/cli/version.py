"""`slotgate version`."""

import platform

from proxy import __version__
from proxy.cli.asking import Json, print_json


def version(json: Json = False) -> None:
    """Print the version of this command."""
    if json:
        print_json({"version": __version__, "python": platform.python_version(), "machine": platform.machine()})
    else:
        print(f"slotgate {__version__}")
