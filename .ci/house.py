#!/usr/bin/env python3
"""The house: rooms, what they hold and what they may know (src/meson.build), as docs/house.md shows them.

  .ci/house.py           writes the picture and the table between the markers of docs/house.md
  .ci/house.py --check   exit 1 if an include goes through a wall, two files have one name, a merge left a mark, a
                         property's result is not read, or docs/house.md is not what this program would write
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/house.md"
BEGIN, END = "<!-- rooms: begin (.ci/house.py writes this) -->", "<!-- rooms: end -->"

# What a room holds, in a line; the list of rooms itself is src/meson.build's.
HOLDS = {
    "base": "units, errors with a position, tables, files, regular expressions, other programs",
    "scenario": "the scenario type, its reader, writer and checks; Hugging Face configurations; values in force",
    "profile": "measured kernels, links, clocks, host costs, the device; interpolation",
    "schedule": "Megatron's program of every rank",
    "model": "layers as kernels and tensors in host order",
    "offload": "which tensors move when: the offload managers of Megatron and Transformer Engine, replayed",
    "timeline": "the discrete-event engine, accounts of every rank, critical path; the chunk-level engine",
    "memory": "the walk over tensors, the allocator",
    "predict": "one scenario through the rooms above",
    "validate": "measured runs beside predictions, calibration of a machine's speed",
    "plan": "legality rules, search, explanations",
    "emit": "flags and overrides of a version, and the way back",
    "report": "text, JSON, HTML, traces",
    "capture": "kernels and machines under measurement",
    "import": "traces of real runs as profiles",
    "trial": "candidates of a plan run for real by the user's launcher",
    "cli": "one file a command",
}


def rooms():
    """Room -> rooms that it may know, in the order of src/meson.build."""
    text = (ROOT / "src/meson.build").read_text(encoding="utf-8")
    return ast.literal_eval(re.search(r"^rooms = (\{.*?^\})", text, re.M | re.S)[1])


def includes():
    """(room, room that it includes, file, line) of every include of a public header."""
    for folder in ("src", "include"):
        for path in sorted((ROOT / folder).glob("*/**/*.[ch]pp")):
            room = path.relative_to(ROOT / folder).parts[0]
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if found := re.match(r'#include "pipewright/([\w/]+)\.hpp"', line):
                    header = next((ROOT / "include").glob(f"*/pipewright/{found[1]}.hpp"), None)
                    if header is not None:
                        yield room, header.relative_to(ROOT / "include").parts[0], path.relative_to(ROOT), number


def equal_names():
    """File names that stand twice, a name apart from its folder being what an editor, a debugger and a search show."""
    seen = {}
    for folder in ("src", "include", "kernels"):
        for path in sorted((ROOT / folder).glob("**/*.[ch]*")):
            if path.suffix in (".cpp", ".hpp", ".cu", ".cuh"):
                seen.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    return [f"{' and '.join(paths)} have one name: say in it what differs" for paths in seen.values() if len(paths) > 1]


def merge_marks():
    """Lines that a merge left behind."""
    texts = [p for folder in ("src", "include", "kernels", "tests", "docs", ".ci") for p in (ROOT / folder).glob("**/*")]
    for path in sorted([*texts, *ROOT.glob("*.md")]):
        if path.suffix in (".md", ".cpp", ".hpp", ".cu", ".py", ".js", ".build", ".yaml", ".txt"):
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if re.match(r"(<{7}|\|{7}|>{7})( |$)", line):
                    yield f"{path.relative_to(ROOT)}:{number}: left behind by a merge"


def unread_properties():
    """Calls of rc::check whose result nothing reads: it prints what failed, but fails no test."""
    for path in sorted((ROOT / "tests").glob("**/*.[ch]pp")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.match(r"\s*rc::check\(", line):
                yield f"{path.relative_to(ROOT)}:{number}: CHECK(rc::check(...)): nothing fails otherwise"


def direct(list_of_rooms):
    """What a room knows beyond what those already know that it names: the arrows of the picture."""
    return {room: [k for k in knows if not any(k in list_of_rooms[other] for other in knows)]
            for room, knows in list_of_rooms.items()}


def page_part(list_of_rooms):
    lines = ["| room | holds | stands on |", "|---|---|---|"]
    arrows = direct(list_of_rooms)
    for room in list_of_rooms:
        lines.append(f"| `{room}` | {HOLDS[room]} | {', '.join(arrows[room]) or 'nothing'} |")
    lines += ["", "```mermaid", "flowchart LR"]
    lines += [f"  {known} --> {room}" for room in list_of_rooms for known in arrows[room]]
    lines.append("```")
    return "\n".join(lines)


def main():
    house = rooms()
    problems = [f"{room} is in src/meson.build but not in HOLDS" for room in house if room not in HOLDS]
    problems += [*equal_names(), *merge_marks(), *unread_properties()]
    used = {room: set() for room in house}
    for room, known, path, number in includes():
        if room == known:
            continue
        used.setdefault(room, set()).add(known)
        if known not in house.get(room, []):
            problems.append(f"{path}:{number}: {room} may not know {known} (src/meson.build, rooms)")
    before = PAGE.read_text(encoding="utf-8")
    head, rest = before.split(BEGIN)
    after = head + BEGIN + "\n" + page_part(house) + "\n" + END + rest.split(END)[1]
    if "--check" in sys.argv:
        if after != before:
            problems.append("docs/house.md differs from src/meson.build: run .ci/house.py")
    else:
        PAGE.write_text(after, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
