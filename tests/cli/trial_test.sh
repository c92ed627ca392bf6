#!/bin/sh
# pipewright trial with a launcher that only prints: trial_test.sh PROGRAM DATA_FOLDER LAUNCHER
set -u
program=$(readlink -f -- "$1") data=$2 launcher=$3
prefix=trial
. "$(dirname "$0")/expect.sh"
FAKE_SEEN=$work/seen PIPEWRIGHT_PROFILES=$data/profiles
export FAKE_SEEN PIPEWRIGHT_PROFILES
cd "$data" || exit 1

alive() { [ -e "/proc/$1/stat" ] && ! grep -q ") Z" "/proc/$1/stat"; }
# shows TEXT...: in the output of the command before.
shows() {
  for text in "$@"; do
    grep -q -F -e "$text" "$work/output" || fail "not found: $text"
  done
}

expect 0 'Usage: ' --help
expect 2 'error: command line: --: after -- stands the command' small.yaml
expect 2 'put {flags} there' small.yaml -- "$launcher" ok '{steps}'
expect 2 'did you mean "{flags}"?' small.yaml -- "$launcher" ok '{flag}'
expect 2 '--steps: must be at least 6' small.yaml --steps 3 -- "$launcher" ok '{flags}'
expect 2 'cannot run /nowhere/torchrun' small.yaml --out "$work/t" -- /nowhere/torchrun '{flags}'
expect 2 'leave out the quotes around the command' small.yaml --out "$work/t" -- "$launcher ok {steps} {flags}"
expect 2 'env A=B COMMAND' small.yaml --out "$work/t" -- A=B "$launcher" ok '{steps}' '{flags}'
expect 2 'is not what `pipewright plan --json` writes' profiles/table.json -- "$launcher" '{flags}'

# A dry run prints a line for a shell and runs nothing.
expect 0 'CUDA_DEVICE_MAX_CONNECTIONS=1 ' small.yaml --dry-run -- "$launcher" ok '{steps}' '{flags}' --name={name}
shows '# given: as given' ' ok 8 --num-layers 8 ' ' --name=given'
[ ! -e "$work/seen.flags" ] || fail 'a dry run ran something'
expect 0 '"schema"' small.yaml --dry-run --json - -- "$launcher" ok '{steps}' '{flags}' --name={name}
shows '"tool"' '"words"' '"CUDA_DEVICE_MAX_CONNECTIONS": "1"' '"--name=given"'
for limit in inf nan 0 -1; do expect 2 -limit small.yaml --limit $limit -- "$launcher" ok '{flags}'; done
# Inside a longer word, quoted for a shell; braces of the shell's own stay.
expect 0 "sh -c 'A=\${A} CUDA_DEVICE_MAX_CONNECTIONS=1 run --num-layers 8" small.yaml --dry-run -- \
  sh -c 'A=${A} {env} run {flags}'

# A scenario: its steps, its memory beside what was predicted, a scenario file.
expect 0 'given   120.00' small.yaml --out "$work/t" --no-record -- "$launcher" ok '{steps}' '{flags}'
shows '20.98 (' '25.98 (' '3.00 (' 'fastest: given (120.00 ms)'
[ "$(cat "$work/seen.env")" = '1 unset' ] || fail 'the candidate'"'"'s variables are not set for the command'
grep -q -e '--num-layers 8 ' "$work/seen.flags" || fail 'the command has no flags'
grep -q 'step_ms: 120' "$work/t/given.yaml" || fail 'no measured scenario'
grep -q '    1: 22523412480' "$work/t/given.yaml" || fail 'no peak of the second pipeline rank'
grep -A2 peak_reserved_bytes_by_rank "$work/t/given.yaml" | grep -q '    1: 27892121600' || fail 'no reserved memory'
grep -A2 outside_allocator_bytes_by_rank "$work/t/given.yaml" | grep -q '    0: 3221225472' || fail 'no outside memory'

# What was measured stays until something else is: a mistyped launcher, a run that fails, Ctrl-C take nothing.
cp -r "$work/t" "$work/before"
same() { diff -r -x 'given.new.*' "$work/before" "$work/t" >"$work/output" || fail "$1 changed an earlier measurement"; }
for resume in '' --resume; do
  expect 2 'cannot run /nowhere/torchrun' small.yaml --out "$work/t" --no-record $resume -- /nowhere/torchrun '{flags}'
  same 'a mistyped launcher'
  expect 1 'what an earlier run has measured stays in' small.yaml --out "$work/t" --no-record $resume -- "$launcher" assert \
    '{steps}' '{flags}'
  shows "$work/t/given.new.log"
  same 'a run that failed'
  rm -f "$work/seen.worker"
  "$program" trial small.yaml --out "$work/t" --no-record $resume -- "$launcher" hang '{steps}' '{flags}' \
    >"$work/output" 2>&1 &
  pid=$!
  until [ -s "$work/seen.worker" ]; do
    kill -0 $pid 2>/dev/null || fail 'the launcher that hangs was not started'
    sleep 0.1
  done
  kill -INT $pid
  wait $pid
  same Ctrl-C
