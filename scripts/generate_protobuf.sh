#!/bin/sh
# Regenerates every *_pb2.py and *_pb2.pyi of keys/ and protocol/ from the .proto files beside them.
#
# Usage: scripts/generate_protobuf.sh [PYTHON]
#
# The compiler comes from PyPI into a venv that is deleted at the end. Its release is pinned: it
# fixes the gencode at 6.31.0, the floor of `protobuf` in pyproject.toml. A newer compiler would
# refuse to load under an older runtime, so raise both together.
#
# Each package folder is a --proto_path and the .proto files are named by package path, so the
# imports inside generated modules are absolute (`from sbp2p_keys.pb import ...`).
set -eu

PYTHON=${1:-python3}
GRPCIO_TOOLS=1.73.1

cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT INT TERM

"$PYTHON" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    "grpcio-tools==$GRPCIO_TOOLS"

generate() { # generate FOLDER PACKAGE
    folder=$1
    package=$2
    found=$(cd "$folder" && find "$package" -name '*.proto' | LC_ALL=C sort)
    [ -n "$found" ] || return 0
    # shellcheck disable=SC2086  # one word per file, no spaces in our names
    "$venv/bin/python" -m grpc_tools.protoc --proto_path=keys --proto_path=protocol \
        --python_out="$folder" --pyi_out="$folder" $found
    # The stubs name Mapping without parameters, which mypy --strict refuses.
    find "$folder/$package" -name '*_pb2.pyi' \
        -exec sed -i.orig 's/_Mapping\]/_Mapping[str, object]]/g' {} \; -exec rm {}.orig \;
    printf '%s\n' "$found" | sed "s|^|$folder/|; s|\.proto\$|_pb2.py|"
}

generate keys sbp2p_keys
generate protocol sbp2p_protocol
