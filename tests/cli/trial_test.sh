#!/bin/sh
# pipewright trial with a launcher that only prints: trial_test.sh PROGRAM DATA_FOLDER LAUNCHER
set -u
program=$(readlink -f -- "$1") data=$2 launcher=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
FAKE_SEEN=$work/seen PIPEWRIGHT_PROFILES=$data/profiles
export FAKE_SEEN PIPEWRIGHT_PROFILES
cd "$data" || exit 1
failed=0

fail() {
  echo "$1"
  cat "$work/output"
  failed=1
}
alive() { [ -e "/proc/$1/stat" ] && ! grep -q ") Z" "/proc/$1/stat"; }
# expect STATUS TEXT ARGUMENTS...: exit status, and TEXT somewhere in what it prints.
expect() {
  status=$1 text=$2
  shift 2
  "$program" trial "$@" >"$work/output" 2>&1
  got=$?
  [ "$got" = "$status" ] && grep -q -F -e "$text" "$work/output" || fail "trial $*: status $got (expected $status), or not found: $text"
}
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
expect 2 'is not what `pipewright plan --json` writes' profiles/table.json -- "$launcher" '{flags}'

# A dry run prints a line for a shell and runs nothing.
expect 0 'CUDA_DEVICE_MAX_CONNECTIONS=1 ' small.yaml --dry-run -- "$launcher" ok '{steps}' '{flags}' --name={name}
shows '# given: as given' ' ok 8 --num-layers 8 ' ' --name=given'
[ ! -e "$work/seen.flags" ] || fail 'a dry run ran something'
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

# A plan: its best and the run as given; the order after measurement.
"$program" plan search.yaml --set 'search.virtual_pipeline_model_parallel_size=[null, 2]' --json "$work/plan.json" \
  >"$work/output" 2>&1 || fail 'plan'
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/p" --no-record --json "$work/p.json" -- "$launcher" ok \
  '{steps}' '{flags}'
shows 'order predicted:' 'best  ' 'alternative-1'
grep -q '"measured_order"' "$work/p.json" || fail 'no JSON'

# Failures are told with their reason, and kept.
expect 1 'out of memory: [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB' small.yaml \
  --out "$work/o" --no-record -- "$launcher" oom '{steps}' '{flags}'
shows 'it was predicted to fit' "$work/o/given.log" 'nothing ran to its end'
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
sleep 0.2
! alive "$(cat "$work/seen.worker")" || fail 'a worker outlived the limit'

# Ctrl-C leaves what was measured.
"$program" trial "$work/plan.json" --top 2 --out "$work/i" --no-record -- sh -c \
  'case {name} in best) m=ok ;; *) m=hang ;; esac; exec '"$launcher"' $m {steps} {flags}' >"$work/output" 2>&1 &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -e "$work/i/best.yaml" ] && [ -e "$work/i/alternative-1.log" ] && break
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
MODE=oom expect 0 '- alternative-1 out of memory' "$work/plan.json" --top 2 --out "$work/r" --no-record -- sh -c "$counted"
expect 0 '- alternative-1 out of memory' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "$counted"
count 9
: >"$work/r/best.ended.json"
expect 0 'order measured:' "$work/plan.json" --top 2 --out "$work/r" --no-record --resume -- sh -c "exec $launcher ok {steps} {flags}"

# A full disk: what was measured is told, what could not be kept too, and the next run is run.
mkdir "$work/d"
ln -s /dev/full "$work/d/alternative-1.log"
mkdir -p "$work/d/best.yaml/no file"
expect 0 'fastest: best' "$work/plan.json" --top 2 --out "$work/d" --no-record -- "$launcher" ok '{steps}' '{flags}'
shows 'alternative-1   failed' 'best: not kept: '
expect 1 'nothing ran to its end' small.yaml --out /dev/null/no --no-record -- "$launcher" ok '{steps}' '{flags}'
shows 'cannot write'

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
began=$(date +%s)
kill -INT $pid
sleep 0.3
kill -INT $pid
wait $pid
[ $? = 0 ] || fail 'a trial that was interrupted twice and has measured something ends with 0'
[ $(($(date +%s) - began)) -lt 4 ] || fail 'the second Ctrl-C waited'
! alive "$(cat "$work/stubborn")" || fail 'a worker outlived the second Ctrl-C'
shows 'fastest: best' 'alternative-1  interrupted'

exit $failed
