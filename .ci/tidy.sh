#!/bin/sh
# clang-tidy's short list (.clang-tidy) over every room of a built folder: .ci/tidy.sh BUILD. What clang itself cannot
# parse of GCC's C++20 is passed over. Exit status 1 if a check found something.
set -u
root=$(dirname "$(readlink -f "$0")")/..
cd "$1" || exit 2
command -v clang-tidy >/dev/null 2>&1 || { echo "clang-tidy is not installed: skipped" >&2; exit 0; }
found=$(sed -n 's/.*"file": "\(src\/.*-unity[0-9]*\.cpp\)".*/\1/p' compile_commands.json | sort -u |
  xargs -P 2 -n 1 clang-tidy -p . --quiet 2>/dev/null |
  grep -E '(warning|error): .*\[(bugprone|performance|misc|readability)-' | sort -u)
[ -n "$found" ] || exit 0
echo "$found" | sed "s|$(readlink -f "$root")/||; s|build[^/]*/\.\./||" >&2
exit 1
