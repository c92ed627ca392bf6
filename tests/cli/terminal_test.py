#!/usr/bin/env python3
"""On a terminal: its width and colour; in a pipe: neither. Filters of list, short names, suggestions.

  terminal_test.py PROGRAM SCENARIO
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

PROGRAM, SCENARIO = sys.argv[1:3]
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAILED:", what, flush=True)


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "TERM")}
    return {**kept, "TERM": "xterm", **more}


def pipe(*words, **more):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=environment(**more))


def terminal(*words, columns=80, **more):
    """Standard output as a terminal of so many columns shows it."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([PROGRAM, *words], stdout=inner, stderr=subprocess.DEVNULL, env=environment(**more))
    os.close(inner)
    text = b""
    while True:
        try:
            part = os.read(outer, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(outer)
    process.wait()
    return text.decode().replace("\r\n", "\n")


def prose(text):
    """Lines of paragraphs; tables and their titles keep their columns."""
    return [line for line in text.split("\n") if line.startswith("- ")]


plain = pipe("simulate", SCENARIO).stdout
check("\033" not in plain and plain, "a pipe has no colour")
check(pipe("simulate", SCENARIO, COLUMNS="60").stdout == plain, "a pipe has no width")
check(pipe("simulate", SCENARIO, "--color", "never").stdout == plain, "never is what a pipe has")
always = pipe("simulate", SCENARIO, "--color", "always").stdout
check("\033[" in always, "always has colour")
check(re.sub("\033\\[[0-9;]*m", "", always) == plain, "colours add nothing else")
check(json.loads(pipe("simulate", SCENARIO, "--color", "always", "--json", "-").stdout), "JSON has none")
check(pipe("simulate", SCENARIO, "--color", "sometimes").returncode == 2, "another word is refused")

wide, narrow = terminal("simulate", SCENARIO, columns=120), terminal("simulate", SCENARIO, columns=60)
check("\033[" in wide, "a terminal has colour")
check(re.sub("\033\\[[0-9;]*m", "", wide) == plain, "120 columns are what a pipe has")
check("\033[" not in terminal("simulate", SCENARIO, NO_COLOR="1"), "NO_COLOR")
check("\033[" not in terminal("simulate", SCENARIO, TERM="dumb"), "a dumb terminal")
check("\033[" not in terminal("simulate", SCENARIO, "--color", "never"), "never, on a terminal")
bare = re.sub("\033\\[[0-9;]*m", "", narrow)
check(all(len(line) <= 60 for line in prose(bare)), "prose is as wide as the terminal")
check(any(len(line) > 60 for line in prose(plain)), "... and is wider in a pipe")
check(re.sub(r"\s+", " ", bare) == re.sub(r"\s+", " ", plain), "no word is lost")
check(all(len(line) <= 50 for line in prose(re.sub("\033\\[[0-9;]*m", "", terminal("simulate", SCENARIO, columns=100, COLUMNS="50")))), "COLUMNS goes before the terminal's own")

# Progress: one line, however narrow the terminal is, and no escapes where it knows none.
def progress(columns, **more):
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run([PROGRAM, "simulate", SCENARIO], stdout=subprocess.DEVNULL, stderr=inner, env=environment(**more))
    os.write(inner, b"end")
    os.close(inner)
    text = b""
    while not text.endswith(b"end"):
        text += os.read(outer, 65536)
    os.close(outer)
    return text[:-3].decode()


for columns in (20, 60, 200):
    lines = progress(columns).replace("\033[K", "").split("\r")
    check(any(lines), "progress is shown on a terminal")
    check(all(len(line) < columns for line in lines), f"progress on {columns} columns: {lines}")
check("\033" not in progress(60, TERM="dumb"), "progress on a dumb terminal")

rules = pipe("list", "rules").stdout
some = pipe("list", "rules", "RECOMPUTE", "mla").stdout
check(0 < len(some) < len(rules) / 4, "list rules takes words")
for entry in re.split(r"\n(?! )", some.strip()):
    check("recompute" in entry.lower() and "mla" in entry.lower(), f"list rules: {entry.splitlines()[0]}")
    check(entry in rules, "an entry is as it was")
rows = json.loads(pipe("list", "settings", "overlap_p2p", "--json", "-").stdout)["settings"]
check(rows and all("overlap_p2p" in json.dumps(r) for r in rows), "list settings --json")
check(pipe("list", "settings", "overlap_p2p").stdout.startswith("settings:\n"), "a section's title stays")
check(pipe("list", "profiles", "h200").stdout.count("\n") == 3, "a table's head stays")
check(pipe("list", "rules", "nothing at all like this").returncode == 1, "nothing found is the answer no")

long_names = ("--set", "tensor_model_parallel_size=8", "--set", "virtual_pipeline_model_parallel_size=10", "--set", "micro_batch_size=1")
short_names = ("--set", "tp=8", "--set", "vpp=10", "--set", "mbs=1")
check(pipe("simulate", SCENARIO, *short_names).stdout == pipe("simulate", SCENARIO, *long_names).stdout, "short names")
over = json.loads(pipe("sweep", SCENARIO, "--over", "tp=4,8", "--json", "-").stdout)
check([r["settings"] for r in over["rows"]] == [{"tensor_model_parallel_size": 4}, {"tensor_model_parallel_size": 8}], "short names of a sweep")

for wrong, near in (("a100-sxm", None), ("h100", "h100-sxm"), ("h200_sxm", "h200-sxm"), ("b400-sxm", None)):
    said = pipe("simulate", SCENARIO, "--profile", wrong)
    check(said.returncode == 2 and "allowed: " in said.stderr, f"{wrong}: the list")
    check((f'did you mean "{near}"' in said.stderr) if near else ("did you mean" not in said.stderr), f"{wrong}: {said.stderr}")

print(f"{len(failures)} failed" if failures else "all passed")
sys.exit(1 if failures else 0)
