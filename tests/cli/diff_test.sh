#!/bin/sh
# pipewright diff against traces and against JSON that is none of ours: diff_test.sh PROGRAM TESTS_FOLDER
set -u
program=$1 tests=$2
prefix=diff
. "$(dirname "$0")/expect.sh"

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
# What is not one step of the scenario beside it is refused, on either side, unless told.
other=$tests/import/data/moe.r0.json.gz
for trace in "$work/two.r1.json.gz" "$work/half.r1.json.gz" "$other"; do
  expect 2 "error: $trace: " "$run" "$trace"
  expect 2 '; --any-trace compares nevertheless' "$trace" "$run"
  expect 0 "note: $trace: " "$run" "$trace" --any-trace
  expect 0 'As a profiler shows it' "$run" "$trace" --any-trace
done
expect 2 'two traces: one side must be a prediction' "$other" "$other"
expect 2 'the trace is of another scenario' "$run" "$other"

# What a script's flags leave open, --set-a and --set-b say, as --set does elsewhere.
echo 'torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --bf16' >"$work/train.sh"
expect 2 'the vocabulary is missing' "$work/train.sh" "$work/train.sh" --set-a vocab_size=32000 --profile h200-sxm
expect 0 'vocab_size' "$work/train.sh" "$work/train.sh" --set-a vocab_size=32000 --set-b vocab_size=64000 --profile h200-sxm

for best in '{}' '"x"' -1 '[]' null; do
  echo "{\"searched\": 1, \"best\": $best}" >"$work/plan.json"
  expect 2 "$work/plan.json: " "$run" "$work/plan.json"
done
"$program" simulate "$run" --json "$work/step.json" >/dev/null
expect 0 'Time by cause' "$work/step.json" "$work/step.json"
sed 's/"step_time_ms": [0-9.]*/"step_time_ms": null/' "$work/step.json" >"$work/null.json"
expect 2 'null.json: step_time_ms: expected a number above 0' "$work/step.json" "$work/null.json"
sed 's/"schema": 2/"schema": 3/' "$work/step.json" >"$work/later.json"
expect 2 'later.json: schema: 3 is of a later version of pipewright' "$work/step.json" "$work/later.json"

"$program" schedule "$run" --json "$work/schedule.json" >/dev/null
expect 2 'schedule.json: holds no prediction' "$work/step.json" "$work/schedule.json"
exit $failed
