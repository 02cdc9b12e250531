from scheduler.held import Held, Use
from scheduler.slot_contents import SlotContents
from tests.scheduler.prompts import TOKENS_PER_BYTE, Message, prompt_of

SYSTEM, USER, ANSWER, NEXT, OTHER = (1, 128), (2, 64), (3, 64), (4, 64), (5, 64)


def held(messages: list[Message], answer: int = 0, content: int = 0) -> Held:
    prompt = prompt_of(messages)
    length = prompt.size_bytes // 4
    return Held(prompt, prompt.size_bytes, length, length + answer, answer, content, counted=True)


def test_a_cut_slot_is_believed_in_part() -> None:
    slots = SlotContents(2)
    slots.hold(0, held([SYSTEM, USER], 63))
    following = prompt_of([SYSTEM, USER, ANSWER, NEXT])
    assert slots.uses(following, TOKENS_PER_BYTE, 0b11) == {0: Use(255, 255, 64)}

    assert not slots.cut(0, 255)
    assert slots.cut(0, 200)

    assert slots.uses(following, TOKENS_PER_BYTE, 0b11) == {0: Use(200, 200, 119)}
    assert slots.held[0] is not None
    assert not slots.held[0].counted
    assert slots.cut(0, 0)
    assert slots.uses(following, TOKENS_PER_BYTE, 0b11) == {}
    assert not slots.cut(0, 0)
    assert (slots.tokens(0), slots.tokens(1)) == (0, 0)


def test_shared_tokens() -> None:
    slots = SlotContents(6)
    slots.hold(0, held([SYSTEM, USER], 63, 1))
    slots.hold(1, held([SYSTEM, USER, ANSWER, NEXT], 10, 2))
    slots.hold(2, held([SYSTEM, OTHER], 10, 3))
    slots.hold(3, held([OTHER], 10, 4))
    slots.hold(4, held([OTHER], 10, 5))

    assert slots.shared(0b111111) == [255, 192, 128, 64, 64, 0]
    assert slots.shared(0b000101) == [128, 0, 128, 0, 0, 0]
