# Sourced (POSIX sh) by ./pipewright, tests/run and .ci/run with $root set: packages, configuration, build.

# Names are the same on Debian 12 and Ubuntu 24.04. The last row serves tests and benchmarks only.
packages="g++ meson ninja-build pkg-config
  libcli11-dev libyaml-cpp-dev libboost-graph-dev libfmt-dev nlohmann-json3-dev libsimdjson-dev libtbb-dev libsqlite3-dev
  zlib1g-dev
  doctest-dev librapidcheck-dev libbenchmark-dev coinor-libcbc-dev"

say() { echo "pipewright: $*" >&2; }

# install_packages PACKAGE...: those of the list and these that are missing; on another distribution, leaves it to meson to
# name what is not found.
install_packages() {
  command -v dpkg-query >/dev/null 2>&1 || return 0
  missing=
  for package in $packages "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    say "missing packages; run this, then try again:"
    echo "sudo apt-get update && sudo apt-get install --no-install-recommends -y$missing" >&2
    exit 3
  fi
  say "installing$missing"
  mkdir -p "$root/build"
  # Lists may be absent (containers) or too old to name a file that the mirror still has: update, always.
  { DEBIAN_FRONTEND=noninteractive apt-get update -q &&
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } \
    >"$root/build/packages.log" 2>&1 </dev/null || {
    say "apt-get failed; the end of build/packages.log:"
    tail -n 20 "$root/build/packages.log" >&2
    exit 3
  }
}

# configure DIRECTORY OPTION...: once; a directory whose configuration failed half-way is configured anew.
configure() {
  directory=$1
  shift
  [ -f "$root/$directory/build.ninja" ] && return 0
  mkdir -p "$root/$directory"
  say "configuring $directory"
  if command -v ccache >/dev/null 2>&1 && [ -z "${CXX:-}" ]; then CXX="ccache g++" && export CXX; fi
  meson setup "$@" "$root/$directory" "$root" >"$root/$directory/configure.log" 2>&1 || {
    say "meson failed; the end of $directory/configure.log:"
    tail -n 20 "$root/$directory/configure.log" >&2
    exit 3
  }
}

# show_progress: ninja's lines in, one changing line out on a terminal, else a line every tenth of the way.
show_progress() {
  tenth=0
  while IFS= read -r line; do
    case $line in
      \[*/*\]*) ;;
      *) continue ;;
    esac
    if [ -t 2 ]; then
      printf '\r\033[K%.100s' "$line" >&2
      continue
    fi
    step=${line#\[}
    step=${step%%\]*}
    now=$((10 * ${step%/*} / ${step#*/}))
    [ "$now" -le "$tenth" ] || say "[$step]"
    [ "$now" -le "$tenth" ] || tenth=$now
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# build DIRECTORY TARGET...: progress on standard error; the whole log stays in DIRECTORY.
build() {
  directory=$1
  shift
  say "building $directory (log: $directory/build.log)"
  built="$root/$directory/.built"
  rm -f "$built"
  { ninja -C "$root/$directory" "$@" 2>&1 && : >"$built"; } | tee "$root/$directory/build.log" | show_progress
  [ -f "$built" ] || {
    say "the build failed; the end of $directory/build.log:"
    tail -n 40 "$root/$directory/build.log" >&2
    exit 3
  }
}

# run_tests DIRECTORY [FILTER...]: all tests, or those whose names contain a FILTER; closes with "N passed, N failed".
run_tests() {
  directory=$1
  shift
  names=
  for filter in "$@"; do
    found=$(meson test -C "$root/$directory" --no-rebuild --list 2>/dev/null | sed 's/.* //' | grep -F -e "$filter")
    [ -n "$found" ] || { say "no test's name contains \"$filter\""; exit 2; }
    names="$names $found"
  done
  # Timeouts are for what hangs, not for a machine that is slow or runs under sanitizers.
  # shellcheck disable=SC2086  # names are words
  meson test -C "$root/$directory" --no-rebuild --print-errorlogs -t 10 $names
  python3 "$root/.ci/count_tests.py" "$root/$directory/meson-logs/testlog.json"
}
