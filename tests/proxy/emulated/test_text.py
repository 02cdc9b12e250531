from hypothesis import given
from hypothesis import strategies as st

from proxy.emulated.text import WORDS, detokenize, embedding, noise, piece_bytes, pseudo_text, tokenize


@given(st.text())
def test_a_text_taken_apart_can_be_put_together(text: str) -> None:
    assert detokenize(tokenize(text)) == text


@given(st.text())
def test_ids_are_exact_in_every_json_reader(text: str) -> None:
    assert all(0 <= token < 2**53 for token in tokenize(text))


@given(st.text(alphabet="ab \n<|"), st.text(alphabet="ab \n<|"))
def test_a_turn_that_follows_leaves_the_tokens_before_it_alone(before: str, after: str) -> None:
    opened = f"<|im_start|>user\n{before}<|im_end|>"
    assert tokenize(opened + after)[: len(tokenize(opened))] == tokenize(opened)


def test_marks_are_one_token() -> None:
    assert tokenize("<|im_start|>user\nhi<|im_end|>") == [1, *tokenize("user"), *tokenize("\n"), *tokenize("hi"), 2]


def test_unknown_ids_are_silent() -> None:
    assert detokenize([5, 99, -1, 2**70]) == ""
    assert piece_bytes(1) == b"<|im_start|>"


def test_every_word_of_the_pseudo_text_is_one_token() -> None:
    assert len(set(WORDS)) == 256
    pieces = pseudo_text(bytes(range(256)))
    assert len(tokenize("".join(pieces))) == 256
    assert pieces[0] == WORDS[0].capitalize()
    assert pseudo_text(b"") == []


def test_noise_depends_on_seed_and_tokens_and_begins_alike_at_any_length() -> None:
    assert noise(1, [1, 2], 8) == noise(1, [1, 2], 16)[:8]
    assert len({noise(1, [1, 2], 8), noise(2, [1, 2], 8), noise(1, [1, 3], 8)}) == 3


def test_texts_that_share_words_have_near_vectors() -> None:
    def nearness(one: str, other: str) -> float:
        pairs = zip(embedding(tokenize(one), 64), embedding(tokenize(other), 64), strict=True)
        return sum(a * b for a, b in pairs)

    assert abs(nearness("red green", "red green") - 1) < 1e-6
    assert nearness("red green blue", "red green pink") > nearness("red green blue", "otter weasel mink")
    assert embedding([], 4) == [0.0] * 4
