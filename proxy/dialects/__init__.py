"""The HTTP APIs that clients speak, sans-io: bytes in, structs and bytes out. Must not know sockets.

A request: `find` gives its route, `read_call` reads it, `local_reply` may answer it, `plan` says what goes to a backend
and what happens to the answer, `prompt_of` what an engine may hold of it already. A `Batch` takes calls with many
inputs apart. Errors: `render_error`, `rejection_error`, `error_frame`. Waiting: `heartbeat`. What slotgate answers
itself is made by `listing`.
"""

from proxy.dialects.account import account_reply
from proxy.dialects.batches import Batch
from proxy.dialects.call import Call, read_call, read_model_name, read_object
from proxy.dialects.canonical import prompt_of
from proxy.dialects.cloud import is_stub, named_cloud, named_local
from proxy.dialects.errors import ClientError, render_error
from proxy.dialects.frames import error_frame, heartbeat
from proxy.dialects.local import local_reply
from proxy.dialects.plan import Plan, can_name_slot, plan
from proxy.dialects.rejections import model_not_found, rejection_error
from proxy.dialects.routes import ROUTES, Kind, Route, RouteError, allowed_methods, find
from proxy.dialects.watch import StreamWatch, Usage

__all__ = [
    "ROUTES",
    "Batch",
    "Call",
    "ClientError",
    "Kind",
    "Plan",
    "Route",
    "RouteError",
    "StreamWatch",
    "Usage",
    "account_reply",
    "allowed_methods",
    "can_name_slot",
    "error_frame",
    "find",
    "heartbeat",
    "is_stub",
    "local_reply",
    "model_not_found",
    "named_cloud",
    "named_local",
    "plan",
    "prompt_of",
    "read_call",
    "read_model_name",
    "read_object",
    "rejection_error",
    "render_error",
]
