#!/bin/sh
# files_test.sh PROGRAM DATA: outputs never replace an input, keep who may read a file, and may have long names; what
# convert writes is read back; a script and its flags give one prediction, and commands one verdict.
program=$(readlink -f "$1")
data=$(readlink -f "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$data/attack/base.yaml" "$folder/base.yaml"
cd "$folder" || exit 1
failed=0
say() { echo "$*"; failed=1; }
refused() {  # what stands in the file of the same name is left alone
  "$program" "$@" >out 2>err
  status=$?
  [ "$status" = 2 ] || say "status $status instead of 2: $*"
  grep -q "is an input of the same command" err || say "not refused as an input: $*: $(cat err)"
  cmp -s base.yaml "$data/attack/base.yaml" || say "the input was changed by: $*"
}

ln -s base.yaml link.yaml
ln base.yaml hard.yaml
refused simulate base.yaml --json base.yaml
refused simulate base.yaml --json link.yaml
refused simulate link.yaml --json base.yaml
refused simulate hard.yaml --json base.yaml
refused simulate base.yaml --trace ./base.yaml
refused simulate base.yaml --report hard.yaml
refused convert base.yaml --out base.yaml

# A node has as many GPUs as it has, however few of them are asked for: more of them are not on nodes of so few.
model="--hf $data/config.json --profile h200-sxm --set num_layers=2 --set seq_length=1024 --set global_batch_size=8"
flags="--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000"
for form in "$model" "--megatron \"$flags\" --profile h200-sxm" "${model%h200*}gb200-nvl72${model#*sxm}"; do
  for gpus in 1 4; do
    eval "\"$program\" simulate $form --gpus $gpus --set num_gpus=8 --json few.json" >out || say "$gpus GPUs: failed"
    eval "\"$program\" simulate $form --gpus 8 --json all.json" >out || say "8 GPUs: failed"
    cmp few.json all.json || say "--gpus $gpus --set num_gpus=8 is not --gpus 8: $form"
    eval "\"$program\" sweep $form --gpus $gpus --over num_gpus=8 --json swept.json" >out || say "sweep: failed"
    step=$(grep -m 1 '"step_time_ms"' all.json | tr -d ' ,')
    tr -d ' ,' <swept.json | grep -qx "$step" || say "swept from $gpus to 8 GPUs is not $step: $form"
  done
done
# Bridge's harness starts as many tasks as it is told that a node has GPUs.
"$program" plan base.yaml --set num_gpus=2 --emit harness >out 2>err
grep -q -e '-gn 2' out || say "-gn of two GPUs: $(grep -e '-gn' out err)"

# What is to spare, or too much, is the same in every command.
for limit in 4700 4800 4850 4900 4950 5000 6000; do
  said=$("$program" simulate base.yaml --set search.memory_limit=${limit}MiB 2>err |
    sed -n 's/^fits: \(.*\) to spare on rank \([0-9]*\) .*/rank \2 fits with \1 to spare/p
      s/^does not fit: \(.*\) too much on rank.*/\1 too much/p')
  [ -n "$said" ] || say "no verdict of $limit MiB"
  "$program" check base.yaml --set search.memory_limit=${limit}MiB --symptom oom --json - 2>err | grep -qF "$said" ||
    say "simulate says: $said; check --symptom oom says another thing of $limit MiB"
done

touch secret.json
chmod 600 secret.json
"$program" simulate base.yaml --json secret.json >out || say "simulate failed"
[ "$(stat -c %a secret.json)" = 600 ] || say "permissions became $(stat -c %a secret.json)"
long=$(printf 'n%.0s' $(seq 1 250)).json
"$program" simulate base.yaml --json "$long" >out || say "a name of 255 bytes failed"
[ -s "$long" ] || say "a name of 255 bytes was not written"
"$program" simulate base.yaml --trace - >out || say "--trace - failed"
[ ! -e ./- ] || say "--trace - wrote a file of that name"
head -c 1 out | grep -q '{' || say "--trace - did not print a trace"
"$program" simulate base.yaml --trace - --json - >out 2>err && say "two results on standard output"

# "-" is standard output, for one output of a command: whatever its --help calls an output.
"$program" simulate base.yaml --json measured.json >out 2>err
sed '$a measured: {step_ms: 12.0, source: a test}' base.yaml >measured.yaml
while read -r command; do
  outputs=$("$program" ${command%% *} --help | grep -E '^ +--(json|report|trace|csv|markdown|out) ' | grep -v folder | awk '{ print $1 }')
  [ -n "$outputs" ] || say "no outputs in the help of $command"
  for output in $outputs; do
    rm -f out ./-
    case $command in *' -- '*) set -- ${command%% -- *} "$output" - -- ${command##* -- } ;; *) set -- $command "$output" - ;; esac
    "$program" "$@" >out 2>err
    [ $? -le 1 ] || say "$*: $(cat err)"
    [ ! -e ./- ] || say "a file named - was written: $*"
    [ -s out ] || say "nothing was printed: $*"
    for other in $outputs; do
      [ "$other" = "$output" ] && continue
      case $command in *' -- '*) set -- ${command%% -- *} "$output" - "$other" - -- ${command##* -- } ;; *) set -- $command "$output" - "$other" - ;; esac
      "$program" "$@" >out 2>err
      [ $? = 2 ] || say "two results on standard output: $*"
    done
  done
done <<'COMMANDS'
plan base.yaml
simulate base.yaml
sweep base.yaml --over micro_batch_size=1,2
explain base.yaml --rank 0 --peak
schedule base.yaml
check base.yaml --baseline base.yaml
validate measured.yaml
convert base.yaml
trial base.yaml -- echo {flags}
diff base.yaml base.yaml --set-b micro_batch_size=2
COMMANDS

# Two recipes of one name would hide each other.
mkdir before after
cp base.yaml before/one.yaml && cp base.yaml before/one.yml && cp base.yaml after/one.yaml
"$program" check --baseline before after >out 2>err && say "two recipes of one name"
grep -q 'before: one: two recipes have this name: one.yaml and one.yml' err || say "two recipes of one name: $(cat err)"

# A full disk behind standard output is an error, whoever flushed first.
for words in --version --help 'simulate base.yaml' 'simulate base.yaml --json -' 'list settings' 'man plan' 'completion bash'; do
  "$program" $words >/dev/full 2>err
  [ $? = 2 ] || say "$words >/dev/full ended with $?"
done

# ... and the answer is told all the same: it may have taken an hour.
for words in 'simulate base.yaml' 'plan base.yaml' 'sweep base.yaml --over micro_batch_size=1'; do
  "$program" $words >told || say "$words failed"
  for output in --json --report; do
    "$program" $words $output /dev/full >out 2>err
    [ $? = 2 ] || say "$words $output /dev/full ended with $?"
    grep -q 'No space left' err || say "$words $output /dev/full: $(cat err)"
    cmp -s out told || say "$words $output /dev/full kept its answer to itself"
  done
done

# "-" and pipes are inputs.
words() { sed 's/stdin/base/g' | tr -s ' \n' ' '; }
"$program" simulate base.yaml | words >told
"$program" simulate - <base.yaml | words | cmp -s - told || say "simulate - of a file differs"
cat base.yaml | "$program" simulate - | words | cmp -s - told || say "simulate - of a pipe differs"
mkfifo pipe
for side in 'pipe base.yaml' 'base.yaml pipe'; do
  cat base.yaml >pipe &
  "$program" diff $side >out 2>err || say "diff $side: $(cat err)"
done
cat base.yaml | "$program" diff - base.yaml >out 2>err || say "diff -: $(cat err)"
"$program" diff - base.yaml <base.yaml >out 2>err || say "diff - of a file: $(cat err)"

# A profile may come from a pipe, though it is asked for twice; "-" stands for every file that is read.
"$program" simulate base.yaml --profile h200-sxm >told
profiles=$(dirname "$(readlink -f "$program")")/../../../profiles
if [ -f "$profiles/h200-sxm.json" ]; then
  cat "$profiles/h200-sxm.json" >pipe &
  "$program" simulate base.yaml --profile pipe >out 2>err || say "a profile from a pipe: $(cat err)"
  [ "$(grep '^step' out)" = "$(grep '^step' told)" ] || say "a profile from a pipe differs: $(diff out told | head -n 4)"
fi
echo 'cfg.model.num_layers = 4' | "$program" simulate --bridge - --gpus 8 >out 2>err
grep -q '/dev/stdin: cfg.model.vocab_size' err || say "--bridge -: $(cat err)"
echo '{' | "$program" simulate --hf - --gpus 8 >out 2>err
grep -q '/dev/stdin:2: is not JSON' err || say "--hf -: $(cat err)"

# A link to a file that is not there yet goes on pointing to it; a file that may not grow leaves nothing behind.
ln -s later.json ahead.json
"$program" simulate base.yaml --json ahead.json >out || say 'a link to a file that is not there failed'
[ -L ahead.json ] && [ -s later.json ] || say 'a link to a file that was not there was replaced'
(ulimit -f 1 && "$program" simulate base.yaml --json grown.json 2>err >/dev/null)
grep -q 'grown.json: cannot write: File too large' err || say "a limit on files: $(cat err)"
[ -z "$(ls -A | grep -E 'grown|tmp$')" ] || say "a limit on files left $(ls -A | grep -E 'grown|tmp$')"

# A sweep that is stopped, also as its terminal goes, writes what it has; its status says that rows are missing. Rows are
# short, since the one that is being made is waited for, and too many for two seconds.
signals='INT HUP'  # but for nohup
[ $((0x$(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/$$/status) & 1)) = 0 ] || signals=INT
for signal in $signals; do
  rm -f rows.csv
  "$program" sweep base.yaml --over "global_batch_size=$(seq -s, 256 64 65536)" --csv rows.csv >out 2>err &
  pid=$!
  sleep 2
  kill -$signal $pid
  wait $pid
  [ $? = 1 ] || say "a sweep that was stopped by $signal did not end with 1"
  grep -q 'sweep: interrupted, [0-9]* rows are missing' err || say "a sweep that was stopped by $signal: $(cat err)"
  [ -s rows.csv ] || say "a sweep that was stopped by $signal wrote nothing"
done
touch empty.r0.json
"$program" import empty.r0.json --out mine.json 2>err
grep -q 'empty.r0.json: is empty' err || say "an empty trace: $(cat err)"

# What stands after -- is the command's and nobody else's.
cat >config.json <<'JSON'
{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8,
 "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
 "tie_word_embeddings": false, "hidden_act": "silu"}
JSON
"$program" trial --hf config.json --gpus 1 --profile h200-sxm --set seq_length=1024 --set global_batch_size=8 --dry-run \
  -- torchrun --report pretrain_gpt.py {flags} >out 2>err || say "the command after -- was taken for something else: $(cat err)"
grep -q -e 'pretrain_gpt.py --' out || say "no flags: $(cat out)"

# Odd values that a setting may hold, through convert and back.
for value in 'a: b' "it's" '"q"' 'x #y' '- z' '{a' '[b' '&c' '*d' '!e' '%f' '@g' '`h' 'yes' 'null' '~' '0x10' '1_000' '1e3' \
  ' lead' 'trail ' 'tab	tab' 'a,b' 'a\b' 'ümlaut' '.5' '-1' '=' '<<'; do
  "$program" convert base.yaml --set "config_logger_dir=$value" --out odd.yaml 2>err || { grep -q error: err || say "$value: $(cat err)"; continue; }
  "$program" convert odd.yaml --out again.yaml 2>err || say "not read back: $value: $(cat err)"
  cmp -s odd.yaml again.yaml || say "changed on the way: $value"
  rm -f odd.yaml again.yaml
  "$program" convert base.yaml --env "ODD=$value" --out odd.yaml && "$program" convert odd.yaml --out again.yaml ||
    say "variable not read back: $value"
  cmp -s odd.yaml again.yaml || say "variable changed on the way: $value"
  rm -f odd.yaml again.yaml
done

# Scenarios and profiles, which people make, are replaced by --force only.
echo mine >kept
while read -r command; do
  "$program" $command --out kept 2>err >out
  [ $? = 2 ] || say "status of $command --out with a file that is there"
  grep -q -e '--out: kept exists; --force replaces it' err || say "$command: $(cat err)"
  [ "$(cat kept)" = mine ] || say "replaced by $command"
  "$program" $command --out kept --force 2>err >out || say "$command --force: $(cat err)"
  [ "$(cat kept)" = mine ] && say "not replaced by $command --force"
  echo mine >kept
done <<'END'
convert base.yaml
profile merge h200-sxm h200-sxm
profile derive h200-sxm --gpu h100-sxm
END
exit $failed
