"""The admin API's shapes about one request: why it waits, or ran where it did. Owns shapes only, like `admin_api`."""

import msgspec

from proxy.admin_api import LiveRequest, RecentRequest


class ExplainedCandidate(msgspec.Struct):
    """A backend that could have run the request."""

    backend: str
    cost_ms: float
    """Milliseconds of GPU time: the sum of `terms_ms`."""
    terms_ms: dict[str, float]
    slot: int | None = None
    """The idle slot that it would have got; None: the engine's choice."""
    reused_tokens: int = 0
    """Tokens of the prompt expected to be cached there."""
    fresh_tokens: int = 0
    """Tokens of the prompt expected to be computed there."""


class ExplainedDecision(msgspec.Struct):
    """One decision about a request, as it was made."""

    at_unix_s: float
    policy_version: int
    ranking: list[ExplainedCandidate]
    """Best first; empty: no backend could take it."""
    rejections: dict[str, str]
    """Backend -> why it could not."""
    slot: int | None = None
    """The slot that the request was sent to; None: the engine's choice, or not sent."""
    predicted_cached_tokens: int | None = None
    details: dict[str, str] = {}
    """Backend -> the numbers behind its rejection, where there are any."""
    waits: bool = False
    """It was to wait, for the reasons in `rejections`, or although there is a ranking."""
    holds_s: float | None = None
    """How long it was to leave seats to others at most, for a backend that would suit it better; None: it was not."""
    tenant_full: bool = False
    """It was to wait because its tenant ran as many requests as it may."""


class ExplainedAnswer(msgspec.Struct):
    """What an answer cost, as the engine told; None where it did not."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prompt_ms: float | None = None
    output_ms: float | None = None
    first_byte_ms: float | None = None
    """From sending the request to the first byte of its answer."""
    slot: int | None = None


class ExplainedWait(msgspec.Struct):
    """How a request waits for a slot, or did."""

    waits: bool
    """It waits still."""
    waited_s: float
    """So far, or in all."""
    since_unix_s: float | None = None
    """Since when, if it waits still."""
    until_unix_s: float | None = None
    """When it is refused, if it waits still and nothing takes it before."""
    position: int | None = None
    """Its place in line, 1 for the next: now, or when it began to wait."""
    expected_wait_s: float | None = None
    """How long it will probably wait still; or how long it was expected to, when it began. None: nobody can tell."""
    held_until_unix_s: float | None = None
    """Until then it leaves seats to others, for a backend that suits it better; None: it does not."""
    held_for: str | None = None
    """That backend."""
    held_for_tokens: int | None = None
    """Tokens of its prompt that this backend holds."""
    tenant_running: int | None = None
    """Requests of its tenant that run, where there may be no more of them: it waits for one to end."""


class ExplainAnswer(msgspec.Struct):
    """GET explain: why a request ran where it did, and what came of it."""

    id: str
    decisions: list[ExplainedDecision]
    """Oldest first: one for each attempt, one for a refusal, and those with `waits`, by which it had to wait."""
    outcome: str | None = None
    """As in `RecentRequest`; None while it waits or runs."""
    ended_at_unix_s: float | None = None
    answer: ExplainedAnswer | None = None
    request: RecentRequest | None = None
    """How it ended, while that is remembered."""
    live: LiveRequest | None = None
    """While it waits or runs."""
    wait: ExplainedWait | None = None
    """None: it never stood in line, or that is forgotten."""
