from proxy.dialects.reading import choices, image_bytes, names, prompts


def test_choices_as_llama_server_counts_them() -> None:
    given: list[object] = [3, 0, -1, True, "3", None, 2.0, 2.7, 2**32 + 2, 2 - 2**32, 2**63, 1e300]
    assert [choices({"n": value}) for value in given] == [3, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]
    assert [choices({"n_cmpl": value, "n": 4}) for value in given[:7]] == [3, 1, 1, 1, 1, 4, 2]
    assert choices({}) == 1


def test_prompts() -> None:
    assert [prompts(value) for value in ("x", ["a", "b"], [1, 2], [[1], [2]], [], None)] == [1, 2, 1, 2, 1, 1]


def test_images() -> None:
    source = {"type": "base64", "data": "a" * 50}
    assert image_bytes([{"content": [{"type": "image", "source": source}]}, {"content": "text"}, "x"]) == 50
    assert image_bytes([{"content": [{"image_url": "a" * 7}]}]) == 7
    assert image_bytes("text") == image_bytes(None) == 0


def test_names() -> None:
    assert names("a b\n c") == ("a", "b", "c")
