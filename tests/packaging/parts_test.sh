#!/bin/bash
# A sweep in four processes gives the same bytes as in one; parts that are missing, cut short or of another sweep are
# refused.
#   parts_test.sh PROGRAM
set -euo pipefail
program=$1
here=$(dirname "$(readlink -f "$0")")
scenario=$here/../cli/data/small.yaml
export PIPEWRIGHT_PROFILES=$here/../cli/data/profiles
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }
refused() {  # refused TEXT COMMAND...: exit status 2 and this text
  local text=$1 status=0
  shift
  "$@" >out 2>err || status=$?
  [ "$status" = 2 ] && grep -Fq "$text" err || fail "expected status 2 and \"$text\", got $status: $(cat err)"
}

over=(--over recompute_modules --over micro_batch_size=1,2 --over global_batch_size=8,16,17)
"$program" sweep "$scenario" "${over[@]}" --json whole.json >/dev/null
rows=$(grep -c '"legal"' whole.json)
[ "$rows" -gt 8 ] || fail "only $rows rows"
grep -q '"legal": false' whole.json || fail "no illegal row"
for part in 1 2 3 4; do "$program" sweep "$scenario" "${over[@]}" --part $part/4 --json part$part.json >/dev/null & done
wait
"$program" merge part3.json part1.json part4.json part2.json --json merged.json
cmp whole.json merged.json || fail "merged parts differ from the whole"
# More parts than rows.
for part in $(seq 1 40); do "$program" sweep "$scenario" --over micro_batch_size=1,2 --part "$part/40" --json "many$part.json" >/dev/null; done
"$program" sweep "$scenario" --over micro_batch_size=1,2 --json whole.json >/dev/null
"$program" merge many*.json --json - | cmp whole.json - || fail "40 parts of two rows"

refused "is part 1 of 4, given are 3" "$program" merge part1.json part2.json part3.json --json -
refused "part 1 is given twice" "$program" merge part1.json part1.json part2.json part3.json --json -
"$program" sweep "$scenario" "${over[@]}" --set bf16=true --set seq_length=64 --part 2/4 --json other.json >/dev/null
refused "is of another sweep" "$program" merge part1.json other.json part3.json part4.json --json -
python3 - <<'PY'
import json
part = json.load(open("part2.json"))
part["rows"].pop()
json.dump(part, open("cut.json", "w"))
PY
refused "it was interrupted" "$program" merge part1.json cut.json part3.json part4.json --json -
refused "no part of a sweep" "$program" merge whole.json --json -
echo '{"rows": 3, "part": []}' >broken.json
refused "no part of a sweep" "$program" merge broken.json --json -
refused "is no part" "$program" sweep "$scenario" "${over[@]}" --part 5/4
refused "is no part" "$program" sweep "$scenario" "${over[@]}" --part 1/4x
echo "9 passed, 0 failed"
