"""What must be true after each event, whatever happened; `world` asks for it."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from scheduler import effects
from scheduler.case import Case
from scheduler.decide import decide
from scheduler.domain import BackendView, Decision
from scheduler.effects import Claim, Effect
from scheduler.filters import first_rejection
from scheduler.leases import Lease, LeaseState
from scheduler.waiting import Ticket, rank_of

if TYPE_CHECKING:
    from tests.scheduler.world import World


def check(world: "World", done: Iterable[Effect], *, mixed: bool) -> None:
    """All of them; `mixed`: deadlines and the event itself may both have had effects, at different times."""
    claims = [effect for effect in done if isinstance(effect, effects.Claim)]
    waiting = world.scheduler.waiting()
    _places(world, waiting)
    _late_binding(world, waiting)
    _holds(world, waiting)
    _tenants(world, claims)
    if not mixed:
        _priorities(world, waiting, claims)


def _places(world: "World", waiting: Iterable[Ticket]) -> None:
    """Each open request is in exactly one place, each lease is one of the store's, and no engine has too much."""
    leases = world.scheduler.running()
    claiming = {lease.request_id for lease in leases if lease.state is LeaseState.CLAIMING}
    places = [*(ticket.request.id for ticket in waiting), *claiming, *world.running]
    assert sorted(places) == sorted(world.open), "each open request is in exactly one place"
    held = {lease.nonce for lease in leases if lease.nonce not in world.claims}
    assert held == world.granted.keys() - world.released, "our leases are what the store holds for us"
    for backend_id, known in world.backends.items():
        busy = world.busy(backend_id)
        world.max_busy[backend_id] = max(busy, world.max_busy.get(backend_id, 0))
        assert busy <= known.running_limit, f"{backend_id} works on {busy} of {known.running_limit}"


def _late_binding(world: "World", waiting: Iterable[Ticket]) -> None:
    """Nothing waits that could run, unless it holds for a better backend, or its tenant runs as much as it may."""
    for ticket in waiting:
        assert world.wake_at_s <= ticket.request.wait_until_s, "its deadline will be noticed"
        decision = _decision(world, ticket)
        if decision.ranking and not is_excused(world, ticket):
            raise AssertionError(f"{ticket.request.id} waits although {decision.ranking[0].backend_id} has room")


def _decision(world: "World", ticket: Ticket) -> Decision:
    snapshot = world.scheduler.snapshot(world.now_s)
    return decide(snapshot, ticket.request, world.policy, ticket.tried, world.scheduler.outlook, {})


def is_excused(world: "World", ticket: Ticket) -> bool:
    """Whether a ticket may wait though it could run."""
    is_holding = ticket.hold_until_s is not None and world.now_s < ticket.hold_until_s
    return (is_holding and world.policy.hold_s > 0) or is_at_cap(world, ticket.request.tenant)


def is_at_cap(world: "World", tenant: str) -> bool:
    """Whether a tenant runs as many requests as it may."""
    most = world.policy.tenant_max_running
    return 0 < most <= at_backends(world)[tenant]


def at_backends(world: "World") -> Counter[str]:
    """Open requests that have, or are claiming, seats: by tenant."""
    ids = {lease.request_id for lease in world.scheduler.running() if lease.state is LeaseState.CLAIMING}
    ids |= {request_id for request_id, dispatch in world.running.items() if dispatch.seats}
    return Counter(world.open[request_id].tenant for request_id in ids)


def _holds(world: "World", waiting: Iterable[Ticket]) -> None:
    """A request holds once, no longer than the policy said then, and is never refused for it."""
    for ticket in waiting:
        until_s = ticket.hold_until_s
        if until_s is None:
            continue
        if ticket.request.id not in world.holds:
            world.holds[ticket.request.id] = until_s
            assert until_s <= world.now_s + world.policy.hold_s
            assert until_s < ticket.request.wait_until_s, "it goes before its deadline comes"
        assert until_s == world.holds[ticket.request.id], "it holds once"
        assert until_s <= world.now_s or world.wake_at_s <= until_s, "the end of its hold will be noticed"


