"""Names of models as Ollama reads them: host, namespace, model, tag. Must not know which models there are."""

import re

import msgspec

_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")


class Name(msgspec.Struct, frozen=True):
    """One model's name with everything that was left out."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def short(self) -> str:
        """As the listings show it: without the defaults, but with the tag."""
        parts = [self.model]
        if self.namespace != _NAMESPACE or self.host != _HOST:
            parts.insert(0, self.namespace)
        if self.host != _HOST:
            parts.insert(0, self.host)
        return f"{'/'.join(parts)}:{self.tag}"

    @property
    def full(self) -> str:
        """With host and namespace."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def path(self) -> str:
        """Where the manifest lies in a store."""
        return f"manifests/{self.host}/{self.namespace}/{self.model}/{self.tag}"


def read_name(text: str) -> Name | None:
    """A name as clients write it; None: it is none."""
    rest, _, tag = text.partition(":") if "/" not in text else _split_tag(text)
    parts = rest.split("/")
    if len(parts) > 3 or (tag == "" and text.endswith(":")):
        return None
    model = parts[-1]
    namespace = parts[-2] if len(parts) > 1 else _NAMESPACE
    host = parts[0] if len(parts) > 2 else _HOST
    name = Name(host, namespace, model, tag or "latest")
    valid = all(_PART.match(part) for part in (name.namespace, name.model, name.tag))
    return name if valid and re.match(r"[A-Za-z0-9_][\w.:\-]*\Z", host) else None


def _split_tag(text: str) -> tuple[str, str, str]:
    """The tag is behind the last colon that comes after the last slash: a host may have a port."""
    before, slash, last = text.rpartition("/")
    model, colon, tag = last.partition(":")
    return f"{before}{slash}{model}", colon, tag


def name_of_path(path: str) -> Name | None:
    """The name whose manifest lies at a path of a store."""
    parts = path.split("/")
    return Name(*parts[1:]) if len(parts) == 5 and parts[0] == "manifests" else None


def is_cloud(text: str) -> bool:
    """Whether a name stands for a model of ollama.com: the tag is `cloud` or ends so."""
    tag = text.rpartition("/")[2].partition(":")[2]
    return tag == "cloud" or tag.endswith("-cloud")
