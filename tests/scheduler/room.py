"""One backend as `scheduler.outlook` sees it: 1 ms per token to compute, 10 ms per token of an answer."""

from typing import Any

from scheduler.case import Case
from scheduler.domain import Backend, BackendView, Candidate, Health, Measured, Request
from scheduler.leases import Lease, Ledger
from scheduler.outlook import Fit, Outlook
from scheduler.policy import Policy
from scheduler.priors import Rates
from tests.scheduler.prompts import Message
from tests.scheduler.world import MODEL, backend, talk

POLICY = Policy()
NOW_S = 100.0
RATES = Rates(0.0, 1.0, 0.0, 0.0, 0.0, 10.0, 0.0, "made up")
SYSTEM, HELLO, ANSWER, NEXT = (0, 400), (1, 200), (2, 51), (3, 100)
"""A conversation in tokens: the first prompt is 600 long, the second one 751."""


class Room:
    """An outlook on one backend of three slots, two of which may be used, and the leases there."""

    def __init__(self, known: Backend | None = None) -> None:
        self.ledger = Ledger()
        self.outlook = Outlook(self.ledger)
        self.backend = known or backend("a", limit=2, slots=3)
        self.outlook.changed(self.backend)
        self.outlook.estimates.prior("a", MODEL, RATES)
        self.names = True
        self.streams = True
        self.now_s = NOW_S
        self.count = 0

    def view(self) -> BackendView:
        seats = self.ledger.seats("a")
        return BackendView(self.backend, Health.READY, seats_leased=seats, names_slots=self.names)

    def fit(self, wanted: Request, policy: Policy = POLICY, now_s: float | None = None) -> Fit:
        return self.outlook.fit(self.view(), Case(wanted, policy, self.now_s if now_s is None else now_s), {})

    def claim(self, wanted: Request) -> Lease:
        fit = self.fit(wanted)
        self.count += 1
        lease = Lease(f"n{self.count}", wanted.id, "a", 1, wanted.seats, wanted.model, self.now_s)
        lease.streams = self.streams
        self.ledger.claim(lease)
        self.outlook.claimed(lease, wanted, Candidate("a", 0.0, {}, fit.slot, fit.reused_tokens, fit.fresh_tokens))
        return lease

    def grant(self, lease: Lease, wanted: Request) -> None:
        self.ledger.grant(lease.nonce, self.now_s)
        self.outlook.granted(lease, self.view(), wanted, self.now_s)

    def start(self, wanted: Request) -> Lease:
        lease = self.claim(wanted)
        self.grant(lease, wanted)
        return lease

    def answer(self, lease: Lease) -> None:
        lease.committed = True
        self.outlook.answered(lease, self.now_s)

    def end(self, lease: Lease, wanted: Request, measured: Measured | None = None) -> bool:
        """In order."""
        done = self.outlook.done(lease, self.backend, wanted, measured or Measured(), 1, self.now_s)
        self.ledger.release(lease.nonce, self.now_s)
        self.outlook.gone(lease, self.now_s)
        return done

    def run(self, *messages: Message, output_tokens: int = 51, **more: Any) -> int | None:
        """A whole request; returns the slot that was named."""
        wanted = talk("r", *messages, **more)
        lease = self.start(wanted)
        length = sum(tokens for _, tokens in messages)
        self.end(lease, wanted, Measured(prompt_tokens=length, output_tokens=output_tokens))
        assert lease.work is not None
        return lease.work.slot
