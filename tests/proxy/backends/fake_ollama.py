"""An `ollama` that is none: it answers as Ollama does and has a child that outlives a hard kill, as Ollama's does."""

import json
import stat
import sys
import textwrap
from pathlib import Path

from tests.proxy.backends.answers import LOADED, TAG

SCRIPT = """\
#!{python} -IS
import http.server, json, os, signal, subprocess, sys

assert sys.argv[1:] == ["serve"]
child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"])
answers = {answers}

class Ollama(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"Ollama is running" if self.path == "/" else json.dumps(answers.get(self.path, {{}})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

def leave(*_):
    child.kill()
    child.wait()
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
with open(os.environ["CHILD_FILE"], "w") as file:
    file.write(str(child.pid))
host, port = os.environ["OLLAMA_HOST"].rsplit(":", 1)
try:
    listener = http.server.ThreadingHTTPServer((host, int(port)), Ollama)
except OSError as error:
    sys.exit(f"Error: listen tcp {{host}}:{{port}}: bind: {{error.strerror}}")
print("Listening", flush=True)
listener.serve_forever()
"""


def write_fake_ollama(directory: Path) -> Path:
    """The executable; it writes its child's pid to the file named by the environment variable CHILD_FILE."""
    answers = {"/api/version": {"version": "0.33.0"}, "/api/tags": {"models": [TAG]}, "/api/ps": {"models": [LOADED]}}
    path = directory / "ollama"
    # a first line of a script may be too short for the path of this Python: env -S has no such limit
    text = textwrap.dedent(SCRIPT).format(python=f"/usr/bin/env -S {sys.executable}", answers=json.dumps(answers))
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
