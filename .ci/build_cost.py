#!/usr/bin/env python3
"""What building costs, and the ratchet that keeps it.

  .ci/build_cost.py BUILD             objects that each public header rebuilds, in a folder that is built; exit 1 if a
                                      header rebuilds more than .ci/build_cost.json allows
  .ci/build_cost.py --measure [TARGET ...]
                                      builds the program (or the targets) in a folder of its own without a compiler
                                      cache: CPU seconds of the whole and of the dearest objects; exit 1 beyond the limit
  --accept                            writes what was found into .ci/build_cost.json

CPU seconds are user and system time of all children: they hardly depend on what else the machine does.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = ROOT / ".ci/build_cost.json"
PROGRAM = "src/cli/pipewright"


def objects_by_header(build):
    """Public header -> number of the program's objects that depend on it."""
    wanted = set(re.findall(r"\S+\.o\b", subprocess.run(["ninja", "-C", build, "-t", "commands", PROGRAM], check=True,
                                                        capture_output=True, text=True).stdout))
    count, current = {}, None
    for line in subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True,
                               text=True).stdout.splitlines():
        if line and not line.startswith(" "):
            current = line.split(":")[0]
        elif current in wanted and (found := re.search(r"include/\w+/(pipewright/[\w/]+\.hpp)$", line)):
            count.setdefault(found[1], set()).add(current)
    return {header: len(objects) for header, objects in sorted(count.items())}


def measure(targets):
    """CPU seconds of a build from nothing, and (seconds, object) of its dearest objects."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, CXX="g++", CCACHE_DISABLE="1")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["meson", "setup", "-Dwerror=false", folder, str(ROOT)], check=True, env=environment,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["ninja", "-C", folder, *targets], check=True, env=environment, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [line.split("\t") for line in (pathlib.Path(folder) / ".ninja_log").read_text().splitlines()[1:]]
        objects = sorted(((int(r[1]) - int(r[0])) / 1000, r[3]) for r in rows if r[3].endswith(".o"))
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime), objects[::-1]


def main():
    arguments = [a for a in sys.argv[1:] if a != "--accept"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    failed = False
    if arguments[0] == "--measure":
        targets = arguments[1:] or [PROGRAM]
        seconds, objects = measure(targets)
        limit = limits["cpu_seconds"].get(" ".join(targets))
        print(f"{' '.join(targets)}: {seconds:.0f} CPU s" + (f" (limit {limit})" if limit else ""))
        for wall, name in objects[:12]:
            print(f"  {wall:6.1f} s  {name}")
        failed = bool(limit) and seconds > limit
        if "--accept" in sys.argv:
            limits["cpu_seconds"][" ".join(targets)] = round(seconds * 1.15)
    else:
        found = objects_by_header(arguments[0])
        for header, count in found.items():
            limit = limits["objects"].get(header, 0)
            print(f"  {count:3d} objects  {header}" + ("" if count <= limit else f"  more than {limit}"))
            failed = failed or count > limit
        if "--accept" in sys.argv:
            limits["objects"] = found
    if "--accept" in sys.argv:
        LIMITS.write_text(json.dumps(limits, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
