#!/bin/sh
# clang-tidy's short list (.clang-tidy) over every room of a built folder: .ci/tidy.sh BUILD. What clang itself cannot
# parse of GCC's C++20 is passed over. Exit status 1 if a check found something.
set -u
root=$(dirname "$(readlink -f "$0")")/..
cd "$1" || exit 2
files=$(sed -n 's/.*"file": "\(src\/.*-unity[0-9]*\.cpp\)".*/\1/p' compile_commands.json | sort -u)
there=$(sed -n 's/.*"directory": "\(.*\)",/\1/p' compile_commands.json | head -1)
if [ -z "$files" ] || [ "$(readlink -f "$there")" != "$(pwd -P)" ]; then
  echo "$1 was configured as ${there:-nothing}: no file of it can be read here" >&2
  exit 2
fi
command -v clang-tidy >/dev/null 2>&1 || { echo "clang-tidy is not installed: skipped" >&2; exit 0; }
found=$(echo "$files" |
  xargs -P 2 -n 1 clang-tidy -p . --quiet 2>/dev/null |
  grep -E '(warning|error): .*\[(bugprone|performance|misc|readability)-' | sort -u)
[ -n "$found" ] || exit 0
echo "$found" | sed "s|$(readlink -f "$root")/||; s|build[^/]*/\.\./||" >&2
exit 1
