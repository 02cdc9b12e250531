"""What a request would find at each backend: reusable tokens, work before it, the slot to take. Owns mirrors and rates.

Decides nothing: `fit` describes one request at one backend, as it is now, and `later_ms` what waiting for a full one
would cost. Both are estimates for the cost terms; who may run where is the filters' and the ledger's business.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from scheduler.case import Case
from scheduler.domain import Backend, BackendView, Candidate, Engine, Measured, Request, Residency, SlotState
from scheduler.endings import Endings
from scheduler.estimates import Estimates
from scheduler.leases import Lease, Ledger, Work
from scheduler.load_times import LoadTimes
from scheduler.loads import Loads
from scheduler.mirror import Mirror
from scheduler.naming import Naming
from scheduler.policy import Policy
from scheduler.priors import rates_for
from scheduler.residencies import loads
from scheduler.returns import Returns
from scheduler.runner import shares
from scheduler.slot_contents import Reuse
from scheduler.slot_rules import choose
from scheduler.slot_shares import SlotShares
from scheduler.uses import Uses

RETURNED = 0.9
"""Who reuses this share of what a slot holds came back for it."""
SLOW_LIMIT = 8
"""Requests that may run at once on a backend too slow for any aim."""


class Fit(msgspec.Struct, frozen=True):
    """One request at one backend, now. Times are milliseconds of GPU time."""

    slot: int | None = None
    """The idle slot to name; None: the engine chooses."""
    reused_tokens: int = 0
    fresh_tokens: int = 0
    prefill_ms: float = 0.0
    """Computing the fresh tokens."""
    loss_ms: float = 0.0
    """Computing again what the slot loses, less likely the longer nobody came back for it."""
    pending_ms: float = 0.0
    """Prompts that are being computed there."""
    copy_ms: float = 0.0
    """What passes per request before the first token beside computing, as learned: copies, above all."""


NOTHING = Fit()

Reuses = dict[str, tuple[Mirror, int, list[Reuse]]]
"""A ticket's memory of what backends could reuse of its prompt, by backend; with the mirror and its version then."""


