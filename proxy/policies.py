"""The policy document: what was set of the policy, where it is kept, and what is in force.

Later layers win: the defaults, the configuration's preset, its `policy.set`, a preset that was chosen live, what was
set live. Two keys are the configuration's alone. What a policy does is the scheduler's business.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from proxy.admin_api import PolicyAnswer, PolicyChange, PolicyChangedAnswer, PolicyPreset, PolicySetting
from proxy.config import LimitsConfig, PolicyConfig
from proxy.config_tree import toml_key, toml_value
from proxy.policy_keys import (
    OF_THE_CONFIGURATION,
    PolicyError,
    PolicyProblem,
    checked,
    default,
    documentation,
    fields,
    known_preset,
    nearest,
    problems_of,
    takes,
)
from scheduler.policy import Policy
from scheduler.presets import MEANINGS, PRESETS, Value, settled

log = structlog.get_logger("slotgate.policies")

FILE = "policy.toml"
"""Name of the document in the state directory."""

LAST_VERSION = 1_000_000
"""Where `Policy.version` ends; a larger one was not written by slotgate."""

_HEAD = "# What was set with `slotgate policy`: change it with that. Read when slotgate starts.\n"


class Kept(msgspec.Struct, frozen=True):
    """What the file holds."""

    version: int = 0
    digest: str = ""
    """Of the policy in force under that version: another one at the next start gets the next version."""
    preset: str = ""
    """Empty: the configuration's."""
    set: dict[str, Value] = {}


class Shared(msgspec.Struct, frozen=True):
    """What the proxies of a fleet agree on: all that was set, without what each has in its configuration."""

    version: int
    preset: str = ""
    set: dict[str, Value] = {}


