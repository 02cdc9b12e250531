"""`slotgate restart`: end a backend's engine and start it again, above all one that was given up."""

from typing import TYPE_CHECKING

from proxy.cli.asking import BackendName, Json, Socket, asking, print_json, tell

if TYPE_CHECKING:
    from proxy.admin_api import RestartAnswer


def restart(name: BackendName, json: Json = False, socket: Socket = None) -> None:
    """End a backend's engine and start it again.

    Also one that stays down because its restart budget is spent. To cut no answer: `slotgate drain NAME --wait` before.
    """
    with asking(socket) as proxy:
        answer = proxy.restart(name)
    if json:
        print_json(answer)
        return
    print(_text(answer))
    tell("`slotgate status` tells when it is ready")


def _text(answer: "RestartAnswer") -> str:
    if answer.was in {"backoff", "failed"}:
        return f"{answer.name} is started again now, with a new restart budget"
    if answer.was == "ending":
        return f"{answer.name} is ending already, and is started again then"
    text = f"{answer.name} ends and is started again"
    if answer.running:
        text += f"; {answer.running} running there: cut where an answer has begun, else tried elsewhere"
    return text
