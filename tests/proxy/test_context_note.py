from proxy.context_note import ContextNote


def test_its_words() -> None:
    assert str(ContextNote(5120, None, 4096)) == "prompt about 5120 tokens, context 4096"
    assert str(ContextNote(4000, 512, 4096)) == "prompt about 4000 tokens, answer up to 512, context 4096"
