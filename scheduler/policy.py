"""A policy is data: weights and thresholds, each with its range. Owns no decision."""

from typing import Annotated, Literal

import msgspec

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Window = Annotated[float, msgspec.Meta(ge=0.1, le=1e6)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Order = Literal["cost", "fcfs"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights and thresholds."""

    version: Count = 0
    """Grows with every change; a decision names the version that it was made under."""
    active_ms: Amount = 20.0
    """Cost of each seat in use at a backend: spreads what nothing else separates."""
    load_ms: Amount = 5000.0
    """Time that loading a model takes, until one was seen: an 8B Q4 model out of the page cache onto a GPU."""
    demand_window_s: Window = 60.0
    """How far back the planner of loads looks at what was asked for."""
    residence_s: Amount = 10.0
    """How long a model that is asked for stays loaded at least, before another one may take its place."""
    residence_loads: Amount = 4.0
    """The same as a multiple of the time that loading takes: with 4, at most a fifth of a card's time goes into
    loads."""
    idle_residence_s: Amount = 2.0
    """How long nothing has run on a model that is asked for, before another one may take its place even earlier."""
    copy_gain: Amount = 1.5
    """How many times as much must be asked for of a model than of the one whose place a further copy of it takes; and
    how many times the load the wait must take that the copy is to end."""
    load_retry_s: Amount = 5.0
    """Pause before a load that failed is tried there again; doubles up to 16 times as much. Requests that have no other
    backend are refused meanwhile."""
    suspect_ms: Amount = 10_000.0
    """Cost of a backend that failed lately. Above 64 active seats: used when nothing else has room."""
    cooling_ms: Amount = 20_000.0
    """Cost of a backend that failed just now, where the panic rule lets it through at all."""
    failures_until_down: Count = 3
    """Missed probes and failed attempts in a row after which only a probe may find a backend usable again."""
    cool_down_s: Amount = 1.0
    """Pause after a failure; doubles with each further one until an attempt succeeds or the engine restarts."""
    cool_down_max_s: Amount = 30.0
    """Longest pause after failures of a backend, however many there were in a row."""
    refused_pause_s: Amount = 0.1
    """Pause after the store refused a claim for which its own numbers show room (epochs differ, say)."""
    elsewhere_fresh_s: Amount = 10.0
    """Seats of other proxies that the store has not confirmed for this long no longer bar claims: it checks them."""
    turn_s: Amount = 0.03
    """How long a seat is kept for the request of another proxy whose turn it is; not taken by then, it goes to the
    next."""
    retry_ratio: Amount = 0.2
    """Retries allowed per request that arrived within `retry_window_s`, beside those of `retry_floor_per_s`."""
    retry_floor_per_s: Amount = 10.0
    """Retries per second that are always allowed. The default is enough to move what ran at one dead backend."""
    retry_window_s: Window = 10.0
    """How far the retry budget looks back."""
    max_attempts: Count = 3
    """Failed attempts after which a request is given up. LOADING and OVERLOADED do not count; the deadline does."""
    max_waiting: Count = 1000
    """Requests that may wait; more are refused. Beside them, at most one per seat whose attempt or claim failed."""
    down_wait_s: Amount = 30.0
    """How long a request waits while no backend that has its model is alive."""
    overtake_s: Amount = 5.0
    """A request for several seats that waited this long is overtaken no more: a backend's seats are kept for it."""
    look_after_s: Amount = 1.5
    """Pause before looking whether an abandoned seat is idle. Each look delays llama-server's own notice by 1 s."""
    abandoned_grace_s: Amount = 5.0
    """How long an abandoned seat counts as busy where the engine tells nothing about its slots."""
    look_after_stream_s: Amount = 0.2
    """Pause before looking whether a seat is idle that was abandoned while its answer was being sent. Shorter than
    `look_after_s`, since engines notice at the next token that nobody reads any more."""
    abandoned_stream_grace_s: Amount = 0.5
    """How long a seat that was abandoned while its answer was being sent counts as busy where the engine tells nothing
    about its slots. An Ollama freed the slot 4 ms after its client left mid-stream."""
    abandoned_limit_s: Amount = 120.0
    """How long an abandoned seat counts as busy at most where the engine tells about its slots: its reports may fail to
    come, or be full of other people's requests."""
    completions_window_s: Window = 60.0
    """How far back the estimate for Retry-After looks at completed requests."""
    retry_after_min_s: Amount = 1.0
    """Smallest Retry-After."""
    retry_after_max_s: Amount = 60.0
    """Largest Retry-After: the official OpenAI and Anthropic clients ignore more."""
    prefill_weight: Amount = 1.0
    """Weight of computing the request's own tokens: 0 ignores prefixes."""
    stall_weight: Amount = 0.3
    """Weight of the delay that computing a prompt means for each request that runs at the backend. With this and
    `prefill_weight` 1 and all else 0, a backend costs its uncached work times one more than what runs there: the rule
    called LMetric."""
    pending_weight: Amount = 0.7
    """Weight of the prompts that are being computed at the backend already."""
    loss_weight: Amount = 2.0
    """Weight of computing again what the chosen slot would lose, times the chance that somebody comes back for it.
    Above 1, since computing it again delays others too."""
    shared_loss_weight: Share = 0.3
    """Weight, within the loss, of tokens that another idle slot of the backend holds too: losing them costs less."""
    choose_slot: bool = True
    """Name the slot where the engine lets us (llama-server); False: every engine chooses by itself."""
    order: Order = "cost"
    """Which waiting request goes next: `cost` (less its age credit), or `fcfs`."""
    window: Count = 64
    """Waiting requests that are compared when a seat falls free."""
    age_credit: Amount = 1.0
    """Milliseconds of cost that a millisecond of waiting makes up for."""
    age_guard_s: Amount = 30.0
    """Waiting time after which a request goes before all younger ones of its priority."""
    hold_s: Amount = 1.0
    """Longest wait for a much better backend while another one has room; 0: never."""
    hold_ratio: Share = 0.7
    """Share of the cost of running now that waiting for a better backend and running there may cost at most."""
    max_prefills: Count = 0
    """Prompts that a backend computes at once, so that running streams do not stall; 0: no limit."""
    prefill_counts_tokens: Count = 256
    """Tokens to compute from which on a prompt counts for `max_prefills`."""
    quantum_tokens: Count = 4_000
    """Weighted tokens that each tenant may use before the next one's turn comes; see `output_weight`."""
    output_weight: Amount = 2.0
    """Weight of an answer's token beside one of a prompt's, in what counts as used by a tenant."""
    tenant_max_running: Count = 0
    """Requests of one tenant that run at once; 0: no limit."""
    tenant_max_waiting: Count = 0
    """Requests of one tenant that wait at once; 0: no limit."""
    max_expected_wait_s: Amount = 0.0
    """Expected wait above which a request is refused at once; 0: never."""
    token_target_ms: Positive = 50.0
    """Time per token of an answer that a running limit which slotgate finds by itself keeps to."""
