"""`slotgate list`: the models that clients may ask for."""

import time
from typing import TYPE_CHECKING

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.tables import ago, columns, printable, size

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
    """One line per model; backends that have it loaded have a star, ids that are not the same everywhere a mark."""
    from proxy.model_store.conflicts import warning

    rows = [
        (
            model.name,
            (model.digest or "-").removeprefix("sha256:")[:12] + ("!" if model.digests else ""),
            size(model.size_bytes),
            ago(model.modified_at_unix_s, now_unix_s),
            " ".join(f"{name}*" if name in model.loaded_on else name for name in model.backends)
            + (" (pinned)" if model.pinned else ""),
        )
        for model in answer.models
    ]
    table = columns(("NAME", "ID", "SIZE", "MODIFIED", "BACKENDS (* loaded)"), rows)
    differing = {model.name: model.digests for model in answer.models if model.digests}
    return table + "".join(f"\n! {printable(warning(*each))}\n" for each in differing.items())
