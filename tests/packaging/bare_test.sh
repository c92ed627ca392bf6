#!/bin/bash
# Package and wheel, built here, in a Debian 12 that has nothing: installed, and used as a newcomer would. Takes minutes
# and Debian's mirror; only with PIPEWRIGHT_LONG (.ci/run --long), as root.
set -euo pipefail
[ -n "${PIPEWRIGHT_LONG:-}" ] || { echo "only with PIPEWRIGHT_LONG"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "debootstrap needs root"; exit 77; }
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
bare=$(mktemp -d)
# shellcheck disable=SC2064  # now
trap "rm -rf '$bare'" EXIT
fail() { echo "FAILED: $*"; exit 1; }

command -v debootstrap >/dev/null && command -v dpkg-shlibdeps >/dev/null ||
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap dpkg-dev python3-dev python3-venv
cd "$root"
rm -rf dist
packaging/deb.sh
packaging/wheel.sh /usr/bin/python3
ls dist/pipewright_*.deb dist/libpipewright-dev_*.deb dist/pipewright-*manylinux*.whl

debootstrap --variant=minbase bookworm "$bare" "${PIPEWRIGHT_MIRROR:-http://deb.debian.org/debian}" >"$bare.log" 2>&1 ||
  { tail -n 20 "$bare.log"; fail debootstrap; }
cp dist/*.deb dist/*.whl "$bare/tmp/"
cp /etc/resolv.conf "$bare/etc/" 2>/dev/null || true
# A chroot whose mounts and processes end with it.
inside() { unshare --mount --pid --fork --mount-proc="$bare/proc" chroot "$bare" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root bash -euc "$1"; }
example=/usr/share/pipewright/scenarios/llama3-8b-pretrain-8xh100.yaml

inside "test -z \"\$(command -v python3 gcc)\"; export DEBIAN_FRONTEND=noninteractive
  apt-get install -q -y --no-install-recommends /tmp/pipewright_*.deb >/dev/null"
inside "cd /tmp; pipewright --version; pipewright simulate $example --json /tmp/deb.json | head -n 4
  pipewright plan $example --top 1 | grep -q '^best: '"
grep -q '(in /usr/share/pipewright/profiles)' <(inside "pipewright --version") || fail "profiles of the package"
cp "$bare/tmp/deb.json" "$bare.deb.json"
inside "dpkg -P pipewright >/dev/null; ! command -v pipewright"
echo "package: works on a bare Debian 12"

inside "export DEBIAN_FRONTEND=noninteractive
  apt-get install -q -y --no-install-recommends python3 python3-venv >/dev/null; ! command -v gcc g++ pipewright
  mkdir -p /usr/share/pipewright; python3 -m venv /root/own; /root/own/bin/pip install -q --no-index /tmp/pipewright-*.whl"
cp -r scenarios "$bare/usr/share/pipewright/"
inside "cd /tmp; /root/own/bin/pipewright --version; /root/own/bin/pipewright simulate $example --json /tmp/wheel.json >/dev/null
  /root/own/bin/python -c \"
import json, pipewright
answer = pipewright.simulate('$example')
assert answer == json.load(open('/tmp/wheel.json')) == json.load(open('/tmp/deb.json')), 'module, command and package differ'
print(round(answer['step_time_ms'], 2), 'ms by module, command and package')\""
echo "wheel: works on a bare Debian 12 without a compiler"
rm -f "$bare.log" "$bare.deb.json"
