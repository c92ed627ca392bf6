# Sourced by tests of commands: set program, and prefix where all calls begin with one (`diff`); $work and $failed are here.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
prefix=${prefix:-}

fail() {
  echo "$1"
  cat "$work/output"
  failed=1
}
# expect STATUS TEXT ARGUMENTS...: exit status, and TEXT (if any) somewhere in what it prints.
expect() {
  status=$1 text=$2
  shift 2
  # shellcheck disable=SC2086  # no word, or one
  "$program" $prefix "$@" >"$work/output" 2>&1
  got=$?
  [ "$got" = "$status" ] && { [ -z "$text" ] || grep -q -F -e "$text" "$work/output"; } ||
    fail "pipewright $prefix $*: status $got (expected $status), or not found: $text"
}
