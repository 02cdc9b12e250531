"""Fleets of several proxies, and what tests do with them."""

from typing import Any

from scheduler import effects
from scheduler.policy import Policy
from tests.scheduler.prompts import Message
from tests.scheduler.proxies import Fleet, Proxy
from tests.scheduler.world import backend, of_type, talk

SYSTEM, HELLO = (0, 600), (1, 40)


def fleet(*owners: str, limit: int = 1, policy: Policy | None = None, backends: str = "a") -> Fleet:
    """Proxies of llama-servers that run `limit` requests on one slot more, and whose slots nobody else uses."""
    made = Fleet(
        owners or ("one", "two"),
        [backend(name, limit=limit, slots=limit + 1, managed=True) for name in backends],
        policy,
    )
    for proxy in made.proxies.values():
        for name in backends:
            proxy.look(name)
    return made


def ask(proxy: Proxy, request_id: str, *messages: Message, **more: Any) -> None:
    """A client of this proxy asks for something, and every message arrives."""
    wanted = talk(request_id, *(messages or (HELLO,)), arrived_s=proxy.now_s, **more)
    proxy.arrive(request_id, wanted=wanted)
    proxy.fleet.settle()


def claims(proxy: Proxy) -> list[str]:
    """Requests whose claims were sent and not seen by the store yet."""
    return [claim.request_id for claim in of_type(proxy.outbox, effects.Claim)]


def silent(made: Fleet, owner: str) -> Proxy:
    """A proxy hangs: what it heard it does nothing about."""
    proxy = made.proxies.pop(owner)
    made.crashed.append(proxy)
    return proxy
