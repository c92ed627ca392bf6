#!/bin/sh
# clang-tidy's short list (.clang-tidy) over rooms of a built folder: .ci/tidy.sh BUILD [--all]. Without --all over those that a
# change touches: what differs from origin's main, or, where nothing does, the last commit. What clang itself cannot
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
if [ "${2:-}" != --all ]; then
  changed=$(cd "$root" && { git diff --name-only origin/main 2>/dev/null; git ls-files --others --exclude-standard; })
  [ -n "$changed" ] || changed=$(cd "$root" && git diff --name-only HEAD~1 2>/dev/null)
  if [ -n "$changed" ]; then  # else all: a folder without a history
    rooms=$(echo "$changed" | sed -n 's,^\(src\|include\)/\([a-z]*\)/.*,\2,p' | sort -u | sed 's/^cli$/commands/' | paste -sd '|')
    files=$(echo "$files" | grep -E "/(${rooms:-none})-unity")
    [ -n "$files" ] || exit 0
  fi
fi
found=$(echo "$files" |
  xargs -P 2 -n 1 clang-tidy -p . --quiet 2>/dev/null |
  grep -E '(warning|error): .*\[(bugprone|performance|misc|readability)-' | sort -u)
[ -n "$found" ] || exit 0
echo "$found" | sed "s|$(readlink -f "$root")/||; s|build[^/]*/\.\./||" >&2
exit 1