class PolicyDocument:
    """The policy in force, and what it is made of. Every change is on disk before it is in force."""

    def __init__(self, path: Path, config: PolicyConfig, limits: LimitsConfig, *, keeps_file: bool = True) -> None:
        """Read the file, if there is one; what is wrong there is left out and told in `problems`.

        Args:
            path: the file.
            config: the configuration's part.
            limits: of the configuration.
            keeps_file: this process writes the file; otherwise another one of its state directory does.

        Raises:
            PolicyError: the configuration's part is wrong.
        """
        self.path = path
        self.on_change: Callable[[Policy], None] | None = None
        """Told of every policy that comes into force from now on."""
        self.problems: list[str] = []
        """What of the file is not in force, and why; until the next change."""
        self._config = config
        self._limits = limits
        self._keeps_file = keeps_file
        self._check_config(config)
        self._kept = self._read()
        self._values, self._origins = self._compose(self._kept)
        self.policy = Policy()
        """In force."""
        self._renew(self._kept)

    def reconfigure(self, config: PolicyConfig, limits: LimitsConfig) -> bool:
        """Take over another configuration; whether that changed the policy.

        Raises:
            PolicyError: it is wrong; nothing has changed.
        """
        self._check_config(config)
        self._config, self._limits = config, limits
        return self._renew(self._kept)

    def set(self, changes: Mapping[str, object]) -> PolicyChangedAnswer:
        """Set keys; all or none.

        Raises:
            PolicyError: something is wrong with them, or they cannot be kept; nothing has changed.
        """
        if problems := list(problems_of(changes)):
            raise PolicyError(problems)
        given = {key: checked(key, value) for key, value in changes.items()}
        return self._change(msgspec.structs.replace(self._kept, set={**self._kept.set, **given}))

    def choose(self, preset: str) -> PolicyChangedAnswer:
        """Choose a preset. It settles all keys that presets are about; what was set of others stays.

        Raises:
            PolicyError: there is none of that name, or it cannot be kept; nothing has changed.
        """
        routed = settled(known_preset(preset))
        stays = {key: value for key, value in self._kept.set.items() if key not in routed}
        return self._change(msgspec.structs.replace(self._kept, preset=preset, set=stays))

    def reset(self, keys: Iterable[str] = ()) -> PolicyChangedAnswer:
        """Take back what was set of some keys; without any, all of it and the preset: what remains is configured.

        Raises:
            PolicyError: there is no such key, or the change cannot be kept; nothing has changed.
        """
        keys = list(keys)
        if not keys:
            return self._change(msgspec.structs.replace(self._kept, preset="", set={}))
        if unknown := [PolicyProblem(key, "unknown key", nearest(key)) for key in keys if key not in fields()]:
            raise PolicyError(unknown)
        stays = {key: value for key, value in self._kept.set.items() if key not in keys}
        return self._change(msgspec.structs.replace(self._kept, set=stays))

    @property
    def shared(self) -> Shared:
        """What the rest of the fleet has to know of it."""
        return Shared(self._kept.version, self._kept.preset, dict(self._kept.set))

    def adopt(self, shared: Shared) -> bool:
        """Take over what was set elsewhere, instead of what was set here; whether that changed anything.

        What is wrong there is left out and told in `problems`.
        """
        if shared == self.shared:
            return False
        self.problems = []
        preset, good = self._checked(shared.preset, shared.set, "the fleet's policy")
        kept = Kept(_usable(shared.version), preset=preset, set=good)
        values, origins = self._compose(kept)
        kept = msgspec.structs.replace(kept, digest=_digest(values))
        self._try_to_write(kept)
        self._put_in_force(kept, values, origins)
        return True

    @property
    def preset(self) -> str:
        """The preset in force."""
        return self._kept.preset or self._config.preset

    def answer(self) -> PolicyAnswer:
        """The whole of it, for who asks."""
        meanings = documentation()
        return PolicyAnswer(
            version=self.policy.version,
            preset=self.preset,
            preset_origin="set"
            if self._kept.preset
            else "config"
            if "preset" in self._config.model_fields_set
            else "default",
            settings=[
                PolicySetting(
                    key=key,
                    value=value,
                    default=default(key),
                    origin=self._origins[key],
                    takes=takes(key),
                    meaning=meanings.get(key, ""),
                )
                for key, value in self._values.items()
            ],
            presets=[PolicyPreset(name, MEANINGS[name], dict(changes)) for name, changes in PRESETS.items()],
            file=str(self.path),
            problems=self.problems,
        )

    def _check_config(self, config: PolicyConfig) -> None:
        known_preset(config.preset)
        if problems := list(problems_of(config.set)):
            raise PolicyError([msgspec.structs.replace(each, key=f"policy.set.{each.key}") for each in problems])

    def _compose(self, kept: Kept) -> tuple[dict[str, Value], dict[str, str]]:
        """The value of each key, and where it comes from: default, preset, config or set."""
        values = {key: default(key) for key in fields()}
        origins = dict.fromkeys(values, "default")

        def lay(changes: Mapping[str, Value], origin: str) -> None:
            values.update(changes)
            origins.update(dict.fromkeys(changes, origin))

        lay(PRESETS[self._config.preset], "preset")
        lay({key: checked(key, value) for key, value in self._config.set.items()}, "config")
        if kept.preset:
            lay(settled(kept.preset), "default")
            lay(PRESETS[kept.preset], "preset")
        lay(kept.set, "set")
        for key, option in OF_THE_CONFIGURATION.items():
            name = option.rpartition(".")[2]
            given = name in self._limits.model_fields_set
            lay({key: getattr(self._limits, name)}, "config" if given else "default")
        return values, origins

    def _change(self, kept: Kept) -> PolicyChangedAnswer:
        before = self._values
        values, origins = self._compose(kept)
        kept = _numbered(kept, values)
        if kept != self._kept or self.problems:
            try:
                self._write(kept)
            except OSError as error:
                what = f"cannot write {self.path}: {error.strerror or error}"
                raise PolicyError([PolicyProblem("", what, "free space there, or correct its owner")]) from error
            self.problems = []
            self._put_in_force(kept, values, origins)
        changes = [
            PolicyChange(key, before[key], value, origins[key]) for key, value in values.items() if value != before[key]
        ]
        return PolicyChangedAnswer(self.policy.version, self.preset, changes)

    def _renew(self, kept: Kept) -> bool:
        """The same with what was not asked for by a change: it is in force whether or not it can be kept."""
        values, origins = self._compose(kept)
        kept = _numbered(kept, values)
        if kept != self._kept:
            self._try_to_write(kept)
        return self._put_in_force(kept, values, origins)

    def _put_in_force(self, kept: Kept, values: dict[str, Value], origins: dict[str, str]) -> bool:
        policy = msgspec.convert({**values, "version": kept.version}, Policy)
        is_new = policy != self.policy
        self._kept, self._values, self._origins, self.policy = kept, values, origins, policy
        if is_new and self.on_change is not None:
            self.on_change(policy)
            log.info("policy changed", version=policy.version, preset=self.preset)
        return is_new

    def _read(self) -> Kept:
        try:
            text = self.path.read_bytes().decode()
            data = tomllib.loads(text)
        except FileNotFoundError:
            return Kept()
        except (OSError, ValueError, RecursionError) as error:
            return self._unreadable(str(error))
        preset, good = self._checked(data.get("preset", ""), data.get("set"), str(self.path))
        return Kept(
            version=_usable(data.get("version")),
            digest=str(data.get("digest", "")),
            preset=preset,
            set=good,
        )

    def _checked(self, preset: object, wanted: object, where: str) -> tuple[str, dict[str, Value]]:
        """What can be in force of what somebody wrote."""
        if not isinstance(preset, str) or (preset and preset not in PRESETS):
            self._leave_out(where, f"preset: there is none called {preset!r}")
            preset = ""
        good: dict[str, Value] = {}
        for key, given in wanted.items() if isinstance(wanted, dict) else ():
            try:
                good[key] = checked(key, given)
            except PolicyError as error:
                self._leave_out(where, str(error).partition("\n")[0])
        return preset, good

    def _unreadable(self, why: str) -> Kept:
        """Keep the file aside for whoever edited it, and go on: versions do not begin anew if one can be made out."""
        aside = self.path.with_name(f"{self.path.name}.unreadable")
        version = 0
        try:
            found = re.search(rb"^version\s*=\s*(\d{1,7})\s*$", self.path.read_bytes(), re.MULTILINE)
            version = _usable(int(found[1])) if found else 0
            if self._keeps_file:
                self.path.replace(aside)
                why += f"; it is now {aside.name}"
        except OSError:
            pass
        self._leave_out(str(self.path), f"cannot be read: {why}")
        return Kept(version=version)

    def _leave_out(self, where: str, what: str) -> None:
        log.error("part of the policy is not in force", where=where, problem=what)
        self.problems.append(f"{where}: {what}")

    def _try_to_write(self, kept: Kept) -> None:
        """For what is in force whether or not it can be kept."""
        try:
            self._write(kept)
        except OSError as error:
            log.warning("policy not kept", file=str(self.path), error=error.strerror or str(error))

    def _write(self, kept: Kept) -> None:
        """Replace the file; it is never half written. Short enough for the event loop."""
        if not self._keeps_file:
            return
        lines = [f"version = {kept.version}", f"digest = {toml_value(kept.digest)}"]
        if kept.preset:
            lines.append(f"preset = {toml_value(kept.preset)}")
        lines += ["", "[set]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in kept.set.items())]
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(_HEAD + "\n".join(lines) + "\n")
        new.replace(self.path)


def _usable(version: object) -> int:
    """A version that was read, if it is one and others can come after it; 0 otherwise."""
    return version if type(version) is int and 0 < version <= LAST_VERSION else 0


def _numbered(kept: Kept, values: Mapping[str, Value]) -> Kept:
    """With the next version if the policy is not the one of its present version."""
    digest = _digest(values)
    if digest == kept.digest:
        return kept
    return msgspec.structs.replace(kept, version=kept.version % LAST_VERSION + 1, digest=digest)


def _digest(values: Mapping[str, Value]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(values.items()))).hexdigest()[:16]
