#!/bin/sh
# Makes the shipped profiles that are not measured anew from h200-sxm.json, the public tables that stand in them and the
# figures in src/import/published_figures.cpp. Run it wherever h200-sxm.json or those changed; a second run changes nothing.
#
#     .ci/profiles.sh [PROGRAM]
set -eu
cd "$(dirname "$0")/.."
program=${1:-build/src/cli/pipewright}
made=$(mktemp)
trap 'rm -f "$made"' EXIT
make() { # NAME [TABLES...]
  name=$1
  shift
  "$program" profile derive h200-sxm --gpu "$name" "$@" --force --out "$made"
  cat "$made" > "profiles/$name.json"
}
make h100-sxm --measured h100-sxm > /dev/null
make b200-sxm --tables b200-sxm
make gb200-nvl72 --tables gb200-nvl72
make gb300-nvl72 --tables gb300-nvl72
make b300-sxm --tables gb300-nvl72 --tables b200-sxm
