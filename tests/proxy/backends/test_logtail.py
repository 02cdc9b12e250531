"""Why an engine ended, from its log."""

from pathlib import Path

from proxy.backends import logtail

LLAMA = """\
0.00.000.283 I srv          init: initializing ...
0.00.005.009 E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)
0.00.005.014 E llama_model_load: error loading model: llama_model_loader: failed to load model from /nope.gguf
0.00.005.227 E srv          init: exiting due to model loading error
slotgate keeper: got SIGTERM: ending the engine, process 1
"""


def test_root_and_consequence(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LLAMA)
    assert logtail.cause(path) == (
        "gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory) ... "
        "srv          init: exiting due to model loading error"
    )


def test_the_embedded_engine_says_it_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("noise: failed\nslotgate embedded engine: error: cannot read the model /x\n")
    assert logtail.cause(path) == "cannot read the model /x"


def test_its_summary_gives_way_to_the_lines_above(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("E out of memory\nslotgate embedded engine: error: did not start: see the lines above\n")
    assert logtail.cause(path) == "E out of memory"


def test_only_what_was_written_since(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old error\n")
    since = logtail.size(path)
    with path.open("a") as file:
        file.write("all is well\n")
    assert logtail.cause(path, since) == ""
    assert logtail.last(path, since) == "all is well"
    path.write_text("failed\n")  # rotated: shorter than before
    assert logtail.cause(path, since) == "failed"


def test_refused_requests_are_no_reason_to_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        '0.01.000 E srv operator(): got exception: {"error":{"code":400,"message":"bad"}}\n0.02.000 I done\n'
    )
    assert logtail.cause(path) == ""
    assert logtail.last(path) == "done"


def test_nothing_to_read(tmp_path: Path) -> None:
    assert logtail.size(tmp_path / "none") == 0
    assert logtail.cause(tmp_path / "none") == ""
    assert logtail.last(tmp_path / "none") == ""
