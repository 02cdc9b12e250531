import pytest

from proxy.emulated.faults import Fault, Faults, Kind


def make() -> tuple[Faults, list[list[Kind]]]:
    seen: list[list[Kind]] = []
    return Faults(lambda faults: seen.append([fault.kind for fault in faults])), seen


def test_a_fault_befalls_so_many_requests() -> None:
    faults, _ = make()
    fault = faults.add("error", times=2)
    assert faults.take("/completion", inference=True) is fault
    assert faults.take("/completion", inference=True) is fault
    assert faults.take("/completion", inference=True) is None
    assert fault.befell == 2


def test_without_a_path_probes_are_spared() -> None:
    faults, _ = make()
    faults.add(Kind.HANG)
    assert faults.take("/health", inference=False) is None
    assert faults.take("/completion", inference=True) is not None


def test_a_path_chooses() -> None:
    faults, _ = make()
    faults.add("loading", path="/health")
    faults.add("error", path="/v1/")
    assert faults.take("/health", inference=False) == Fault(Kind.LOADING, path="/health", befell=1)
    assert faults.take("/v1/models", inference=False) is not None
    assert faults.take("/slots", inference=False) is None


def test_switches_befall_no_single_request_and_are_told_at_once() -> None:
    faults, seen = make()
    faults.add("refuse")
    faults.add("error")
    assert faults.active(Kind.REFUSE) is not None
    faults.clear("error")
    assert faults.take("/completion", inference=True) is None
    faults.clear()
    assert seen == [[Kind.REFUSE], [Kind.REFUSE, Kind.ERROR], [Kind.REFUSE], []]
    assert faults.active(Kind.REFUSE) is None


def test_what_there_is_not_cannot_be_added() -> None:
    faults, _ = make()
    with pytest.raises(ValueError, match="no-such"):
        faults.add("no-such")
    with pytest.raises(TypeError):
        faults.add("error", colour="red")


def test_failing_loads_befall_loads_and_failing_pulls_befall_pulls() -> None:
    faults, _ = make()
    faults.add("load-fails", times=1)
    assert faults.take("/api/chat", inference=True) is None
    assert (faults.load_fails() or "")[:20] == "model failed to load"
    assert faults.load_fails() is None
    faults.add("load-fails", message="out of memory")
    assert faults.load_fails() == "out of memory"
    pull = faults.add("pull-fails", after_bytes=5)
    assert faults.take("/api/chat", inference=True) is None
    assert faults.take("/api/pull", inference=False) is pull
