#!/bin/sh
# Builds the C extension with the address and undefined-behaviour sanitizers into a temporary
# directory and runs the kernel tests on it there. Needs gcc with its sanitizer runtimes
# (Linux). PYTHON names the interpreter; arguments go to pytest. `--run ...` hands
# the rest to Python instead.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-python3}
cc=${CC:-gcc}

runtime() {
    path=$("$cc" -print-file-name="$1")
    case $path in
    /*) echo "$path" ;;
    *)
        echo "$cc has no $1: install its sanitizer runtimes" >&2
        exit 1
        ;;
    esac
}
# pyarrow throws C++ exceptions, so their runtime must be there when the sanitizer starts.
asan=$(runtime libasan.so)
cxx=$(runtime libstdc++.so.6)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# A copy, so that neither the working directory nor an editable install offers another build.
cp -R "$root/dedup" "$root/tests" "$work/"
rm -f "$work"/dedup/kernel/_native*.so "$work"/dedup/kernel/_native*.pyd

"$cc" -std=c11 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -Werror \
    -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared \
    -DPy_LIMITED_API=0x030B0000 \
    -I"$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    "$here"/*.c -o "$work/dedup/kernel/_native.abi3.so"

cd "$work"
export PYTHONPATH="$work" PYTHONMALLOC=malloc DEDUP_SANITIZED=1
export LD_PRELOAD="$asan $cxx"
# Python itself frees little at exit; the interceptors cannot tell that from our leaks.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

"$python" -c '
import sys
from dedup.kernel import _native
assert _native.__file__.startswith(sys.argv[1]), _native.__file__
' "$work"
if [ "${1:-}" = --run ]; then
    shift
    "$python" "$@"
    exit
fi
# --capture=sys lets the sanitizer's own report through.
"$python" -m pytest -q -p no:cacheprovider --capture=sys --rootdir "$work" tests/unit/test_kernel_*.py \
    tests/unit/test_catalog_table.py "$@"
