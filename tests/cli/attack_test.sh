#!/bin/sh
# attack_test.sh PROGRAM COMMANDS: hostile inputs end in a result or an error, soon, and replace no input.
program=$(readlink -f "$1")
commands=$(readlink -f "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$(dirname "$commands")" "$folder/attack"
cd "$folder/attack" || exit 1
sum() { find . -type f | sort | xargs sha256sum; }
before=$(sum)
echo "$before" >"$folder/before"
failed=0
# Under sanitizers, which look for memory: a tenth of what only takes its time.
shown=$(sed "${PIPEWRIGHT_SANITIZED:+s/num_layers=2000$/num_layers=200/; s/global_batch_size=8000$/global_batch_size=800/}" commands)
# Memory: what a hostile input may take of a machine (a sanitizer reserves more than it uses).
[ -n "${PIPEWRIGHT_SANITIZED:-}" ] || ulimit -v 12000000
while IFS= read -r line; do
  case $line in '' | '#'*) continue ;; esac
  eval "set -- $line"
  timeout "${PIPEWRIGHT_PATIENCE:-60}" "$program" "$@" >"$folder/out" 2>"$folder/err" </dev/null
  status=$?
  if [ "$status" -gt 2 ]; then
    echo "status $status: $line"
    tail -n 3 "$folder/err"
    failed=1
  fi
  if [ "$status" = 2 ] && [ "$(wc -l <"$folder/err")" != 1 ]; then
    echo "not one line of error: $line"
    cat "$folder/err"
    failed=1
  fi
done <<COMMANDS
$shown
COMMANDS
[ "$(sum)" = "$before" ] || { echo "files changed:"; sum | diff - "$folder/before" ; failed=1; }
exit $failed
