"""`slotgate explain`: why a request ran where it did, and whether the prediction was right."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.tables import columns, printable, span

if TYPE_CHECKING:
    from proxy.explained import ExplainAnswer, ExplainedCandidate, ExplainedDecision, ExplainedWait


def explain(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="As in the header X-Slotgate-Request, and the request log.")
    ],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Show why a request waits, or ran where it did.

    Every backend's cost, term by term, and what was predicted beside what the engine told.
    """
    with asking(socket) as proxy:
        answer = proxy.explain(request_id)
    if json:
        print_json(answer)
    else:
        print(explanation_text(answer, time.time()), end="")


def explanation_text(answer: "ExplainAnswer", now_unix_s: float) -> str:
    """What became of the request, each decision as a table, and what was predicted beside what was measured."""
    parts = [_request_line(answer) + _whose_line(answer) + _wait_line(answer.wait, now_unix_s)]
    for number, decision in enumerate(answer.decisions, 1):
        count = f" {number} of {len(answer.decisions)}" if len(answer.decisions) > 1 else ""
        age = span(max(0.0, now_unix_s - decision.at_unix_s))
        parts.append(f"decision{count}, {age} ago, policy {decision.policy_version}: {_placed(decision)}\n")
        if decision.ranking or decision.rejections:
            parts.append(ranking_table(decision))
    if answer.decisions and answer.decisions[-1].ranking and not answer.decisions[-1].waits:
        parts.append(prediction_table(answer))
    return "\n".join(parts)


def ranking_table(decision: "ExplainedDecision") -> str:
    """One line per backend, best first, then those that could not take it. Terms that are 0 for all are left out."""
    names = dict.fromkeys(name for candidate in decision.ranking for name in candidate.terms_ms)
    terms = [name for name in names if any(candidate.terms_ms.get(name) for candidate in decision.ranking)]
    why = [decision.details.get(candidate.backend, "") for candidate in decision.ranking] + [
        f"{reason}: {decision.details[backend_id]}" if backend_id in decision.details else reason
        for backend_id, reason in decision.rejections.items()
    ]
    header = ["BACKEND", "COST MS", *(name.upper() for name in terms), "SLOT", "CACHED", "COMPUTED"]
    rows = [_candidate_row(candidate, terms) for candidate in decision.ranking]
    rows += [[backend_id, *["-"] * (len(terms) + 4)] for backend_id in decision.rejections]
    if any(why):
        header.append("WHY NOT")
        rows = [[*row, reason] for row, reason in zip(rows, why, strict=True)]
    return columns(header, rows, gap=3)


def prediction_table(answer: "ExplainAnswer") -> str:
    """What the last decision predicted beside what the engine told."""
    decision, measured = answer.decisions[-1], answer.answer
    fresh = decision.ranking[0].fresh_tokens if decision.predicted_cached_tokens is not None else None
    cached = computed = slot = None
    if measured is not None:
        cached, slot = measured.cached_tokens, measured.slot
        if measured.prompt_tokens is not None and cached is not None:
            computed = measured.prompt_tokens - cached
    rows = [
        ("slot", _count(decision.slot), _count(slot)),
        ("cached tokens", _count(decision.predicted_cached_tokens), _count(cached)),
        ("computed tokens", _count(fresh), _count(computed)),
    ]
    return columns(("", "PREDICTED", "ACTUAL"), rows) + _times_line(answer)


def _request_line(answer: "ExplainAnswer") -> str:
    text = f"request {answer.id}"
    ended, live = answer.request, answer.live
    if (known := ended or live) is not None:
        text += f", {printable(' '.join(part for part in (known.dialect, known.operation, known.model) if part))}"
    if ended is not None:
        return f"{text}: {ended.outcome}, status {ended.status}, after {_ms(ended.total_ms)}\n"
    if live is not None:
        at = f" at {live.backend}" if live.backend else ""
        return f"{text}: {live.state}{at}, came {span(live.age_s)} ago\n"
    return f"{text}: {answer.outcome or 'not ended yet'}\n"


def _whose_line(answer: "ExplainAnswer") -> str:
    known = answer.request or answer.live
    if known is None:
        return ""
    short = f"may not have fit: {answer.request.context}\n" if answer.request and answer.request.context else ""
    return f"tenant {printable(known.tenant or '-')}, priority {printable(known.priority)}\n{short}"


def _wait_line(wait: "ExplainedWait | None", now_unix_s: float) -> str:
    """How it waits, and for what where that is known; or how it waited."""
    if wait is None:
        return ""
    place = f"place {wait.position} in line" if wait.position is not None else ""
    if not wait.waits:
        expected = f"expected to wait ~{span(wait.expected_wait_s)}" if wait.expected_wait_s is not None else ""
        began = ", ".join(part for part in (place, expected) if part)
        return f"waited {span(wait.waited_s)}" + (f"; when it began: {began}" if began else "") + "\n"
    left = f"probably ~{span(wait.expected_wait_s)} more" if wait.expected_wait_s is not None else ""
    refused = f"refused in {span(max(0.0, wait.until_unix_s - now_unix_s))}" if wait.until_unix_s is not None else ""
    line = ", ".join(part for part in (f"has waited {span(wait.waited_s)}", place, left, refused) if part) + "\n"
    if wait.held_until_unix_s is not None:
        holder = f"backend {printable(wait.held_for)}" if wait.held_for else "a better backend"
        has = f", which has {wait.held_for_tokens} tokens of its prompt" if wait.held_for_tokens else ""
        held_s = max(0.0, wait.held_until_unix_s - now_unix_s)
        line += f"leaves seats to others for {span(held_s)} more at most, for {holder}{has}\n"
    if wait.tenant_running is not None:
        line += f"waits for one of the {wait.tenant_running} requests that its tenant runs (tenant_max_running)\n"
    return line


def _placed(decision: "ExplainedDecision") -> str:
    if decision.waits:
        if decision.holds_s is not None:
            return f"it waits {span(decision.holds_s)} at most for a better backend"
        return "it waits, since its tenant runs as much as it may" if decision.tenant_full else "it waits"
    if not decision.ranking:
        return "no backend could take it"
    slot = "the engine chooses its slot" if decision.slot is None else f"slot {decision.slot}"
    return f"{decision.ranking[0].backend}, {slot}"


def _candidate_row(candidate: "ExplainedCandidate", terms: list[str]) -> list[str]:
    return [
        candidate.backend,
        f"{candidate.cost_ms:.1f}",
        *(f"{candidate.terms_ms.get(name, 0.0):.1f}" for name in terms),
        _count(candidate.slot),
        str(candidate.reused_tokens),
        str(candidate.fresh_tokens),
    ]


def _times_line(answer: "ExplainAnswer") -> str:
    measured = answer.answer
    if measured is None:
        return ""
    told = [
        f"prompt {_ms(measured.prompt_ms)}" if measured.prompt_ms is not None else "",
        f"{measured.output_tokens} output tokens" if measured.output_tokens is not None else "",
        f"output {_ms(measured.output_ms)}" if measured.output_ms is not None else "",
        f"first byte {_ms(measured.first_byte_ms)} after sending" if measured.first_byte_ms is not None else "",
    ]
    line = ", ".join(part for part in told if part)
    return f"\nengine: {line}\n" if line else ""


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else span(milliseconds / 1000)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
