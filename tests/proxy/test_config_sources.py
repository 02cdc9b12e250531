"""Layers, origins, and that every problem is told at once with its place and its fix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.config_sources import ConfigError, LoadedConfig, Problem, default_files, load_config

Load = Callable[..., LoadedConfig]
ONE = {"backends": [{"url": "http://127.0.0.1:1"}]}


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """An empty /etc/slotgate."""
    (tmp_path / "etc" / "conf.d").mkdir(parents=True)
    return tmp_path / "etc"


@pytest.fixture
def load(tmp_path: Path, etc: Path) -> Load:
    """load_config in a home and an /etc of its own."""

    def load(
        flags: dict[str, Any] | None = None, *, environ: dict[str, str] | None = None, **more: Any
    ) -> LoadedConfig:
        environ = {"HOME": str(tmp_path), **(environ or {})}
        return load_config(flags or {}, **{"environ": environ, "etc": etc, "root": False, **more})

    return load


def problems(load: Load, *args: Any, **kwargs: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    assert all(str(problem) in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_later_layers_win_and_origins_say_so(load: Load, etc: Path, tmp_path: Path) -> None:
    (etc / "config.toml").write_text(
        'listen = "127.0.0.1:1"\nfleet = "etc"\n'
        "[limits]\nmax_waiting = 1\nmax_wait_s = 1\ndrain_s = 1\nmax_attempts = 1\n"
    )
    (etc / "conf.d" / "20-b.toml").write_text("[limits]\nmax_wait_s = 3\n")
    (etc / "conf.d" / "10-a.toml").write_text("[limits]\nmax_waiting = 2\nmax_wait_s = 2\n")
    (etc / "conf.d" / "ignored.txt").write_text("not toml")
    own = tmp_path / ".config" / "slotgate" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("limits.drain_s = 4\n")
    environ = {"SLOTGATE_LIMITS__MAX_ATTEMPTS": "5", "SLOTGATE_FLEET": ""}
    loaded = load({**ONE, "listen": "127.0.0.1:9"}, environ=environ)
    limits = loaded.config.limits
    assert (limits.max_waiting, limits.max_wait_s, limits.drain_s, limits.max_attempts) == (2, 3.0, 4.0, 5)
    assert loaded.config.listen == "127.0.0.1:9"
    assert loaded.config.fleet == "etc"  # an empty variable is not set
    origins = loaded.origins
    assert origins["limits.max_waiting"] == f"{etc}/conf.d/10-a.toml:2"
    assert origins["limits.max_wait_s"] == f"{etc}/conf.d/20-b.toml:2"
    assert origins["limits.drain_s"] == f"{own}:1"
    assert origins["limits.max_attempts"] == "environment SLOTGATE_LIMITS__MAX_ATTEMPTS"
    assert origins["listen"] == "flag --listen"
    assert origins["fleet"] == f"{etc}/config.toml:2"
    assert origins["log.level"] == "default"
    assert origins["backends[0].url"] == "flag --backend"
    assert origins["backends[0].slots"] == "default"
    assert loaded.files == (etc / "config.toml", etc / "conf.d/10-a.toml", etc / "conf.d/20-b.toml", own)


def test_no_file_is_needed(load: Load) -> None:
    urls = [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}]
    loaded = load({"listen": "127.0.0.1:0", "backends": urls, "store.url": None})
    assert [backend.url for backend in loaded.config.backends] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert loaded.files == ()
    assert loaded.origins["store.url"] == "default"


def test_files_for_root_and_others(tmp_path: Path, etc: Path) -> None:
    assert default_files({"HOME": "/h"}, etc, root=True) == [etc / "config.toml"]
    assert default_files({"HOME": "/h"}, etc, root=False)[-1] == Path("/h/.config/slotgate/config.toml")
    assert default_files({"XDG_CONFIG_HOME": "/x"}, etc, root=False)[-1] == Path("/x/slotgate/config.toml")
    assert default_files({"HOME": "/h"}, tmp_path / "none", root=True) == [tmp_path / "none" / "config.toml"]


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_file_stands_alone(load: Load, etc: Path, tmp_path: Path, by_variable: bool) -> None:
    (etc / "config.toml").write_text("nonsense = [\n")
    named = tmp_path / "mine.toml"
    named.write_text('fleet = "mine"\n')
    environ = {"SLOTGATE_CONFIG": str(named)} if by_variable else {}
    loaded = load(ONE, environ=environ, config_file=None if by_variable else named)
    assert loaded.config.fleet == "mine"
    assert loaded.files == (named,)


def test_backends_of_etc_are_joined_and_replaced_by_later_layers(load: Load, etc: Path) -> None:
    (etc / "config.toml").write_text('[[backends]]\nurl = "http://a:1"\n')
    (etc / "conf.d" / "b.toml").write_text(
        '# b\n[[backends]]\nurl = "http://b:1"\n[[backends]]\nurl = "http://c:1"\nslots = 2\n'
    )
    loaded = load()
    assert [backend.url for backend in loaded.config.backends] == ["http://a:1", "http://b:1", "http://c:1"]
    assert loaded.origins["backends[0].url"] == f"{etc}/config.toml:2"
    assert loaded.origins["backends[2].slots"] == f"{etc}/conf.d/b.toml:6"
    replaced = load(environ={"SLOTGATE_BACKENDS": "http://d:1, http://e:1"})
    assert [backend.url for backend in replaced.config.backends] == ["http://d:1", "http://e:1"]
    assert replaced.origins["backends[1].url"] == "environment SLOTGATE_BACKENDS"
    assert replaced.origins["backends[1].slots"] == "default"


def test_backends_as_json(load: Load) -> None:
    text = '[{"url": "http://a:1", "slots": 2}, {"engine": "ollama", "gpus": [0]}]'
    first, second = load(environ={"SLOTGATE_BACKENDS": text}).config.backends
    assert (first.slots, second.engine, second.gpus) == (2, "ollama", ["0"])
    assert len(load(environ={"SLOTGATE_BACKENDS": '{"url": "http://a:1"}'}).config.backends) == 1
    (problem,) = problems(load, environ={"SLOTGATE_BACKENDS": "[{"})
    assert problem.where == "environment SLOTGATE_BACKENDS"
    assert "not valid JSON" in problem.what


def test_other_lists_from_variables(load: Load) -> None:
    for text in ("https://a.example, https://b.example", '["https://a.example", "https://b.example"]'):
        assert load(ONE, environ={"SLOTGATE_ORIGINS": text}).config.origins == [
            "https://a.example",
            "https://b.example",
        ]


def test_policy_keys_are_merged_one_by_one(load: Load, etc: Path) -> None:
    (etc / "config.toml").write_text("[policy]\npreset = 'sticky'\n[policy.set]\nhold_s = 1.5\nwindow = 8\n")
    (etc / "conf.d" / "a.toml").write_text("[policy]\nset = { window = 16 }\n")
    loaded = load(ONE)
    assert loaded.config.policy.set == {"hold_s": 1.5, "window": 16}
    assert loaded.origins["policy.set"] == f"{etc}/config.toml:4, {etc}/conf.d/a.toml:2"
    for text in ("order=fcfs, window = 4", '{"order": "fcfs", "window": "4"}'):
        loaded = load(ONE, environ={"SLOTGATE_POLICY__SET": text})
        assert loaded.config.policy.set == {"hold_s": 1.5, "window": "4", "order": "fcfs"}
    assert "environment SLOTGATE_POLICY__SET" in loaded.origins["policy.set"]
    assert load(ONE, environ={}).config.policy.preset == "sticky"


def test_wrong_policy_keys_are_told_with_their_lines(load: Load, tmp_path: Path) -> None:
    named = tmp_path / "c.toml"
    named.write_text(
        "[policy]\npreset = 'stiky'\n[policy.set]\nhold_s = 1\nhold_ratio = 2\nwindw = 1\nmax_waiting = 1\n"
    )
    found = {problem.key: problem for problem in problems(load, ONE, config_file=named)}
    assert found["policy.preset"].what.startswith("'stiky': should be \"balanced\", ")
    assert found["policy.set.hold_ratio"].what == "2 is not a number from 0 to 1"
    assert found["policy.set.hold_ratio"].where == f"{named}:5"
    assert found["policy.set.windw"].fix == "did you mean window?"
    assert found["policy.set.max_waiting"].fix.startswith("set limits.max_waiting there")
    assert len(found) == 4


def test_unknown_keys_name_the_nearest_right_key(load: Load, tmp_path: Path) -> None:
    named = tmp_path / "c.toml"
    named.write_text(
        'lisen = "x"\nmax_waiting = 4\nzzz = 1\n[limits]\nmax_waitng = 5\n[[backends]]\nurl = "http://a:1"\nslot = 3\n'
        "[bakends]\n[store.pool]\nsize = 1\n"
    )
    found = {problem.key: problem for problem in problems(load, config_file=named)}
    assert found["lisen"].fix == "did you mean listen?"
    assert found["lisen"].where == f"{named}:1"
    assert found["max_waiting"].fix == "did you mean limits.max_waiting?"
    assert found["limits.max_waitng"].fix == "did you mean limits.max_waiting?"
    assert found["limits.max_waitng"].where == f"{named}:5"
    assert found["backends[0].slot"].fix == "did you mean backends[0].slots?"
    assert found["backends[0].slot"].where == f"{named}:8"
    assert found["bakends"].fix == "did you mean backends?"
    assert found["zzz"].fix.startswith("remove it; known here: listen, fleet")
    assert found["store.pool"].where == f"{named}:10"
    assert len(found) == 7


def test_unknown_variables_name_the_nearest(load: Load) -> None:
    environ = {
        "SLOTGATE_LISTNE": "x",
        "SLOTGATE_LIMIT__MAX_WAITING": "1",
        "SLOTGATE_BACKENDS__0__URL": "x",
        "OTHER": "y",
    }
    found = {problem.where: problem.fix for problem in problems(load, ONE, environ=environ)}
    assert found == {
        "environment SLOTGATE_LISTNE": "did you mean SLOTGATE_LISTEN?",
        "environment SLOTGATE_LIMIT__MAX_WAITING": "did you mean SLOTGATE_LIMITS__MAX_WAITING?",
        "environment SLOTGATE_BACKENDS__0__URL": "set SLOTGATE_BACKENDS to a JSON list, or to URLs separated by commas",
    }


def test_a_variable_for_a_whole_table_names_those_for_its_options(load: Load) -> None:
    [problem] = problems(load, ONE, environ={"SLOTGATE_LOG": "debug"})
    assert problem.what == "unknown variable"
    names = "SLOTGATE_LOG__LEVEL, SLOTGATE_LOG__FORMAT, SLOTGATE_LOG__REQUESTS"
    assert problem.fix == f"it is a table; set its options one by one, such as {names}"
    [problem] = problems(load, ONE, environ={"SLOTGATE_LIMITS": "5"})
    assert "SLOTGATE_LIMITS__MAX_WAITING" in problem.fix


def test_a_state_directory_that_is_a_file(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for named in (file, file / "below"):
        [problem] = problems(load, {**ONE, "state_dir": str(named)})
        assert (problem.where, problem.key) == ("flag --state-dir", "state_dir")
        assert problem.what == f"{file} is not a directory"
        assert problem.fix == "name a directory; slotgate makes it where there is none"
    assert load({**ONE, "state_dir": str(tmp_path / "new" / "one")}).config.state_dir == tmp_path / "new" / "one"


def test_a_backend_that_is_the_proxy_itself(load: Load) -> None:
    own = {"backends": [{"url": "http://localhost:11434"}]}
    [problem] = problems(load, own)
    assert problem.key == "backends[0].url"
    assert problem.what == "http://localhost:11434 is where slotgate itself listens (listen = 127.0.0.1:11434)"
    load({**own, "listen": "127.0.0.1:11435"})


def test_all_problems_of_all_layers_at_once(load: Load, etc: Path) -> None:
    (etc / "config.toml").write_text(
        '[limits]\nmax_waiting = "many"\n[[backends]]\nurl = "https://a"\n[[backends]]\nmodel = "/m"\napi_key = "k"\n'
    )
    (etc / "conf.d" / "broken.toml").write_text('a = 1\nb = = 2\nc = "')
    found = problems(load, {"log.level": "loud"}, environ={"SLOTGATE_LIMITS__DRAIN_S": "-1", "SLOTGATE_NO": "1"})
    assert [(problem.where, problem.key) for problem in found] == [
        (f"{etc}/conf.d/broken.toml:2:5", ""),
        (f"{etc}/config.toml:2", "limits.max_waiting"),
        (f"{etc}/config.toml:4", "backends[0].url"),
        (f"{etc}/config.toml:7", "backends[1].api_key"),
        ("environment SLOTGATE_NO", ""),
        ("environment SLOTGATE_LIMITS__DRAIN_S", "limits.drain_s"),
        ("flag --log-level", "log.level"),
    ]
    assert all(problem.what and problem.fix for problem in found)
    assert "b = = 2" in found[0].fix
    assert found[-1].what == '\'loud\': should be "debug", "info", "warning" or "error"'


def test_a_choice_of_types_is_one_problem(load: Load) -> None:
    (problem,) = problems(load, {"backends": [{"model": "/m", "gpus": [{}]}]})
    assert problem.key == "backends[0].gpus"
    assert problem.what == 'should be "auto", "none" or a list of text'


def test_values_that_may_hold_secrets_are_not_repeated(load: Load) -> None:
    found = problems(load, {**ONE, "store.url": "http://user:hunter2@host"})
    assert "hunter2" not in str(found[0])


def test_no_backends(load: Load, tmp_path: Path) -> None:
    (problem,) = problems(load)
    assert "slotgate serve --backend=" in problem.fix
    assert "[[backends]]" in problem.fix
    assert load(need_backends=False).config.backends == []
    assert load({"store.url": "redis://127.0.0.1"}).config.backends == [], "others of the fleet may have some"
    # A file that could not be read may have named them: do not send the operator after a second fault.
    found = problems(load, config_file=tmp_path / "missing.toml")
    assert [problem.what for problem in found] == ["no such file"]


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (b'listen = "a', "not valid TOML", ":1:"),
        (b"a = 1\na = 2\n", "not valid TOML", ":2:"),
        (b"a = 1\n\xff\xfe", "is not UTF-8 text", ":2"),
    ],
)
def test_files_that_are_no_toml(load: Load, tmp_path: Path, content: bytes, what: str, line: str) -> None:
    named = tmp_path / "c.toml"
    named.write_bytes(content)
    (problem,) = problems(load, config_file=named)
    assert what in problem.what
    assert problem.where.startswith(f"{named}{line}")


def test_a_file_that_cannot_be_read(load: Load, tmp_path: Path) -> None:
    (problem,) = problems(load, config_file=tmp_path)  # a folder
    assert problem.what.startswith("cannot be read: Is a directory")


def test_a_value_where_a_table_belongs_and_the_other_way(load: Load, tmp_path: Path) -> None:
    named = tmp_path / "c.toml"
    named.write_text("limits = 5\nbackends = 3\n[listen]\nx = 1\n")
    found = problems(load, config_file=named)
    assert [(problem.where, problem.key) for problem in found] == [
        (f"{named}:1", "limits"),
        (f"{named}:2", "backends"),
        (f"{named}:3", "listen"),
    ]
    repaired = load(ONE, config_file=None, environ={"SLOTGATE_LIMITS__DRAIN_S": "2"})
    assert repaired.config.limits.drain_s == 2
