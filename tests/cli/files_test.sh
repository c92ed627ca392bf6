#!/bin/sh
# files_test.sh PROGRAM DATA: outputs never replace an input, keep who may read a file, and may have long names; what
# convert writes is read back; a script and its flags give one prediction.
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
done
exit $failed
