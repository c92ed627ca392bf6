#!/bin/bash
# The promise of README.md where nothing is installed: a bare Debian 12 and a bare Ubuntu 24.04, a clone of what is
# committed, its first command; in Ubuntu, whose compiler is another than here, all tests are built, too. Needs an hour,
# both mirrors and root; only with PIPEWRIGHT_LONG.
#   fresh_test.sh PROGRAM
set -euo pipefail
[ -n "${PIPEWRIGHT_LONG:-}" ] || { echo "only with PIPEWRIGHT_LONG"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "debootstrap needs root"; exit 77; }
program=$1
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
work=$(mktemp -d)
# shellcheck disable=SC2064  # now
trap "rm -rf '$work'" EXIT
command -v debootstrap >/dev/null ||
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap
cd "$root"
"$program" plan scenarios/llama3-70b-sft-32xh100.yaml >"$work/here" 2>/dev/null

# fresh NAME SUITE MIRROR [COMMAND]: debootstrap of Debian 12 has no script of Ubuntu's later names; one does for all.
fresh() {
  local name=$1 bare=$work/$1 script=/usr/share/debootstrap/scripts/bookworm
  [ "$name" != ubuntu ] || script=/usr/share/debootstrap/scripts/gutsy
  debootstrap --variant=minbase --no-check-gpg --components=main$([ "$name" != ubuntu ] || echo ,universe) \
    "$2" "$bare" "$3" "$script" >"$work/$name.log" 2>&1 || { tail -n 20 "$work/$name.log"; return 1; }
  git clone -q "$root" "$bare/root/pipewright"
  cp /etc/resolv.conf "$bare/etc/" 2>/dev/null || true
  unshare --mount --pid --fork --mount-proc="$bare/proc" chroot "$bare" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root bash -euc "cd /root/pipewright; ./pipewright plan scenarios/llama3-70b-sft-32xh100.yaml >/root/answer; ${4:-}"
  cmp "$work/here" "$bare/root/answer" || { echo "FAILED: $name answers something else"; return 1; }
  echo "$name: the first command installs, builds and answers"
  rm -rf "$bare"
}
fresh debian bookworm "${PIPEWRIGHT_MIRROR:-http://deb.debian.org/debian}"
fresh ubuntu noble "${PIPEWRIGHT_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" "tests/run base/"