def _tenants(world: "World", claims: Iterable[Claim]) -> None:
    """No tenant gets more seats than it may; what is counted is what is so."""
    counts = at_backends(world)
    assert {tenant: n for tenant, n in world.scheduler._matching.shares._running.items() if n} == counts
    most = world.policy.tenant_max_running
    for claim in claims if most else ():
        wanted = world.open.get(claim.request_id)
        assert wanted is None or counts[wanted.tenant] <= most, f"{wanted.tenant} runs {counts} of {most}"


def _priorities(world: "World", waiting: Iterable[Ticket], claims: Iterable[Claim]) -> None:
    """No seat goes to a request while one of a higher class waits that could use it.

    One exception: a request for several seats that is overtaken no more.
    """
    leases = {lease.nonce: lease for lease in world.scheduler.running()}
    for claim in claims:
        lease, got = leases.get(claim.nonce), world.open.get(claim.request_id)
        if lease is None or got is None or not lease.counted or got.least_seats > 1:
            continue
        view = world.view(claim.backend_id)
        view = msgspec.structs.replace(view, seats_leased=view.seats_leased - lease.seats)
        for ticket in waiting:
            if ticket.rank < rank_of(got.priority) and not is_excused(world, ticket):
                usable = _usable(world, ticket, view, lease)
                assert not usable, f"{got.id} got a seat of {claim.backend_id}, {ticket.request.id} waits"


def _usable(world: "World", ticket: Ticket, view: BackendView, without: Lease) -> bool:
    """Whether a waiting ticket could use this backend if one lease were not there."""
    case = Case(ticket.request, world.policy, world.now_s, ticket.tried, alive=True)
    if first_rejection(view, case) is not None:
        return False
    if not world.policy.max_prefills or ticket.request.prompt is None:
        return True
    least = max(1, world.policy.prefill_counts_tokens)
    computing = 0
    for lease in world.scheduler.running():
        if lease.backend_id == view.backend.id and lease.nonce != without.nonce:
            counts = lease.work is not None and lease.counted and not lease.committed
            computing += counts and lease.work.tokens - lease.work.reused_tokens >= least  # type: ignore[union-attr]
    return computing < world.policy.max_prefills


def keep_to_the_end(world: "World") -> None:
    """Once everything calms down, all requests end, each granted claim was given back, and nothing is remembered."""
    for _ in range(200):
        if not world.open:
            break
        world.answer_claims()
        for request_id in list(world.running):
            world.end(request_id)
        for nonce in [nonce for nonce, work in world.engine.items() if work.left_s is not None]:
            world.notice(nonce)
        for backend_id in world.backends:
            world.look(backend_id)
        world.pass_time(1.0)
    assert not world.open, "every request ends"
    world.answer_claims()
    world.pass_time(200.0)
    for backend_id in world.backends:
        world.look(backend_id)
    world.pass_time(200.0)
    assert world.granted.keys() == world.released, "each granted claim was given back"
    for backend_id, known in world.backends.items():
        view = world.view(backend_id)
        assert (view.room, view.held_for) == (known.running_limit, "")
    _forgot(world)


def _forgot(world: "World") -> None:
    """What grows with requests is empty again."""
    scheduler = world.scheduler
    outlook, matching, ledger = scheduler.outlook, scheduler._matching, scheduler._ledger
    assert scheduler.running() == ()
    assert scheduler.waiting() == ()
    assert not len(scheduler._deadlines)
    for remembered in (
        scheduler._open, matching.shares._running, ledger._by_backend, ledger._seats, outlook.naming.reserved,
        outlook.naming.unnamed, matching._barren, matching._unfit, matching._freed, matching.line.groups,
        matching.line.overdue, matching.line._tenants,
    ):  # fmt: skip
        assert not remembered
    for backend_id, known in world.backends.items():
        for model, mirror in outlook.mirrors(backend_id).items():
            assert model in ("", *known.models)
            assert not mirror._leases
            assert mirror.idle() == known.slots
