#!/usr/bin/env python3
"""The cheapest ways to free memory are the cheapest: what a list of modules frees, one of them frees for as little, within a
tenth, and none changes the allocator for nothing.

    ladder_test.py PROGRAM SCENARIO
"""
import itertools
import json
import subprocess
import sys

PROGRAM, SCENARIO = sys.argv[1:]
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def run(*words):
    return json.loads(subprocess.run([PROGRAM, *words, "--json", "-"], capture_output=True, text=True, check=True).stdout)


def peak(prediction):
    return max(rank["peak_allocated_bytes"] for rank in prediction["ranks"])


def main():
    plan = run("plan", SCENARIO)
    ladder, best = plan["ladder"], plan["best"]["prediction"]
    assert len(ladder) > 2, "nothing to judge"
    missing = []
    for modules in itertools.chain.from_iterable(itertools.combinations(["core_attn", "mlp"], n) for n in (1, 2)):
        other = run("simulate", SCENARIO, "--set", "recompute_granularity=selective", "--set",
                    f"recompute_modules=[{', '.join(modules)}]")
        freed, cost = peak(best) - peak(other), other["step_time_ms"] - best["step_time_ms"]
        if freed > 0 and not any(peak(best) - step["peak_bytes"] > 0.9 * freed and
                                 step["step_time_ms"] - best["step_time_ms"] < 1.1 * cost for step in ladder):
            missing.append((modules, freed, cost))
    print(*missing, sep="\n")
    changed = [step["settings"] for step in ladder
               if step["settings"].get(ALLOCATOR) != plan["best"]["environment"].get(ALLOCATOR)]
    print(*changed, sep="\n")
    assert all(step["peak_bytes"] < peak(best) for step in ladder)
    return 1 if missing or changed else 0


if __name__ == "__main__":
    sys.exit(main())
