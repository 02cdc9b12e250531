import math

import pytest

from proxy.emulated.options import EmulatedModel, Options, read_model


def test_a_model_without_tag_is_the_latest() -> None:
    assert EmulatedModel("smol").tagged == "smol:latest"
    assert EmulatedModel("smol:135m").tagged == "smol:135m"


def test_nothing_waits_unless_told_to() -> None:
    assert Options().speed == math.inf
    assert Options().load_s == 0


def test_a_model_on_a_command_line() -> None:
    assert read_model("a") == EmulatedModel("a")
    text = "b:7b,size=5,parameters=6,context=7,embedding=8,family=f,quantization=q,weights=w,num_ctx=9,capabilities=x+y"
    assert read_model(text) == EmulatedModel("b:7b", ("x", "y"), 6, 5, "f", "q", 7, 8, "w", {"num_ctx": 9})
    assert read_model("a", ("embedding",)).capabilities == ("embedding",)
    with pytest.raises(ValueError, match="'colour' of 'a,colour=red' is not one of size"):
        read_model("a,colour=red")
    with pytest.raises(ValueError, match="embedding of 'a,embedding=true' is a whole number"):
        read_model("a,embedding=true")
