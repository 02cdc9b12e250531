"""What stands in a waiting request's way at each backend, in numbers. Owns the words; decides nothing."""

from scheduler.domain import BackendView, Decision, Rejection, Request, Snapshot


def obstacles(decision: Decision, request: Request, snapshot: Snapshot) -> dict[str, str]:
    """Backend -> the numbers behind its rejection, where there are any; also of a candidate that is full by now.

    Args:
        decision: the one by which the request waits.
        request: which.
        snapshot: the fleet, at that time or later: what has changed since is not in the numbers.
    """
    details = dict(decision.details)
    views = {view.backend.id: view for view in snapshot.backends}
    for candidate in decision.ranking:
        view = views.get(candidate.backend_id)
        if view is not None and view.room < request.least_seats:
            details[candidate.backend_id] = seats(view)
    for backend_id, reason in decision.rejections.items():
        view = views.get(backend_id)
        if view is not None and (detail := _numbers(view, reason, request, snapshot.now_s)):
            details.setdefault(backend_id, detail)
    return details


def seats(view: BackendView) -> str:
    """The seats of a backend: `8 of 8 seats taken, 2 by other proxies`."""
    text = f"{view.taken} of {view.backend.running_limit} seats taken"
    if view.seats_elsewhere:
        text += f", {view.seats_elsewhere} by other proxies"
    if view.foreign_busy:
        text += f", {view.foreign_busy} around slotgate"
    return text


def _numbers(view: BackendView, reason: Rejection, request: Request, now_s: float) -> str:
    least = request.least_seats
    if reason is Rejection.NO_ROOM:
        if view.room >= least:
            return f"kept for {view.held_for}, which needs several seats" if view.held_for else ""
        return seats(view) + (f"; it needs {least}" if least > 1 else "")
    if reason is Rejection.COOLING and view.cooling_until_s > now_s:
        return f"{view.cooling_until_s - now_s:.1f} s of its pause are left"
    if reason is Rejection.TOO_MANY_SLOTS:
        return f"it needs {least} seats at once, the limit is {view.backend.running_limit}"
    return ""
