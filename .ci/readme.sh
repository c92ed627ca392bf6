#!/bin/sh
# Puts the program's real output between the markers of README.md: .ci/readme.sh [PROGRAM]
set -eu
root=$(dirname "$(readlink -f "$0")")/..
program=${1:-$root/pipewright}
cd "$root"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$program" plan scenarios/llama3-70b-sft-32xh100.yaml >"$output"
awk -v output="$output" '
  /<!-- output: begin -->/ {
    print; print ""; print "`./pipewright plan scenarios/llama3-70b-sft-32xh100.yaml` prints:\n"; print "```"
    while ((getline line < output) > 0) print line
    print "```\n"; skip = 1; next
  }
  /<!-- output: end -->/ { skip = 0 }
  !skip' README.md >README.md.new
mv README.md.new README.md
