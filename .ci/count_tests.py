"""Prints "N passed, N failed" from meson's testlog.json: doctest's cases, or one for a program that is not doctest's.

A skipped program counts as neither. Exit status 1 if a test failed or none ran.
"""

import json
import re
import sys

CASES = re.compile(r"test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed")

passed = failed = 0
with open(sys.argv[1], encoding="utf-8") as log:
    for line in log:
        test = json.loads(line)
        good = test["result"] in ("OK", "EXPECTEDFAIL")
        cases = CASES.search(re.sub("\x1b\\[[0-9;]*m", "", test.get("stdout") or ""))
        if test["result"] == "SKIP":
            continue
        if cases:
            passed += int(cases[1])
            failed += max(int(cases[2]), 0 if good else 1)
        elif good:
            passed += 1
        else:
            failed += 1

print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed or not passed else 0)