class Outlook:
    """Mirrors of all backends' slots, and what their work costs."""

    def __init__(self, ledger: Ledger, estimates: Estimates | None = None) -> None:
        self.estimates = estimates or Estimates()
        self.loads = Loads()
        self.load_times = LoadTimes()
        self.uses = Uses()
        self.returns = Returns()
        self._ledger = ledger
        self._mirrors: dict[str, dict[str, Mirror]] = {}
        self.endings = Endings(ledger, self.estimates)
        self.naming = Naming()
        self.slot_shares = SlotShares()

    def mirror(self, backend: Backend, model: str | None) -> Mirror:
        """Our account of a backend's slots; an Ollama has slots of its own for each model."""
        key = model or "" if backend.engine is Engine.OLLAMA else ""
        mirrors = self._mirrors.setdefault(backend.id, {})
        mirror = mirrors.get(key)
        if mirror is None:
            mirror = mirrors[key] = Mirror(backend.slots, host_tokens=backend.host_cache_tokens)
        return mirror

    def mirrors(self, backend_id: str) -> dict[str, Mirror]:
        """All of a backend's, by model; llama-server's single one under an empty name."""
        return self._mirrors.get(backend_id, {})

    def may_name(self, view: BackendView, request: Request, policy: Policy) -> bool:
        """Whether the engine shall be told which slot to use: only where we know which ones are idle."""
        if not (policy.choose_slot and request.can_name_slot and request.seats == 1):
            return False
        return view.names_slots and not self.naming.engine_chooses(view.backend.id)

    def fit(self, view: BackendView, case: Case, memory: Reuses) -> Fit:
        """The request at this backend, on the idle slot that suits it best."""
        backend, request = view.backend, case.request
        pending_ms = self.pending_ms(backend.id, case.now_s)
        if request.prompt is None or request.seats == 0:
            return Fit(pending_ms=pending_ms) if pending_ms else NOTHING
        reuses = self._reuses(backend, request, memory)
        copy_ms = self.estimates.copy_ms(backend.id, _named(request))
        if not reuses:
            tokens = self.tokens(request)
            prefill_ms = self.estimates.prefill_ms(backend.id, _named(request), tokens)
            return Fit(fresh_tokens=tokens, prefill_ms=prefill_ms, pending_ms=pending_ms, copy_ms=copy_ms)
        named = self.may_name(view, request, case.policy)
        if not named:
            reuses = [self._engines_choice(reuses)]
        reuse, prefill_ms, loss_ms = self._best(reuses, backend.id, case, view.taken)
        slot = reuse.slot if named else None
        return Fit(slot, reuse.reused_tokens, reuse.fresh_tokens, prefill_ms, loss_ms, pending_ms, copy_ms)

    def _best(self, reuses: list[Reuse], backend_id: str, case: Case, taken: int) -> tuple[Reuse, float, float]:
        """The slot that costs least, the time to compute the prompt there, and the price of what it loses.

        Of the slots that have nothing in common with the prompt only the one with the least to lose is looked at.
        """
        policy, model, now_s = case.policy, _named(case.request), case.now_s
        prefill_ms_of = self.estimates.prefill_ms
        stall = policy.prefill_weight * (1.0 + policy.stall_weight * taken)
        unshared, chance = 1.0 - policy.shared_loss_weight, self.returns.chance
        victim: tuple[float, float, Reuse] | None = None
        best: tuple[float, float, Reuse, float, float] | None = None
        last: tuple[int, float] = (-1, 0.0)
        for reuse in reuses:
            worth = 0.0
            if reuse.lost_tokens and policy.loss_weight:
                worth = chance(now_s - reuse.idle_since_s) * self.slot_shares.weight(backend_id, reuse.slot)
            lost = reuse.lost_tokens - unshared * reuse.shared_lost
            if not reuse.reused_tokens:
                rank = (lost * worth, reuse.idle_since_s)
                if victim is None or rank < victim[:2]:
                    victim = (*rank, reuse)
                continue
            if reuse.fresh_tokens != last[0]:
                last = reuse.fresh_tokens, prefill_ms_of(backend_id, model, reuse.fresh_tokens, reuse.reused_tokens)
            loss_ms = prefill_ms_of(backend_id, model, int(lost)) * worth if worth else 0.0
            price = stall * last[1] + policy.loss_weight * loss_ms
            if best is None or (price, reuse.idle_since_s) < best[:2]:
                best = (price, reuse.idle_since_s, reuse, last[1], loss_ms)
        if victim is not None:
            reuse = victim[2]
            prefill_ms = prefill_ms_of(backend_id, model, reuse.fresh_tokens)
            loss_ms = 0.0
            if victim[0] > 0.0:
                lost = reuse.lost_tokens - unshared * reuse.shared_lost
                loss_ms = prefill_ms_of(backend_id, model, int(lost)) * victim[0] / lost
            price = stall * prefill_ms + policy.loss_weight * loss_ms
            if best is None or (price, reuse.idle_since_s) < best[:2]:
                best = (price, reuse.idle_since_s, reuse, prefill_ms, loss_ms)
        assert best is not None  # noqa: S101 - only called with slots
        return best[2], best[3], best[4]

    def _engines_choice(self, reuses: list[Reuse]) -> Reuse:
        tokens = reuses[0].reused_tokens + reuses[0].fresh_tokens
        idle = [
            (each.slot, each.reused_tokens, each.reused_tokens + each.lost_tokens, each.idle_since_s) for each in reuses
        ]
        chosen = choose(idle, tokens)
        return next(each for each in reuses if each.slot == chosen)

    def _reuses(self, backend: Backend, request: Request, memory: Reuses) -> list[Reuse]:
        mirror = self.mirror(backend, request.model)
        known = memory.get(backend.id)
        if known is None or known[0] is not mirror or known[1] != mirror.version:
            reuses = mirror.reuses(request.prompt, self.estimates.tokens_per_byte(_named(request)))
            known = memory[backend.id] = mirror, mirror.version, reuses
        reserved = self.naming.slots_reserved(backend.id)
        return [each for each in known[2] if each.slot not in reserved] if reserved else known[2]

    def running_limit(self, backend: Backend, model: str | None, token_target_ms: float) -> int:
        """How many requests may run at a backend without going above a time per token, of those that it allows.

        Where even a single one is slower than that, the time is no measure: then `SLOW_LIMIT`.
        """
        name = model or ""
        if self.estimates.step_ms(backend.id, name, 1) > token_target_ms:
            return min(backend.running_limit, SLOW_LIMIT)
        return self.estimates.running_limit(backend.id, name, backend.running_limit, token_target_ms)

    def tokens(self, request: Request) -> int:
        """Estimated length of a prompt."""
        size = request.prompt.size_bytes if request.prompt is not None else request.prompt_bytes
        return max(1, int(size * self.estimates.tokens_per_byte(_named(request))))

    def pending_ms(self, backend_id: str, now_s: float) -> float:
        """Time that prompts now being computed at a backend still take."""
        total = 0.0
        for lease in self._ledger.at(backend_id):
            if lease.work is not None and lease.counted and not lease.committed:
                total += max(0.0, lease.work.prefill_ms - (now_s - lease.claimed_s) * 1000.0)
        return total

    def prefills(self, backend_id: str, least_tokens: int, now_s: float) -> int:
        """Prompts with so many tokens to compute, one at least, that a backend computes now.

        Of an answer that comes as a whole nobody sees the first token: its prompt counts for as long as it should take.
        """
        least_tokens = max(1, least_tokens)
        return sum(
            lease.work is not None
            and lease.counted
            and not lease.committed
            and lease.work.tokens - lease.work.reused_tokens >= least_tokens
            and (lease.streams or (now_s - lease.granted_s) * 1000.0 < lease.work.prefill_ms)
            for lease in self._ledger.at(backend_id)
        )

    def most_common_tokens(self, backend: Backend, request: Request) -> float:
        """About as many tokens of the prompt are on some slot of a backend, busy or idle."""
        if request.prompt is None:
            return 0.0
        common = self.mirror(backend, request.model).common_bytes(request.prompt)
        return common * self.estimates.tokens_per_byte(_named(request))

    def later_ms(self, view: BackendView, case: Case, memory: Reuses, *, full: bool, below_ms: float = inf) -> float:
        """Cost of waiting for this backend and running there then; infinity: no idea, or surely not below `below_ms`.

        `full`: any of its seats that falls free would do. Otherwise only one on whose slot there is something to reuse.
        """
        backend, request, policy = view.backend, case.request, case.policy
        mirror = self.mirror(backend, request.model)
        ends = self.endings.expected(view, case.now_s, mirror.version)
        taken = max(0, view.taken - 1)
        beside = policy.active_ms * taken
        if request.prompt is None or ends.least_ms + beside >= below_ms:
            return inf
        stall = policy.prefill_weight * (1.0 + policy.stall_weight * taken)
        best = inf
        reuses = self._reuses(backend, request, memory) if full else []
        if reuses:
            _, prefill_ms, loss_ms = self._best(reuses, backend.id, case, taken)
            best = ends.any_ms + stall * prefill_ms + policy.loss_weight * loss_ms + beside
        per_byte = self.estimates.tokens_per_byte(_named(request))
        whole = self.tokens(request)
        for nonce, reused in mirror.later(request.prompt, per_byte):
            if nonce in ends.by_nonce:
                fresh = max(1, whole - reused)
                prefill_ms = self.estimates.prefill_ms(backend.id, _named(request), fresh, reused)
                best = min(best, ends.by_nonce[nonce] + stall * prefill_ms + beside)
        return best

    # What becomes of leases

    def claimed(self, lease: Lease, request: Request, candidate: Candidate) -> None:
        """Seats are being claimed: a named slot is nobody else's from now on."""
        fresh, reused = candidate.fresh_tokens, candidate.reused_tokens
        tokens = reused + fresh
        prefill_ms = self.estimates.prefill_ms(lease.backend_id, lease.model or "", fresh, reused) if fresh else 0.0
        output = self.estimates.output_tokens(_named(request), request.tenant, request.max_output_tokens)
        lease.work = Work(tokens, candidate.reused_tokens, prefill_ms, output, candidate.slot)
        if candidate.slot is not None:
            self.naming.reserve(lease, candidate.slot)

    def granted(self, lease: Lease, view: BackendView, request: Request, now_s: float) -> None:
        """The claim was granted, to us or to another proxy: the request is on its way to the engine."""
        work, backend = lease.work, view.backend
        if work is None:
            return
        self.naming.unreserve(backend.id, lease.nonce)
        mirror = self.mirror(backend, request.model)
        any_slot = self.naming.engine_chooses(backend.id) or not view.names_slots
        if not mirror.has(work.slot) or (any_slot and not lease.owner):
            work.slot = None  # its proxy knows other slots than we do; or the engine chose, perhaps this one
        if (slot := work.slot) is None:
            self.naming.engine_chose(backend.id, lease.nonce)
        else:
            mirror.vacate(slot)
            held, used_s = mirror.held(slot)
            if held:
                self.returns.observe(now_s - used_s, returned=work.reused_tokens >= RETURNED * held)
        used = mirror.take(lease.nonce, request.prompt, work.tokens, slot, now_s, seats=lease.seats)
        if used is not None:
            self.slot_shares.used(backend.id, used, request.tenant)

    def unname(self, lease: Lease, now_s: float) -> None:
        """After all the engine chooses the slot of a lease that another proxy holds."""
        work = lease.work
        if work is None or work.slot is None:
            return
        work.slot = None
        self.naming.engine_chose(lease.backend_id, lease.nonce)
        prompt = lease.request.prompt if lease.request is not None else None
        for mirror in self._mirrors.get(lease.backend_id, {}).values():
            mirror.dropped(lease.nonce, now_s)
            mirror.take(lease.nonce, prompt, work.tokens, None, now_s, seats=lease.seats)

    def answered(self, lease: Lease, now_s: float) -> None:
        """The first byte of an answer came."""
        if lease.work is not None:
            lease.work.first_byte_s = now_s
            self.endings.changed(lease.backend_id)

    def done(
        self, lease: Lease, backend: Backend, request: Request, measured: Measured, running: int, now_s: float
    ) -> bool:
        """An answer is complete. Returns False if another slot answered than the one that was named."""
        mirror = self.mirror(backend, request.model)
        if measured.cached_tokens is not None and request.prompt is not None:
            mirror.correct(lease.nonce, measured.cached_tokens)
        mirror.done(lease.nonce, measured.prompt_tokens, measured.output_tokens, now_s)
        size = request.prompt.size_bytes if request.prompt is not None else 0
        self.estimates.learn(
            backend.id, _named(request), request.tenant, size, measured, running, now_s, request.max_output_tokens
        )
        named = lease.work.slot if lease.work is not None else None
        if named is None or measured.slot is None or measured.slot == named:
            return True
        mirror.forget(named, measured.slot)
        return False

    def abandoned(self, lease: Lease) -> None:
        """Nobody waits for the answer any more; the slot is busy until the engine notices."""
        for mirror in self._mirrors.get(lease.backend_id, {}).values():
            mirror.abandon(lease.nonce)

    def gone(self, lease: Lease, now_s: float) -> None:
        """A lease is no more. What its slot holds is not known, unless its answer was complete."""
        self.naming.unreserve(lease.backend_id, lease.nonce)
        self.uses.ended(lease.backend_id, lease.model, now_s)
        if lease.work is None or lease.granted_s == inf:
            return
        for mirror in self._mirrors.get(lease.backend_id, {}).values():
            mirror.dropped(lease.nonce, now_s, answered=lease.committed)
        self.naming.gone(lease.backend_id, lease.nonce)

    # What becomes of backends

    def changed(self, backend: Backend) -> None:
        """What is known of a backend: how fast such cards are, until answers tell."""
        told = backend.gpu.name if backend.gpu is not None else backend.gpu_name
        gpu_name = told if told is not None else None if backend.managed else "unknown"
        self.estimates.prior(backend.id, "", rates_for(gpu_name))
        for model, size_bytes in backend.model_bytes.items():
            self.estimates.prior(backend.id, model, rates_for(gpu_name, size_bytes))

    def reported(self, backend: Backend, slots: tuple[SlotState, ...], asked_at_s: float) -> bool:
        """A look at a llama-server's slots. False: somebody uses a slot that we hold for idle."""
        if backend.engine is Engine.OLLAMA or not slots:
            return True
        return self.mirror(backend, None).report(slots, asked_at_s)

    def loaded(self, backend: Backend, residencies: Iterable[Residency], asked_at_s: float) -> None:
        """A look showed these models loaded; what an Ollama held of others is gone."""
        residencies = tuple(residencies)
        self.loads.seen(backend.id, [residency.model for residency in residencies], asked_at_s)
        if loads(backend):
            for model, mirror in self._mirrors.get(backend.id, {}).items():
                is_there = any(shares(model, residency, backend) for residency in residencies)
                if not is_there and mirror.idle() == backend.slots:  # else it is used, whatever the look shows
                    mirror.clear()

    def reloaded(self, backend: Backend, residency: Residency) -> None:
        """A model was loaded: its slots are empty, under whatever name."""
        for model, mirror in self._mirrors.get(backend.id, {}).items():
            if shares(model, residency, backend) and mirror.idle() == backend.slots:
                mirror.clear()

    def resized(self, backend_id: str) -> None:
        """An engine has other slots than we thought: what runs on which of them, and what they hold, is not known."""
        self._mirrors.pop(backend_id, None)
        self.slot_shares.void(backend_id)
        self.naming.void(backend_id)
        for lease in self._ledger.at(backend_id):
            if lease.work is not None:
                lease.work.slot = None
                if lease.granted_s != inf:
                    self.naming.engine_chose(backend_id, lease.nonce)

    def void(self, backend_id: str) -> None:
        """Another engine runs there, or none: it holds nothing that we knew."""
        self._mirrors.pop(backend_id, None)
        self.slot_shares.void(backend_id)
        self.naming.void(backend_id)
        self.loads.void(backend_id)
        self.uses.void(backend_id)

    def left(self, backend_id: str) -> None:
        """A backend is gone for good."""
        self.void(backend_id)
        self.loads.left(backend_id)
        self.estimates.forget(backend_id)
        self.load_times.forget(backend_id)


def _named(request: Request) -> str:
    return request.model or ""
