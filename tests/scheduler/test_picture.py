"""A picture survives the wire; what is in it is for `test_pictures`."""

import msgspec

from scheduler.picture import (
    BackendPicture,
    GainPicture,
    HeldPicture,
    MeanPicture,
    MirrorPicture,
    PairPicture,
    Picture,
    ReturnsPicture,
)
from scheduler.priors import rates_for
from tests.scheduler.prompts import prompt_of

HELD = HeldPicture(prompt_of([(0, 900)]), 900, 950, 50, 3, True)
GAIN = GainPicture(3, 0.5)
PAIR = PairPicture("m", rates_for(None), 1.0, 2.0, 3.0, 4.0, GAIN, GAIN, (0.0, 0.1), (None, GAIN), 4, 9, None)
PICTURE = Picture(
    (
        BackendPicture(
            "a", 1, 0.5, None, (MirrorPicture("", 1.0, 3, (HELD, None), (0.1, None), (HELD,)),), (PAIR,), ((0, "x"),)
        ),
    ),
    ReturnsPicture((1.0,), (2.0,), 3),
    (("m", None, None, MeanPicture(90.0, 4)),),
    (("m", MeanPicture(0.25, 4)),),
    ((1, "x", -5.0),),
)


def test_a_picture_survives_the_wire() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(PICTURE), type=Picture) == PICTURE
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Picture()), type=Picture) == Picture()
