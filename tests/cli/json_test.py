#!/usr/bin/env python3
"""What --json of every command begins with: schema and tool. A command that is not asked here fails the test.

    json_test.py PROGRAM DATA TESTS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM, DATA, TESTS = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SMALL = DATA / "small.yaml"
ENV = {**os.environ, "PIPEWRIGHT_PROFILES": str(DATA / "profiles")}
TRACED = TESTS / "import/data"


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, env=ENV, check=False)


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    recording = folder / "run.mem.json"
    recording.write_text('{"rows": [["alloc", 4096, 1048576, 0], ["free_completed", 4096, 1048576, 0]]}')
    part = folder / "part.json"
    run("sweep", SMALL, "--over", "micro_batch_size=1,2", "--part", "1/1", "--json", part)
    answers = {
        "plan": [DATA / "search.yaml"], "simulate": [SMALL], "sweep": [SMALL, "--over", "micro_batch_size=1,2"],
        "explain": [SMALL, "--rank", 0, "--peak"], "schedule": [SMALL], "check": [SMALL], "merge": [part],
        "validate": [DATA / "measured.yaml"], "replay-allocator": [recording], "diff": [SMALL, SMALL],
        "trial": [SMALL, "--dry-run"], "profile show": [DATA / "profiles/table.json"],
        "profile diff": [DATA / "profiles/table.json", DATA / "profiles/table.json"],
        "import": [TRACED / "nccl-tests/all_gather.txt", "--out", folder / "links.json"],
        **{f"list {what}": [] for what in ("profiles", "settings", "versions", "modules", "rules", "effects", "commands")},
    }
    failed = 0
    commands = json.loads(run("list", "commands", "--json", "-").stdout)["commands"]
    for name in [c["name"] for c in commands if any(o["name"] == "--json" for o in c["options"])]:
        if name not in answers:
            print(f"{name} is not asked")
            failed = 1
            continue
        end = ["--", "echo", "{flags}"] if name == "trial" else []
        answer = run(*name.split(), *answers[name], "--json", "-", *end)
        try:
            said = json.loads(answer.stdout)
        except json.JSONDecodeError:
            print(f"{name}: {answer.returncode}: {answer.stderr}")
            failed = 1
            continue
        if list(said)[:2] != ["schema", "tool"] or said["schema"] != 2 or set(said["tool"]) != {"version", "commit"} or len(said) < 3:
            print(f"{name}: begins with {list(said)[:3]}")
            failed = 1
    # What refuses or cannot be read is the answer, too; standard output is nothing else's.
    for command, setting, status, kind in (("simulate", "recompute_granularity=full", 1, "refused"),
                                           ("simulate", "nonsense=1", 2, "input"), ("plan", "nonsense=1", 2, "input")):
        answer = run(command, SMALL, "--set", setting, "--json", "-")
        said = json.loads(answer.stdout or "{}")
        error = said.get("error", {})
        if (answer.returncode, list(said), error.get("kind")) != (status, ["schema", "tool", "error"], kind) or \
                error["message"] not in answer.stderr:
            print(f"{command} {setting}: {answer.returncode}: {answer.stdout}{answer.stderr}")
            failed = 1
        if run(command, SMALL, "--set", setting, "--json", folder / "no.json").stdout or (folder / "no.json").exists():
            print(f"{command} {setting}: wrote something")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
