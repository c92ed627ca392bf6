#!/bin/sh
# pipewright diff against traces and against JSON that is none of ours: diff_test.sh PROGRAM TESTS_FOLDER
set -u
program=$1 tests=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS TEXT ARGUMENTS...: exit status, and TEXT somewhere in what it prints.
expect() {
  status=$1 text=$2
  shift 2
  "$program" diff "$@" >"$work/output" 2>&1
  got=$?
  if [ "$got" != "$status" ] || ! grep -q -F -e "$text" "$work/output"; then
    echo "pipewright diff $*: status $got (expected $status), or not found: $text"
    cat "$work/output"
    failed=1
  fi
}

run=$tests/measured/a_pp4v2_m8.yaml trace=$tests/import/data/dense.r1.json.gz
python3 - "$trace" "$work" <<'END'
import gzip, json, sys
whole = json.load(gzip.open(sys.argv[1]))
rows = whole["rows"]
span = max(r[2] + r[3] for r in rows) + 50
for name, some in (("two", rows + [[r[0], r[1], r[2] + span, r[3]] for r in rows]), ("half", rows[:len(rows) // 2])):
    with gzip.open(f"{sys.argv[2]}/{name}.r1.json.gz", "wt") as out:
        json.dump({**whole, "rows": some}, out)
END
expect 0 'As a profiler shows it' "$run" "$trace"
expect 0 '"schema"' "$run" "$trace" --json -
expect 2 'holds 2 steps of the scenario' "$run" "$work/two.r1.json.gz"
expect 2 'holds 0.875 steps of the scenario' "$run" "$work/half.r1.json.gz"
expect 0 'the trace is of another scenario' "$run" "$tests/import/data/moe.r0.json.gz"

for best in '{}' '"x"' -1 '[]' null; do
  echo "{\"searched\": 1, \"best\": $best}" >"$work/plan.json"
  expect 2 "$work/plan.json: " "$run" "$work/plan.json"
done
"$program" simulate "$run" --json "$work/step.json" >/dev/null
expect 0 'Time by cause' "$work/step.json" "$work/step.json"
sed 's/"step_time_ms": [0-9.]*/"step_time_ms": null/' "$work/step.json" >"$work/null.json"
expect 2 'null.json: step_time_ms: expected a number above 0' "$work/step.json" "$work/null.json"

"$program" schedule "$run" --json "$work/schedule.json" >/dev/null
expect 2 'schedule.json: holds no prediction' "$work/step.json" "$work/schedule.json"
exit $failed
