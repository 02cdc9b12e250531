"""`slotgate policy`: show and change how requests are routed, while they run."""

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, Socket, asking, fail, print_json, tell
from proxy.cli.tables import columns

if TYPE_CHECKING:
    from proxy.admin_api import PolicyAnswer, PolicyChangedAnswer, PolicySetting
    from proxy.admin_client import AdminClient

app = typer.Typer(help="Show and change how requests are routed.", no_args_is_help=True, rich_markup_mode=None)

ORIGINS = {"default": "the default", "config": "the configuration's", "set": "chosen live"}


@app.command()
def show(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these, with all there is to say.")
    ] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Show every weight and threshold: its value, its default, and where the value comes from."""
    with asking(socket) as proxy:
        answer = proxy.policy()
    if keys:
        answer.settings = [_setting(answer, key) for key in keys]
    if json:
        print_json(answer)
    else:
        print(settings_text(answer) if keys else policy_text(answer), end="")
    for problem in answer.problems:
        tell(f"note: not in force: {problem}")


@app.command("set")
def set_keys(
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys and values; all or none are set.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Set weights and thresholds. In force at once, and after a restart."""
    wanted = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{change!r}: write KEY=VALUE, such as hold_s=0.5", param_hint="KEY=VALUE")
        wanted[key.strip()] = value.strip()
    with asking(socket) as proxy:
        before = _set_live(proxy)
        answer = proxy.set_policy(wanted)
        after = _set_live(proxy)
    _show_changes(answer, before, after, json)
    if not json:
        changed = [change.key for change in answer.changes]
        undo = []
        if added := [key for key in after if key not in before]:
            undo.append(f"slotgate policy reset {' '.join(added)}")
        if other := [f"{key}={plain(before[key])}" for key in changed if key in before]:
            undo.append(f"slotgate policy set {' '.join(other)}")
        if undo:
            tell(f"undo: {' && '.join(undo)}")


@app.command()
def preset(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The preset to choose. Without it: list them.")
    ] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Choose a ready-made policy, or list them. Settings that no preset is about stay as they are."""
    if name is None:
        with asking(socket) as proxy:
            listed = proxy.policy()
        if json:
            print_json(listed.presets)
        else:
            print(presets_table(listed), end="")
        return
    with asking(socket) as proxy:
        before = _set_live(proxy)
        answer = proxy.choose_preset(name)
        after = _set_live(proxy)
    _show_changes(answer, before, after, json)


@app.command()
def reset(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these. Without: all, and the preset.")
    ] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Take back what was set live: what the preset or the configuration says holds again."""
    with asking(socket) as proxy:
        before = _set_live(proxy)
        answer = proxy.reset_policy(keys or [])
        after = _set_live(proxy)
    _show_changes(answer, before, after, json)


def policy_text(answer: "PolicyAnswer") -> str:
    """The policy in two lines, then one line per key."""
    live = sum(setting.origin == "set" for setting in answer.settings)
    head = (
        f"policy {answer.version}, preset {answer.preset} ({ORIGINS.get(answer.preset_origin, answer.preset_origin)}); "
        f"{live or 'no'} {'key' if live == 1 else 'keys'} set live\n"
        f"kept in {answer.file}\n\n"
    )
    rows = [
        (
            setting.key,
            plain(setting.value),
            plain(setting.default),
            setting.origin,
            _first_sentence(setting.meaning),
        )
        for setting in answer.settings
    ]
    return head + columns(("KEY", "VALUE", "DEFAULT", "ORIGIN", "MEANING"), rows, gap=3)


def settings_text(answer: "PolicyAnswer") -> str:
    """All there is to say of each key."""
    return "\n".join(
        f"{setting.key} = {plain(setting.value)}\n"
        f"  {setting.meaning}\n"
        f"  origin {setting.origin}; default {plain(setting.default)}; takes {setting.takes}\n"
        for setting in answer.settings
    )


def presets_table(answer: "PolicyAnswer") -> str:
    """One line per preset; the one in force has a star."""
    rows = [
        (
            f"{preset.name}*" if preset.name == answer.preset else preset.name,
            preset.meaning,
            " ".join(f"{key}={plain(value)}" for key, value in preset.changes.items()) or "-",
        )
        for preset in answer.presets
    ]
    return columns(("PRESET (* in force)", "MEANING", "CHANGES"), rows, gap=3)


def plain(value: bool | float | str) -> str:
    """A value as `policy set` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


Live = dict[str, bool | int | float | str]
"""What is set live: these values hold whatever the configuration or a preset says of their keys."""


def _set_live(proxy: "AdminClient") -> Live:
    return {setting.key: setting.value for setting in proxy.policy().settings if setting.origin == "set"}


def _show_changes(answer: "PolicyChangedAnswer", before: Live, after: Live, json: bool) -> None:
    """What has another value now; and what is set live now or no more, though its value is the same."""
    if json:
        print_json(answer)
        return
    changed = {change.key for change in answer.changes}
    for change in answer.changes:
        print(f"{change.key} = {plain(change.after)} (was {plain(change.before)})")
    pinned = [key for key in after if key not in before and key not in changed]
    for key in pinned:
        print(f"{key} = {plain(after[key])} (as before, but set live now: it holds whatever is configured)")
    freed = [key for key in before if key not in after and key not in changed]
    for key in freed:
        print(f"{key} = {plain(before[key])} (as before, but no longer set live)")
    if not (changed or pinned or freed):
        print("nothing changed")
    tell(f"policy {answer.version} is in force, preset {answer.preset}")


def _setting(answer: "PolicyAnswer", key: str) -> "PolicySetting":
    known = {setting.key: setting for setting in answer.settings}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        fail(
            f"{key}: unknown key\n" + (f"did you mean {near[0]}?" if near else "`slotgate policy show` lists all keys")
        )
    return known[key]


def _first_sentence(text: str) -> str:
    """For a table: up to the first full stop that ends a sentence."""
    sentence, stop, _ = text.partition(". ")
    return (sentence if stop else text).rstrip(".")
