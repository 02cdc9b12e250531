"""`slotgate list`: the models that clients may ask for."""

import time
from typing import TYPE_CHECKING

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.tables import ago, columns, size

if TYPE_CHECKING:
    from proxy.admin_api import ModelsAnswer


def list_models(json: Json = False, socket: Socket = None) -> None:
    """List the models and the backends that serve them."""
    with asking(socket) as proxy:
        answer = proxy.models()
    if json:
        print_json(answer)
    else:
        print(list_table(answer, time.time()), end="")


def list_table(answer: "ModelsAnswer", now_unix_s: float) -> str:
    """One line per model; backends that have it loaded are marked with a star."""
    rows = [
        (
            model.name,
            (model.digest or "-").removeprefix("sha256:")[:12],
            size(model.size_bytes),
            ago(model.modified_at_unix_s, now_unix_s),
            " ".join(f"{name}*" if name in model.loaded_on else name for name in model.backends),
        )
        for model in answer.models
    ]
    return columns(("NAME", "ID", "SIZE", "MODIFIED", "BACKENDS (* loaded)"), rows)
