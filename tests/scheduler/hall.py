"""A waiting line before two backends whose seats are all taken, as `scheduler.matching` sees it."""

from scheduler.deadlines import Deadlines
from scheduler.domain import Candidate, Health
from scheduler.health import Life
from scheduler.leases import Lease, Ledger
from scheduler.matching import Matching
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.waiting import Ticket
from tests.scheduler.prompts import prompt_of
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

POLICY = Policy(down_wait_s=30.0, overtake_s=5.0)


class Hall:
    """Backends `a` (both models, two seats) and `b` (one model, one seat)."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.ledger = Ledger()
        self.replica = Replica(self.ledger)
        self.deadlines = Deadlines()
        self.outlook = Outlook(self.ledger)
        self.matching = Matching(policy, self.replica, self.deadlines, self.outlook)
        for known in (backend("a", models=[MODEL, OTHER_MODEL]), backend("b", limit=1)):
            self.replica.join(known).life = Life(Health.READY)
            for number in range(known.running_limit):
                self.take(known.id, f"{known.id}{number}")

    def take(self, backend_id: str, nonce: str) -> Lease:
        lease = Lease(nonce, "r", backend_id, 1, 1, None, 0.0)
        self.ledger.claim(lease)
        self.replica.touch(backend_id)
        return lease

    def compute(self, backend_id: str, tokens: int) -> None:
        """A seat is taken by a request that computes so many tokens."""
        lease = self.take(backend_id, f"computes {tokens}")
        lease.streams = True
        self.outlook.claimed(lease, request("r"), Candidate(backend_id, 0.0, {}, None, 0, tokens))

    def free(self, backend_id: str, nonce: str) -> None:
        self.ledger.refuse(nonce)
        self.replica.touch(backend_id)
        self.matching.free(backend_id)

    def used(self, backend_id: str, at_s: float) -> None:
        """A backend was used lately: at equal costs the other one goes first."""
        state = self.replica.get(backend_id)
        assert state is not None
        state.last_used_s = at_s
        self.replica.touch(backend_id)

    def wait(
        self,
        number: int,
        *,
        model: str = MODEL,
        seats: int = 1,
        at_s: float = 0.0,
        tenant: str = "",
        priority: str = "normal",
        prompt_tokens: int = 0,
    ) -> Ticket:
        prompt = prompt_of([(number, prompt_tokens)]) if prompt_tokens else None
        wanted = request(
            f"r{number}",
            model=model,
            seats=seats,
            arrived_s=at_s,
            wait_s=300.0 - at_s,
            tenant=tenant,
            priority=priority,
            prompt=prompt,
        )
        ticket = Ticket(wanted, number)
        self.matching.add(ticket, at_s)
        return ticket

    def matches(self, now_s: float = 1.0) -> list[tuple[str, str]]:
        """All that goes now: (request, backend)."""
        found = []
        while (match := self.matching.next_match(now_s)) is not None:
            ticket, decision = match
            backend_id = decision.ranking[0].backend_id
            for number in range(ticket.request.seats):
                self.take(backend_id, f"{ticket.request.id}/{number}")
            found.append((ticket.request.id, backend_id))
        return found
