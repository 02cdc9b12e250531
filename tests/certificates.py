"""Certificates for tests, made with the openssl command: an authority, and one for this machine's loopback address."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificates(NamedTuple):
    """Files in PEM."""

    ca: Path
    cert: Path
    key: Path


def make_certificates(directory: Path, *names: str) -> Certificates:
    """An authority of its own and a certificate that it signed, for names such as `IP:127.0.0.1` or `DNS:box-a`."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (apt install openssl)")
    ca, ca_key, cert, key = (directory / name for name in ("ca.pem", "ca.key", "gate.pem", "gate.key"))
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days=2"]
    _run([*new, "-subj=/CN=Boxes", f"-keyout={ca_key}", f"-out={ca}"])
    alternatives = f"-addext=subjectAltName={','.join(names or ('IP:127.0.0.1', 'DNS:localhost'))}"
    own = ["-subj=/CN=gate", alternatives, "-addext=basicConstraints=critical,CA:FALSE"]
    _run([*new, *own, f"-CA={ca}", f"-CAkey={ca_key}", f"-keyout={key}", f"-out={cert}"])
    return Certificates(ca, cert, key)


def _run(command: list[str]) -> None:
    words = [
        part for word in command for part in (word.split("=", 1) if word.startswith("-") and "=" in word else [word])
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
