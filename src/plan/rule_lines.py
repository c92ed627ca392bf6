#!/usr/bin/env python3
"""Writes rule_lines.inc: where each rule is written in every version of versions.def.

usage: src/plan/rule_lines.py MEGATRON_LM_CLONE MEGATRON_BRIDGE_CLONE

The line cited is the first of the rule's file that contains one of its texts (rule_sources.txt; "A >> B": the first
with B from the first with A on). What a version lacks gets line 0. For each version the rules without a line are printed: either the version lacks them, which their ranges
in rules_*.cpp must say, or its wording is another, which rule_sources.txt must have.
"""
import pathlib
import re
import subprocess
import sys

here = pathlib.Path(__file__).parent
definition = next((here.parents[1] / "include").rglob("versions.def"))


def versions():
    """(enumerator, commit) in order."""
    row = r'^PIPEWRIGHT_MEGATRON\((\w+), "[^"]*", \w+, "[^"]*", "([^"]*)"\)'
    return re.findall(row, definition.read_text(), re.M)


def sources():
    """(rule, file, texts) in order."""
    rules = []
    for line in (here / "rule_sources.txt").read_text().splitlines():
        if line.startswith("  "):
            rules[-1][2].append(line[2:])
        elif line and not line.startswith("#"):
            rules.append((*line.split(" "), []))
    return rules


class Clone:
    def __init__(self, path):
        self.path, self.files = path, {}

    def line(self, commit, file, texts):
        if (commit, file) not in self.files:
            show = ["git", "-C", self.path, "show", f"{commit}:{file}"]
            shown = subprocess.run(show, capture_output=True, text=True)
            self.files[commit, file] = shown.stdout.splitlines()
        for text in texts:
            wanted = text.split(" >> ")
            for number, line in enumerate(self.files[commit, file], 1):
                if wanted[0] in line:
                    wanted.pop(0)
                if not wanted:
                    return number
        return 0


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    megatron, bridge = Clone(sys.argv[1]), Clone(sys.argv[2])
    columns = versions()
    out = [
        "// Written by rule_lines.py from rule_sources.txt and the sources themselves; not edited by hand.",
        "constexpr std::array lines_of = {" + ", ".join("Version::" + name for name, _ in columns) + "};",
        "",
        "struct Citation {",
        "  std::string_view rule, file;",
        "  std::array<std::uint16_t, lines_of.size()> lines;  ///< 0: the version has none",
        "};",
        "constexpr Citation citations[] = {",
    ]
    missing = {name: [] for name, _ in columns}
    for rule, file, texts in sources():
        if file.startswith(("megatron/", "pretrain_")):
            lines = [megatron.line(commit, file, texts) for _, commit in columns]
            for (name, _), line in zip(columns, lines):
                if texts and not line:
                    missing[name].append(rule)
        else:  # Megatron Bridge: its main branch beside every version
            lines = [bridge.line("HEAD", file, texts)] * len(columns)
        out.append(f'    {{"{rule}", "{file}", {{{", ".join(map(str, lines))}}}}},')
    (here / "rule_lines.inc").write_text("\n".join(out + ["};"]) + "\n")
    for name, rules in missing.items():
        print(name + ": " + (", ".join(rules) or "all found"))


main()