done
expect 0 'taken over' small.yaml --out "$work/t" --no-record --resume -- "$launcher" ok '{steps}' '{flags}'
# ... with its recording, gathered by that trial.
mkdir -p "$work/t/given.rec"
printf 'pipewright recording 1\nM\trank\t0\nM\tsteps\t1\nN\t0\tgemm\nA\t0\t0\t0\t7\t1000000\t61000000\t1\nE\n' >"$work/t/given.rec/rec.r0.rec"
for again in 1 2; do
  expect 0 'Step 3, recorded' small.yaml --out "$work/t" --resume -- "$launcher" ok '{steps}' '{flags}'
  shows 'given     0  comp     60.0' 'given     0  idle'
done
printf 'pipewright recording 1\nM\trank\t0\nM\tsteps\t1\nN\t0\tvoid te::scaled_masked_softmax_warp_forward<float>\nA\t0\t0\t0\t7\t1000000\t61000000\t1\nE\n' \
  >"$work/t/given.rec/rec.r0.rec"
expect 0 'given: attention ran unfused (scaled_masked_softmax_warp_forward)' small.yaml --out "$work/t" --resume -- \
  "$launcher" ok '{steps}' '{flags}'
rm -r "$work/t/given.rec"
expect 2 'was measured of another run than given is here' small.yaml --set micro_batch_size=2 --out "$work/t" --no-record -- \
  "$launcher" ok '{steps}' '{flags}'
same 'a trial of another run'
cp "$work/t/given.yaml" "$work/t/alternative-7.yaml"
expect 0 'also holds alternative-7.yaml, of another trial' small.yaml --set micro_batch_size=2 --out "$work/t" --force \
  --no-record -- "$launcher" ok '{steps}' '{flags}'
grep -q 'micro_batch_size: 2' "$work/t/given.yaml" || fail '--force replaces'

# One line for several steps is their mean; steps of a run that goes on from a checkpoint count from its first.
expect 1 'prints a step time for every 2 steps, their mean; --log-interval 1' small.yaml --out "$work/l" --no-record -- \
  "$launcher" interval '{steps}' '{flags}'
expect 0 'given   120.00' small.yaml --out "$work/c" --no-record -- "$launcher" resumed '{steps}' '{flags}'
# What a launcher says of its end by us is not why it ended; what a run leaves behind ends with it.
expect 1 'still running after 1 s, 3 steps done; killed (' small.yaml --limit 1 --out "$work/z" --no-record -- \
  "$launcher" hangtrace '{steps}' '{flags}'
rm -f "$work/seen.worker"
expect 0 'left processes behind' small.yaml --out "$work/y" --no-record -- "$launcher" leaves '{steps}' '{flags}'
! alive "$(cat "$work/seen.worker")" || fail 'a worker outlived a run that ended by itself'

# A plan: its best and the run as given; the order after measurement.
"$program" plan search.yaml --set 'search.virtual_pipeline_model_parallel_size=[null, 2]' --json "$work/plan.json" \
  >"$work/output" 2>&1 || fail 'plan'
sed 's/"schema": 2/"schema": 3/' "$work/plan.json" >"$work/later.json"
expect 2 'later.json: schema: 3 is of a later version of pipewright; this one reads up to 2' "$work/later.json" -- "$launcher" ok '{flags}'
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/p" --no-record --json "$work/p.json" -- "$launcher" ok \
  '{steps}' '{flags}'
shows 'order predicted:' 'best  ' 'alternative-1'
# Equal as printed: none is the fastest alone.
expect 0 'order measured:  best = alternative-1' "$work/plan.json" --top 2 --out "$work/e" --no-record -- \
  sh -c "exec $launcher ok {steps} # {flags}"
for key in measured_order schema tool; do grep -q "\"$key\"" "$work/p.json" || fail "no $key in the JSON"; done
# A plan's scenarios are ready to run.
for option in '--set micro_batch_size=2' '--env A=B' '--gpus 4'; do
  # shellcheck disable=SC2086  # an option and its value
  expect 2 'give it to `pipewright plan`' "$work/plan.json" $option --dry-run -- "$launcher" ok '{steps}' '{flags}'
done

