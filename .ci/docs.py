#!/usr/bin/env python3
"""Puts what the program prints into the documents: every part of README.md and docs/*.md between

    <!-- begin: COMMAND -->  and  <!-- end -->

becomes the output of `pipewright COMMAND` (run in the repository's root), as a code block, or as it stands where the
command writes Markdown. `begin 12:` keeps the first 12 lines.

    .ci/docs.py [PROGRAM]           writes (PROGRAM: ./pipewright)
    .ci/docs.py --check [PROGRAM]   exit 1 and a difference where a document shows something else
"""
import difflib
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- begin(?: (\d+))?: (.+?) -->\n)(.*?)(<!-- end -->)", re.S)


def printed(program, command):
    run = subprocess.run([program, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        sys.exit(f"{command}: exit status {run.returncode}\n{run.stderr}")
    return run.stdout


def renewed(text, program, cache):
    def part(found):
        begin, lines, command, _, end = found.groups()
        if command not in cache:
            cache[command] = printed(program, command)
        output = cache[command]
        if "--markdown" in command:
            return f"{begin}\n{output.strip()}\n\n{end}"
        if lines:
            output = "\n".join(output.split("\n")[: int(lines)]).rstrip() + "\n...\n"
        return f"{begin}\n`./pipewright {command}` prints:\n\n```\n{output}```\n\n{end}"

    return PART.sub(part, text)


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    programs = [a for a in arguments if a != "--check"]
    program = str(pathlib.Path(programs[0] if programs else ROOT / "pipewright").resolve())
    cache, stale = {}, False
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text()
        new = renewed(old, program, cache)
        if new == old:
            continue
        if check:
            stale = True
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "printed now", n=0))
        else:
            path.write_text(new)
    if stale:
        print("documents show what the program no longer prints: .ci/docs.py writes them anew")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
