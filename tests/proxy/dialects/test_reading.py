from proxy.dialects.reading import count, image_bytes, names, prompts


def test_counts() -> None:
    assert [count(value) for value in (3, 0, -1, True, "3", None, 2.0)] == [3, 1, 1, 1, 1, 1, 1]


def test_prompts() -> None:
    assert [prompts(value) for value in ("x", ["a", "b"], [1, 2], [[1], [2]], [], None)] == [1, 2, 1, 2, 1, 1]


def test_images() -> None:
    source = {"type": "base64", "data": "a" * 50}
    assert image_bytes([{"content": [{"type": "image", "source": source}]}, {"content": "text"}, "x"]) == 50
    assert image_bytes([{"content": [{"image_url": "a" * 7}]}]) == 7
    assert image_bytes("text") == image_bytes(None) == 0


def test_names() -> None:
    assert names("a b\n c") == ("a", "b", "c")
