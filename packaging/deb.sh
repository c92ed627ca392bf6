#!/bin/sh
# Builds Debian packages into dist/: pipewright (program, profiles, examples, manual pages, completions) and
# libpipewright-dev (headers, library, pkg-config file). What they depend on is computed from the binary.
#   packaging/deb.sh
set -eu
root=$(dirname "$(dirname "$(readlink -f -- "$0")")")
. "$root/.ci/build.sh"
cd "$root"
configure build-deb --prefix=/usr -Dwerror="${PIPEWRIGHT_WERROR:-false}" -Dtests=false -Dcapture=disabled -Dpython=disabled
build build-deb
version=$(meson introspect build-deb --projectinfo | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
architecture=$(dpkg --print-architecture)
rm -rf build-deb/packages
mkdir -p dist

# control PACKAGE DEPENDS DESCRIPTION: writes it for the tree in build-deb/packages/PACKAGE and packs it.
pack() {
  tree=build-deb/packages/$1
  mkdir -p "$tree/DEBIAN" "$tree/usr/share/doc/$1"
  cp LICENSE "$tree/usr/share/doc/$1/copyright"
  cat >"$tree/DEBIAN/control" <<EOF
Package: $1
Version: $version
Architecture: $architecture
Maintainer: pipewright developers <pipewright@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: $2
Section: science
Priority: optional
Description: $3
 pipewright predicts step time, exposed communication and memory of Megatron training from kernel
 times measured on the GPU, and searches the legal configurations for the best one.
EOF
  dpkg-deb --root-owner-group --build "$tree" "dist/$1_${version}_$architecture.deb" >/dev/null
  echo "dist/$1_${version}_$architecture.deb"
}

# install TAG PACKAGE: what Meson tags so, into the package's tree.
install_tagged() {
  DESTDIR=$root/build-deb/packages/$2 meson install -C build-deb --no-rebuild --quiet --tags "$1"
}

install_tagged runtime pipewright
program=build-deb/packages/pipewright/usr/bin/pipewright
strip "$program"
find build-deb/packages/pipewright/usr/share/man -name '*.1' -exec gzip -9n {} +
mkdir -p build-deb/packages/debian  # dpkg-shlibdeps looks for it
: >build-deb/packages/debian/control
depends=$(cd build-deb/packages && dpkg-shlibdeps -O "$root/$program" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { say "dpkg-shlibdeps found no dependencies"; exit 3; }
pack pipewright "$depends" "simulator and planner for pipeline-parallel Megatron training"

install_tagged devel libpipewright-dev
pack libpipewright-dev "libfmt-dev, libyaml-cpp-dev, zlib1g-dev, libtbb-dev, libsimdjson-dev, libsqlite3-dev, nlohmann-json3-dev" \
  "headers and library of pipewright"
