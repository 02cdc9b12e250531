import math

from proxy.emulated.options import EmulatedModel, Options


def test_a_model_without_tag_is_the_latest() -> None:
    assert EmulatedModel("smol").tagged == "smol:latest"
    assert EmulatedModel("smol:135m").tagged == "smol:135m"


def test_nothing_waits_unless_told_to() -> None:
    assert Options().speed == math.inf
    assert Options().load_s == 0