# An edited plan is refused before anything runs, and says which candidate.
rm -f "$work/seen.flags"
sed '0,/micro_batch_size: 1\\n/s//micro_batch_size: 1\\n  recompute_granularity: full\\n/' "$work/plan.json" >"$work/rule.json"
expect 1 'refused: ' "$work/rule.json" --out "$work/e" --no-record -- "$launcher" ok '{steps}' '{flags}'
sed '0,/micro_batch_size: 1\\n/s//micro_batch_size: 1\\n  nonsense: 1\\n/' "$work/plan.json" >"$work/key.json"
expect 2 'key.json, scenario of best:' "$work/key.json" --out "$work/e" --no-record -- "$launcher" ok '{steps}' '{flags}'
[ ! -e "$work/seen.flags" ] || fail 'a candidate of an edited plan ran before all were checked'
# A program that says it runs something else measures nothing of the candidate.
expect 1 'the program runs something else: pipeline_model_parallel_size 1, not ' small.yaml --out "$work/w" --no-record -- \
  "$launcher" ignores '{steps}' '{flags}'
[ ! -e "$work/w/given.yaml" ] || fail 'another run was measured as the candidate'"'"'s'

# Failures are told with their reason, and kept.
expect 1 'out of memory: [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB' small.yaml \
  --out "$work/o" --no-record -- "$launcher" oom '{steps}' '{flags}'
shows 'it was predicted to fit' "$work/o/given.log" 'nothing ran to its end'
expect 1 'given: attention ran unfused (matmul_result = torch.baddbmm(), where the scenario has it fused' small.yaml \
  --out "$work/u" --no-record -- "$launcher" unfused '{steps}' '{flags}'
shows 'NVTE_FUSED_ATTN' 'LD_LIBRARY_PATH' 'it was predicted to fit'
expect 1 'out of memory' small.yaml --set attention_backend=unfused --out "$work/u" --force --no-record -- "$launcher" unfused \
  '{steps}' '{flags}'
! grep -q 'ran unfused' "$work/output" || fail 'unfused attention that is meant was told as a fault'
expect 1 'failed (assertion): AssertionError: the layout has 7 stages' small.yaml --out "$work/a" --no-record -- "$launcher" assert \
  '{steps}' '{flags}'
shows '    File "megatron/training/arguments.py", line 1, in validate_args'
expect 1 'ended without a step time' small.yaml --out "$work/s" --no-record -- "$launcher" silent '{steps}' '{flags}'
expect 1 'timed out: still running after 1 s, 3 steps done; killed' small.yaml --limit 1 --out "$work/h" --no-record -- \
  "$launcher" hang '{steps}' '{flags}'
expect 1 'Tried to allocate 3.91 GiB.; still running after 1 s, 3 steps done; killed; it was predicted to fit' small.yaml \
  --limit 1 --out "$work/oh" --no-record -- "$launcher" oomhang '{steps}' '{flags}'
shows 'given  out of memory'
# All steps are done, and it goes on: they count.
expect 0 'given   120.00' small.yaml --limit 2 --out "$work/f" --no-record -- "$launcher" forever '{steps}' '{flags}'
shows 'still running after 2 s, 8 steps done; killed: {steps} in COMMAND says where to end'
expect 1 'timed out' small.yaml --limit 1 --out "$work/h" --no-record -- "$launcher" session '{steps}' '{flags}'
! alive "$(cat "$work/seen.worker")" || fail 'a worker in a session of its own outlived the limit'

# Ctrl-C leaves what was measured.
"$program" trial "$work/plan.json" --top 2 --out "$work/i" --no-record -- sh -c \
  'case {name} in best) m=ok ;; *) m=hang ;; esac; exec '"$launcher"' $m {steps} {flags}' >"$work/output" 2>&1 &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -e "$work/i/best.yaml" ] && [ -e "$work/i/alternative-1.new.log" ] && break
  sleep 0.5
done
sleep 0.5
kill -INT $pid
wait $pid
[ $? = 0 ] || fail 'an interrupted trial that has measured something ends with 0'
shows 'fastest: best' 'alternative-1  interrupted'

