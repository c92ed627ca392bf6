#!/bin/bash
# Installs the build into an empty folder and uses it from elsewhere: profiles, version, manual pages, completions,
# headers and library with a C++ program of somebody else.
#   install_test.sh BUILD COMPILER...
set -euo pipefail
build=$1
shift
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PIPEWRIGHT_PROFILES

fail() { echo "FAILED: $*"; exit 1; }
passed=0
ok() { passed=$((passed + 1)); }

DESTDIR=$work/root meson install -C "$build" --no-rebuild --quiet
prefix=$work/root$(meson introspect "$build" --buildoptions |
  python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))')
program=$prefix/bin/pipewright
cd "$work"

# The installed prefix may lie anywhere: its own profiles are found.
"$program" --version >version
grep -Eq '^pipewright [0-9]+\.[0-9]+\.[0-9]+ \(commit [0-9a-f]+\)$|^pipewright [0-9.]+ \(commit unknown\)$' version ||
  fail "--version: $(cat version)"
grep -Fq "(in $prefix/share/pipewright/profiles)" version || fail "--version names other profiles: $(cat version)"
for profile in h100-sxm h200-sxm; do grep -q "$profile" version || fail "no $profile in $(cat version)"; done
ok
"$program" simulate "$prefix/share/pipewright/scenarios/llama3-8b-pretrain-8xh100.yaml" --json step.json >/dev/null
grep -q '"step_time_ms"' step.json || fail "simulate of an installed scenario"
ok
mkdir more
cp "$prefix/share/pipewright/profiles/h200-sxm.json" more/mine.json
PIPEWRIGHT_PROFILES=$work/more "$program" list profiles >listed
grep -q '^mine ' listed || fail "\$PIPEWRIGHT_PROFILES is not looked into"
grep -q '^h100-sxm ' listed || fail "\$PIPEWRIGHT_PROFILES hides the installed profiles"
ok

# A page for every command, without a complaint of man's.
"$program" list commands --json commands.json >/dev/null
names=$(python3 -c 'import json; print(*sorted({c["name"].split()[0] for c in json.load(open("commands.json"))["commands"]}))')
for name in '' $names; do
  page=$prefix/share/man/man1/pipewright${name:+-$name}.1
  [ -s "$page" ] || fail "no manual page $page"
  if command -v man >/dev/null; then
    MANROFFSEQ='' LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 "$page" >text 2>complaints
    [ ! -s complaints ] || fail "$page: $(cat complaints)"
    sed 's/.\x08//g' text >plain  # no pipe: grep -q ends at NAME, and sed would be told so by a signal
    grep -q '^NAME' plain || fail "$page has no NAME"
  fi
done
ok
for file in bash-completion/completions/pipewright zsh/site-functions/_pipewright fish/vendor_completions.d/pipewright.fish; do
  [ -s "$prefix/share/$file" ] || fail "no $file"
done
ok

# Every public header compiles alone beside the others, and a program links with what pkg-config says.
PKG_CONFIG_PATH=$(find "$prefix" -name pkgconfig -type d) && export PKG_CONFIG_PATH
(cd "$prefix/include" && find pipewright -name '*.hpp' | LC_ALL=C sort | sed 's/.*/#include "&"/') >all.cpp
[ "$(wc -l <all.cpp)" -gt 20 ] || fail "only $(wc -l <all.cpp) headers are installed"
cat all.cpp "$here/outside.cpp" >program.cpp
# shellcheck disable=SC2046  # words
"$@" -std=c++20 -O0 program.cpp -o outside \
  $(PKG_CONFIG_SYSROOT_DIR=$work/root pkg-config --cflags --libs pipewright)
PIPEWRIGHT_PROFILES=$prefix/share/pipewright/profiles ./outside \
  "$prefix/share/pipewright/scenarios/llama3-8b-pretrain-8xh100.yaml" >step
python3 - <<'PY' || fail "the library says $(cat step)"
import json
assert abs(float(open("step").read()) - json.load(open("step.json"))["step_time_ms"]) < 1e-6
PY
ok
echo "$passed passed, 0 failed"
