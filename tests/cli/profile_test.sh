#!/bin/sh
# pipewright profile and list: profile_test.sh PROGRAM DATA_FOLDER
set -u
program=$1 data=$2
. "$(dirname "$0")/expect.sh"

expect 0 'pipewright ' --version
for command in profile 'profile show' 'profile merge' 'profile diff' 'profile derive' list; do
  expect 0 'Usage: ' $command --help
done
expect 2 'did you mean "profile"?' profil show x
expect 2 'did you mean "show"?' profile shwo x
expect 2 'did you mean "--json"?' profile show --jsn x
expect 2 'error: ' profile show

expect 0 'a table of numbers' profile show "$data/tiny.json"
expect 0 '723 TFLOP/s' profile show "$data/tiny.json" --family gemm.bf16.tn
expect 2 'did you mean "fill"?' profile show "$data/tiny.json" --family fil
expect 2 'there is no profile "tiny"' profile show tiny
PIPEWRIGHT_PROFILES=$data
export PIPEWRIGHT_PROFILES
expect 0 'a table of numbers' profile show tiny
expect 0 'tiny' list profiles
expect 2 'did you mean "tiny"?' profile show tine

"$program" profile show tiny --json - | python3 -m json.tool >/dev/null || { echo "show --json - is not JSON"; failed=1; }
"$program" list profiles --json - | python3 -m json.tool >/dev/null || { echo "list --json - is not JSON"; failed=1; }

expect 0 '' profile merge tiny "$data/tiny.json" --out "$work/merged.json"
expect 2 '--force' profile merge tiny "$data/tiny.json" --out "$work/merged.json"
expect 0 '' profile merge tiny "$data/tiny.json" --out "$work/merged.json" --force
expect 0 'no difference' profile diff tiny "$work/merged.json"
for arguments in 'show tiny' "diff tiny $work/merged.json"; do
  # shellcheck disable=SC2086  # words
  expect 0 '"schema": ' profile $arguments --json -
  grep -q '"tool": ' "$work/output" || { echo "profile $arguments: no tool"; failed=1; }
done
expect 0 '' profile derive h200-sxm --gpu h100-sxm --out "$work/derived.json"
expect 2 '--force' profile derive h200-sxm --gpu h100-sxm --out "$work/derived.json"
expect 0 '' profile derive h200-sxm --gpu h100-sxm --out "$work/derived.json" --force
expect 0 'fill bytes=1073741824 (us)' profile diff h200-sxm "$work/derived.json"
expect 0 'derived' profile show "$work/derived.json"
expect 2 'cannot' profile merge tiny tiny --out "$work/no/such/folder.json"

# What is calibrated: its name, what it would replace, a run that no machine's speed explains.
run=${data%/profile/data}/measured/a_pp4_m8.yaml
expect 2 '--force' profile calibrate "$run" --out "$work/merged.json"
expect 0 '"name": "h200-sxm-calibrated"' profile calibrate "$run" --out -
mkdir "$work/runs" && cp "$run" "$work/runs/"
expect 0 '"name": "h200-sxm-calibrated"' profile calibrate "$work/runs" --out -
sed -e '/^measured:/,$d' "$run" >"$work/far.yaml"
printf 'measured:\n  step_ms: 90000\n  source: here\n' >>"$work/far.yaml"
expect 2 'measured.step_ms: would mean kernels more than 2.00 times' profile calibrate "$work/far.yaml" --out -
expect 2 'assert needs' check "$run" --symptom assert ''
expect 2 'assert needs' check "$run" --symptom assert ' '
expect 0 'cold, as no other run tells' validate "$run" "$run" --calibrate
grep -q 'tau' "$work/output" && { echo "one run has no order"; failed=1; }
expect 0 'peak' validate "$run" "$(dirname "$run")/../measured/a_pp4_m8.yaml"
[ "$(grep -c '^a_pp4_m8' "$work/output")" = 1 ] || { echo "a run that is given twice counts twice"; failed=1; }

# What Megatron would refuse has not run as it is described: no command predicts it, and each says why.
rule=dp.gather-needs-reduce
sed 's/overlap_param_gather: false/overlap_param_gather: true/' "$run" >"$work/illegal.yaml"
expect 0 "Refused
- illegal: $rule" validate "$run" "$work/illegal.yaml"
expect 1 "- illegal: $rule" validate "$work/illegal.yaml" --tolerance 100
for command in simulate schedule 'explain --peak --rank 0' 'profile calibrate --out -' "diff $run"; do
  # shellcheck disable=SC2086  # words
  expect 1 "refused: $rule" $command "$work/illegal.yaml"
done
expect 1 "refused: $rule" trial "$work/illegal.yaml" --dry-run -- train '{flags}'

# What a rule says depends on the GPU, with every command.
flags='torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024
  --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 2 --tensor-model-parallel-size 2
  --sequence-parallel --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer'
for command in simulate schedule 'explain --peak --rank 0' plan check; do
  # shellcheck disable=SC2086  # words
  expect 0 '' $command --profile b200-sxm --megatron "$flags"
done
for command in simulate schedule check; do
  expect 1 environment.max-connections $command --profile h100-sxm --megatron "$flags"
done

sed 's/"time_us": 18,/"time_us": -18,/' "$data/tiny.json" >"$work/broken.json"
expect 2 'families.fill.samples[1].time_us' profile show "$work/broken.json"
head -c 700 "$data/tiny.json" >"$work/cut.json"
expect 2 'is not JSON' profile show "$work/cut.json"

exit $failed
