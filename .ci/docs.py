#!/usr/bin/env python3
"""Puts what the program prints into the documents: every part of README.md and docs/*.md between

    <!-- begin: COMMAND -->  and  <!-- end -->

becomes the output of `pipewright COMMAND` (run in the repository's root), as a code block, or as it stands where the
command writes Markdown. `begin 12:` keeps the first 12 lines, `begin 12 from "Why":` 12 from the line that begins so.
docs/images/accuracy.svg is drawn from the tables of runs in them.

    .ci/docs.py [PROGRAM] [DOCUMENT...]           writes (PROGRAM: ./pipewright; all documents)
    .ci/docs.py --check [PROGRAM] [DOCUMENT...]   exit 1 and a difference where a document shows something else;
                                                  what a test compares is left to it (COMPARED)
"""
import difflib
import math
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(r'(<!-- begin(?: (\d+))?(?: from "([^"]+)")?: (.+?) -->\n)(.*?)(<!-- end -->)', re.S)


# Dear, and made by a test anyway, which compares it.
COMPARED = {"validate tests/published --markdown -": "tests/published/published_test.cpp"}


def printed(program, command):
    run = subprocess.run([program, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        sys.exit(f"{command}: exit status {run.returncode}\n{run.stderr}")
    return run.stdout


def renewed(text, program, cache, check):
    def part(found):
        begin, lines, start, command, _, end = found.groups()
        if check and command in COMPARED:
            return found[0]
        if command not in cache:
            cache[command] = printed(program, command)
        output = cache[command]
        if "--markdown" in command:
            return f"{begin}\n{output.strip()}\n\n{end}"
        if lines:
            rows = output.split("\n")
            first = next((i for i, row in enumerate(rows) if row.startswith(start)), None) if start else 0
            if first is None:
                sys.exit(f'{command}: no line begins with "{start}"')
            kept = "\n".join(rows[first : first + int(lines)]).rstrip()
            output = ("...\n" if first else "") + kept + ("\n...\n" if first + int(lines) < len(rows) - 1 else "\n")
        return f"{begin}\n`./pipewright {command}` prints:\n\n```\n{output}```\n\n{end}"

    return PART.sub(part, text)


# Predicted over measured, of the tables that the documents hold: group -> colour (apart for every kind of sight), shape.
GROUPS = {("own", "dense"): "#0072b2", ("own", "mixture"): "#e69f00", ("published", "dense"): "#56b4e9",
          ("published", "mixture"): "#d55e00", ("real", "dense"): "#009e73", ("real", "mixture"): "#cc79a7"}
NAMES = {"own": "own runs", "published": "other people's runs", "real": "pretrain_gpt.py with emitted flags"}


def measured_points():
    """(group, measured ms, predicted ms) of every run in a table that `validate --markdown` printed."""
    points = []
    for _, _, _, command, output, _ in PART.findall("".join(p.read_text() for p in sorted(ROOT.glob("docs/*.md")))):
        if not command.startswith("validate tests/"):
            continue
        where = {"measured": "own", "published": "published", "real": "real"}[command.split("/")[1].split()[0]]
        kind = "dense"
        for row in output.split("\n"):
            if row.startswith("**"):
                kind = "mixture" if "ixture" in row else "dense"
            cells = [cell.strip() for cell in row.split("|")]
            if row.startswith("| `") and re.fullmatch(r"[\d.]+", cells[3]) and re.fullmatch(r"[\d.]+", cells[4]):
                points.append(((where, kind), float(cells[3]), float(cells[4])))
    return points


def picture(points):
    """Error over the measured time (logarithmic), as SVG."""
    width, height, left, right, top, bottom = 760, 330, 52, 24, 34, 64
    low, high, most = 2.0, 5.0, 60.0  # 0.1 s to 100 s; percent

    def x(ms):
        return left + (math.log10(ms) - low) / (high - low) * (width - left - right)

    def y(percent):
        return top + (most - max(-most, min(most, percent))) / (2 * most) * (height - top - bottom)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="13">Predicted against measured time of a step, {len(points)} runs '
           '(percent too slow or too fast)</text>',
           f'<rect x="{left}" y="{y(10):.1f}" width="{width - left - right}" height="{y(-10) - y(10):.1f}" fill="#eeeeee"/>']
    for percent in range(-60, 61, 20):
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y(percent):.1f}" y2="{y(percent):.1f}" '
                   f'stroke="{"#444444" if percent == 0 else "#cccccc"}"/>'
                   f'<text x="{left - 6}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent:+d} %</text>')
    for ms, text in ((100, "0.1 s"), (1000, "1 s"), (10000, "10 s"), (100000, "100 s")):
        out.append(f'<line x1="{x(ms):.1f}" x2="{x(ms):.1f}" y1="{top}" y2="{height - bottom}" stroke="#cccccc"/>'
                   f'<text x="{x(ms):.1f}" y="{height - bottom + 16}" text-anchor="middle">{text}</text>')
    for group, measured, predicted in points:
        out.append(f'<circle cx="{x(measured):.1f}" cy="{y(100 * (predicted / measured - 1)):.1f}" r="4" '
                   f'fill="{GROUPS[group]}" fill-opacity="0.75"/>')
    for row, (group, colour) in enumerate(GROUPS.items()):
        number = sum(one == group for one, _, _ in points)
        if not number:
            continue
        text = f"{NAMES[group[0]]}, {'mixtures of experts' if group[1] == 'mixture' else 'dense'} ({number})"
        at = left + (row // 2) * 235
        out.append(f'<circle cx="{at}" cy="{height - 28 + 18 * (row % 2)}" r="4" fill="{colour}"/>'
                   f'<text x="{at + 9}" y="{height - 24 + 18 * (row % 2)}" font-size="11">{text}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    documents = [pathlib.Path(a).resolve() for a in arguments if a.endswith(".md")]
    programs = [a for a in arguments if a != "--check" and not a.endswith(".md")]
    program = str(pathlib.Path(programs[0] if programs else ROOT / "pipewright").resolve())
    cache, stale = {}, False
    image = ROOT / "docs/images/accuracy.svg"
    for path in [*(documents or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]), image]:
        old = path.read_text() if path.exists() else ""
        new = picture(measured_points()) if path == image else renewed(old, program, cache, check)
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
