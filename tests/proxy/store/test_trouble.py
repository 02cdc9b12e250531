"""Errors of the store as the operator reads them."""

import pytest
from redis import exceptions

from proxy.store.trouble import ADVICE, StoreSlow, TroubleKind, trouble_of, version_trouble


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionError("Error 111 connecting"), TroubleKind.UNREACHABLE),
        (ConnectionRefusedError(111, "refused"), TroubleKind.UNREACHABLE),
        (exceptions.TimeoutError("Timeout connecting to server"), TroubleKind.UNREACHABLE),
        (StoreSlow("no answer within 0.25 s"), TroubleKind.SLOW),
        (exceptions.AuthenticationError("invalid username-password pair"), TroubleKind.PASSWORD),
        (exceptions.ResponseError("AUTH <password> called without any password configured"), TroubleKind.PASSWORD),
        (exceptions.NoPermissionError("no permissions", status_code="NOPERM"), TroubleKind.FORBIDDEN),
        (exceptions.ReadOnlyError("You can't write", status_code="READONLY"), TroubleKind.READ_ONLY),
        (exceptions.OutOfMemoryError("command not allowed", status_code="OOM"), TroubleKind.MEMORY_FULL),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), TroubleKind.DISK),
        (exceptions.BusyLoadingError("loading", status_code="LOADING"), TroubleKind.BUSY),
        (exceptions.ResponseError("BUSY is running a script"), TroubleKind.BUSY),
        (exceptions.MovedError("1 127.0.0.1:7000", status_code="MOVED"), TroubleKind.CLUSTER),
        (exceptions.ResponseError("ERR Error running script"), TroubleKind.UNEXPECTED),
        (RuntimeError("?"), TroubleKind.UNEXPECTED),
    ],
)
def test_each_error_has_its_kind(error: Exception, kind: TroubleKind) -> None:
    trouble = trouble_of(error)

    assert trouble.kind is kind
    assert trouble.detail
    assert trouble.advice == ADVICE[kind]


def test_a_wrapped_error_is_told_by_its_cause() -> None:
    error = exceptions.ConnectionError("wrapped")
    error.__cause__ = exceptions.AuthenticationError("wrong")

    assert trouble_of(error).kind is TroubleKind.PASSWORD


def test_there_is_advice_for_every_kind() -> None:
    assert ADVICE.keys() == set(TroubleKind)


@pytest.mark.parametrize(
    ("info", "fits"),
    [
        ("redis_version:7.0.15\r\nredis_mode:standalone\r\n", True),
        ("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n", True),
        ("redis_version:6.2.14\r\n", False),
        ("nothing known", True),
    ],
)
def test_versions_that_are_too_old_are_told(info: str, fits: bool) -> None:
    trouble = version_trouble(info)

    assert (trouble is None) is fits
    if trouble is not None:
        assert trouble.kind is TroubleKind.VERSION
        assert trouble.detail == "this is Redis 6.2.14"
