#!/usr/bin/env python3
"""A trace as Perfetto's importer takes it: slices of a thread nest, arrows begin and end inside slices, counters are there;
and its figures are those of the JSON.

  trace_test.py PROGRAM SCENARIOS       PIPEWRIGHT_LONG=1: also 405B

With PyPI's `perfetto` and a trace_processor_shell (its path in PERFETTO_TRACE_PROCESSOR; the package would download one)
the same is asked of Perfetto itself by SQL; without, a line says so.
"""

import bisect
import collections
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM, SCENARIOS = sys.argv[1], pathlib.Path(sys.argv[2])
SHELL = os.environ.get("PERFETTO_TRACE_PROCESSOR")
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAILED:", what, flush=True)


def near(a, b, tolerance):
    return math.isclose(a, b, abs_tol=tolerance)


def own_check(events, name):
    """The importer's rules. Times in whole nanoseconds, as Perfetto keeps them."""
    slices, ends = collections.defaultdict(list), {}
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * 1000)
            check(e["dur"] > 0, f"{name}: {e['name']} has no length")
            slices[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000), e["name"]))
    for thread, list_ in slices.items():
        list_.sort(key=lambda s: (s[0], -s[1]))
        stack = []
        for start, end, what in list_:
            while stack and stack[-1] <= start:
                stack.pop()
            check(not stack or end <= stack[-1], f"{name}: {what} on {thread} overlaps what it begins in")
            stack.append(end)
    starts = {thread: [s[0] for s in list_] for thread, list_ in slices.items()}
    arrows = collections.defaultdict(dict)
    for e in events:
        if e["ph"] in "sf":
            at, thread = round(e["ts"] * 1000), (e["pid"], e["tid"])
            i = bisect.bisect_right(starts[thread], at) - 1
            inside = any(s[0] <= at <= s[1] for s in slices[thread][max(0, i - 3):i + 1])
            check(inside, f"{name}: an arrow's end at {at} lies in no slice of {thread}")
            arrows[e["id"]][e["ph"]] = (at, e["pid"])
    for number, both in arrows.items():
        check(set(both) == {"s", "f"} and both["s"][0] <= both["f"][0] and both["s"][1] != both["f"][1], f"{name}: arrow {number} {both}")
    return slices, arrows


def names_of(events):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}


def equal_to_json(events, threads, result, name):
    """Waits by cause, peaks of the counters, transfers, the end of the step."""
    waits = collections.Counter()
    counters = collections.defaultdict(list)
    kernels = 0
    for e in events:
        if e["ph"] == "X" and e["cat"] == "wait":
            waits[e["pid"], e["name"]] += round(e["dur"] * 1000)
        elif e["ph"] == "C":
            counters[e["pid"], e["name"]].append(e["args"]["GiB"])
        elif e["ph"] == "X" and "shape" in e["args"]:
            kernels += 1
            check({"op", "family", "bytes", "time from", "alone us"} <= set(e["args"]), f"{name}: {e['name']} says {sorted(e['args'])}") if kernels < 5000 else None
    for rank in result["ranks"]:
        r = rank["pp_rank"]
        for cause, value in (("bubble", rank["bubble_ms"]), ("idle", rank["idle_ms"]), ("p2p", rank["exposed_ms"]["p2p"]), ("host", rank["exposed_ms"]["host"])):
            check(near(waits[r, cause] / 1e6, value, 1e-6 * max(1, value)), f"{name} rank {r}: {cause} {waits[r, cause] / 1e6}, not {value}")
        check(near(max(counters[r, "allocated memory"]), rank["peak_allocated_bytes"] / 2**30, 1e-4), f"{name} rank {r}: allocated")
        check(max(counters[r, "reserved memory"]) > 0.8 * rank["peak_reserved_bytes"] / 2**30, f"{name} rank {r}: reserved")
        check(near(max(counters[r, "most reserved in any step"]), rank["peak_reserved_bytes"] / 2**30, 1e-4), f"{name} rank {r}: most reserved")
        check(near(counters[r, "limit of the allocator"][0], (result["memory_limit_bytes"] - rank["outside_allocator_bytes"]) / 2**30, 1e-4), f"{name} rank {r}: limit")
        for thread in ("schedule", "host", "compute waits for", "compute"):
            check(thread in [t for (pid, _), t in threads.items() if pid == r], f"{name} rank {r}: no thread {thread}")
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    check(near(last / 1000, result["step_time_ms"], 1e-5), f"{name}: ends at {last / 1000}")
    return kernels


def by_perfetto(path, slices, arrows, name):
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    except ImportError:
        TraceProcessor = None
    if TraceProcessor is None or not SHELL:
        print(f"{name}: Perfetto's own trace processor is not here (package perfetto, PERFETTO_TRACE_PROCESSOR): its rules are checked by this program")
        return
    with TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=SHELL)) as processor:
        ask = lambda sql: next(iter(processor.query(sql)))  # noqa: E731
        check(ask("select count(*) n from slice").n == sum(map(len, slices.values())), f"{name}: slices in Perfetto")
        check(ask("select count(*) n from flow").n == len(arrows), f"{name}: flows in Perfetto")
        check(ask("select count(*) n from stats where severity = 'error' and value > 0").n == 0, f"{name}: errors in Perfetto")
        check(ask("select count(distinct name) n from process_counter_track").n == 4, f"{name}: counters in Perfetto")


def main():
    names = ["llama3-70b-sft-32xh100"] + (["llama31-405b-pretrain-1024xh100"] if os.environ.get("PIPEWRIGHT_LONG") else [])
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path, json_path = pathlib.Path(folder) / f"{name}.json.gz", pathlib.Path(folder) / "result.json"
            done = subprocess.run([PROGRAM, "simulate", str(SCENARIOS / f"{name}.yaml"), "--trace", str(path), "--json", str(json_path)], capture_output=True, text=True)
            check(done.returncode in (0, 1), f"{name}: {done.stderr}")
            with gzip.open(path) as file:
                trace = json.load(file)
            events, result = trace["traceEvents"], json.loads(json_path.read_text())
            slices, arrows = own_check(events, name)
            kernels = equal_to_json(events, names_of(events), result, name)
            check(len(arrows) == sum(b["transfers"] for b in result["boundaries"]), f"{name}: {len(arrows)} arrows")
            left_out = trace["otherData"]["left out"]
            check((left_out != "nothing") == (left_out in done.stderr), f"{name}: what is left out is not said on the terminal")
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {len(events)} events, {kernels} kernels; left out: {left_out}", flush=True)
            by_perfetto(path, slices, arrows, name)
    print(f"{len(failures)} failed" if failures else "all passed")
    sys.exit(1 if failures else 0)


main()
