#!/bin/bash
# fuzz.sh SECONDS: builds the libFuzzer programs with clang 16 or later and runs each for so long, from its corpus. Without such
# a compiler it says so and succeeds. What a program finds stays in build-fuzz/found/TARGET.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
seconds=${1:-60}
compiler=
for version in '' -20 -19 -18 -17 -16; do
  major=$("clang++$version" -dumpversion 2>/dev/null | cut -d. -f1)
  [ "${major:-0}" -ge 16 ] || continue
  # Debian packs the runtime of libFuzzer apart from the compiler.
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "clang++$version" -x c++ -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null && compiler=clang++$version && break
done
if [ -z "$compiler" ]; then
  echo "clang 16 or later with libFuzzer is not installed (Debian 12: apt-get install clang-16 libclang-rt-16-dev): skipped"
  exit 0
fi
if [ ! -f build-fuzz/build.ninja ]; then
  CXX=$compiler meson setup build-fuzz -Dfuzz=true -Dcapture=disabled -Dpython=disabled -Dwerror=false -Db_lundef=false \
    >/dev/null || exit 1
fi
ninja -C build-fuzz fuzzers >build-fuzz/build.log 2>&1 || { grep -A5 'error:' build-fuzz/build.log | head -n 40; exit 1; }
failed=0
for corpus in tests/fuzz/corpus/*/; do
  target=$(basename "$corpus")
  mkdir -p "build-fuzz/found/$target" "build-fuzz/seeds/$target"
  ASAN_OPTIONS=detect_leaks=0 "build-fuzz/tests/fuzz/fuzz_$target" "build-fuzz/seeds/$target" "$corpus" \
    -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/found/$target/" >"build-fuzz/$target.log" 2>&1
  status=$?
  echo "$target: $(grep -o 'number_of_executed_units: *[0-9]*' "build-fuzz/$target.log" | grep -o '[0-9]*$' || echo 0) inputs"
  if [ "$status" != 0 ]; then
    grep -E 'runtime error|ERROR: |SUMMARY' "build-fuzz/$target.log" | head -n 5
    failed=1
  fi
done
exit "$failed"