# --resume runs what is missing: the interrupted one, with another command all of them.
echo 0 >"$work/runs"
counted='echo run >>'$work'/runs; case {name} in best) m=ok ;; *) m=${MODE:-ok} ;; esac; exec '$launcher' $m {steps} {flags}'
count() { [ "$(wc -l <"$work/runs")" = $(($1 + 1)) ] || fail "$(wc -l <"$work/runs") runs, not $1 and a line"; }
MODE=assert expect 0 'failed (assertion)' "$work/plan.json" --top 2 --out "$work/r" --no-record -- sh -c "$counted"
count 2
expect 0 'best: taken over from an earlier trial' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "$counted"
count 3
shows 'order measured:'
expect 0 'alternative-1: taken over' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "$counted"
count 3
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "$counted --more"
count 5
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/r" --no-record -- sh -c "$counted --more"
count 7
# A run that was measured and once ran out of memory, whichever came first: both stay, and are told.
again() { expect 0 "$1" "$work/plan.json" --top 2 --out "$work/$2" --no-record $3 -- sh -c "$counted"; }
cp "$work/r/alternative-1.yaml" "$work/measured.yaml"
MODE=oom again '- alternative-1 out of memory' r ''
shows 'what an earlier run has measured stays in' "$work/r/alternative-1.oom.log"
cmp -s "$work/measured.yaml" "$work/r/alternative-1.yaml" || fail 'a run that ran out of memory replaced a measurement'
again 'another run of it ran out of memory: ' r --resume
count 10  # the measurement is of another command (--more)
again 'another run of it ran out of memory: ' r --resume
count 10
MODE=oom again '- alternative-1 out of memory' q ''
MODE=oom again '- alternative-1 out of memory' q --resume
count 12
again 'another run of it ran out of memory: ' q ''
shows 'order measured:'
grep -q 'out of memory' "$work/q/alternative-1.oom.log" || fail 'the log of the run that ran out of memory is gone'
count 14
: >"$work/r/best.ended.json"
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "exec $launcher ok {steps} {flags}"

# A full disk: what was measured is told, what could not be kept too, and the next run is run.
mkdir "$work/d"
ln -s /dev/full "$work/d/alternative-1.new.log"
mkdir -p "$work/d/best.yaml/no file"
expect 0 'fastest: best' "$work/plan.json" --top 2 --out "$work/d" --no-record -- "$launcher" ok '{steps}' '{flags}'
shows 'alternative-1   failed' 'best: not kept: '
rm -f "$work/seen.flags"
for where in '--out /dev/null/no' "--out $data/small.yaml" '--json /nowhere/r.json' '--report /nowhere/r.html' "--json $work"; do
  # shellcheck disable=SC2086  # an option and its value
  expect 2 'cannot write' small.yaml $where --no-record -- "$launcher" ok '{steps}' '{flags}'
done
[ ! -e "$work/seen.flags" ] || fail 'something ran before it was known where its result cannot go'

# A second Ctrl-C kills what does not end when it is asked to, with its workers, and still tells what was measured.
rm -f "$work/seen.worker"
"$program" trial "$work/plan.json" --top 2 --out "$work/j" --no-record -- sh -c \
  'case {name} in best) exec '"$launcher"' ok {steps} {flags} ;; esac
   trap "" TERM INT; sleep 600 & echo $! >'"$work"'/stubborn; while :; do wait; done' >"$work/output" 2>&1 &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -s "$work/stubborn" ] && break
  sleep 0.5
done
expect 2 "$work/j: another trial is writing here" "$work/plan.json" --out "$work/j" -- "$launcher" ok '{steps}' '{flags}'
began=$(date +%s)
kill -INT $pid
sleep 0.3
kill -INT $pid
wait $pid
[ $? = 0 ] || fail 'a trial that was interrupted twice and has measured something ends with 0'
[ $(($(date +%s) - began)) -lt 4 ] || fail 'the second Ctrl-C waited'
! alive "$(cat "$work/stubborn")" || fail 'a worker outlived the second Ctrl-C'
shows 'fastest: best' 'alternative-1  interrupted'

# A plan by several profiles is tried, and what it measures compared again, by all of them.
python3 - "$work/mine.json" <<'END'
import json, sys
whole = json.load(open("profiles/table.json"))
mine = {key: whole[key] for key in ("profile", "device", "gpu", "origin", "memory_bytes", "versions")}
mine |= {"name": "mine", "provenance": ["by hand"], "links": [], "clocks": [], "families": {},
         "scalars": {"host.time_factor": {"value": 1.5, "spread": 0.1, "source": "by hand"}}}
json.dump(mine, open(sys.argv[1], "w"))
END
"$program" plan search.yaml --profile "$work/mine.json" --profile table --json "$work/two.json" >/dev/null 2>&1 ||
  fail 'no plan by two profiles'
expect 0 'fastest: best' "$work/two.json" --top 1 --out "$work/two" --no-record -- "$launcher" ok '{steps}' '{flags}'
grep -q 'more_profiles: \[table\]' "$work/two/best.yaml" || fail 'a measured scenario names one profile of two'
"$program" validate "$work/two" >"$work/output" 2>&1 || fail 'what was measured by two profiles is not compared again'

exit $failed
