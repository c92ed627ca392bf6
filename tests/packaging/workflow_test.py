#!/usr/bin/env python3
"""The example workflow's own steps in a repository of recipes: a change that costs too much is told and red, one that
does not is told and green, a file that is no recipe fails before anything is said.

    workflow_test.py PROGRAM
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/cli/data"
work = pathlib.Path(tempfile.mkdtemp())


def steps():
    """name -> shell text, as the workflow's YAML has them (read by hand: Python knows no YAML)."""
    out, name, text, indent = {}, None, None, 0
    for row in (ROOT / "docs/examples/recipe-check.yml").read_text().splitlines():
        if text is not None and (not row.strip() or len(row) - len(row.lstrip()) > indent):
            text.append(row[indent + 2:])
            continue
        text = None
        if found := re.match(r"\s*- name: (.+)", row):
            name = found[1]
        elif found := re.match(r"(\s*)run: \|$", row):
            indent, text = len(found[1]), []
            out[name] = text
        elif found := re.match(r"\s*run: (.+)", row):
            out[name] = [found[1]]
    return {name: "\n".join(lines) for name, lines in out.items()}


def shell(command, **environment):
    return subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=work / "repository", capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{work}/bin:{os.environ['PATH']}", "PIPEWRIGHT_PROFILES": str(DATA / "profiles"),
                               "HOME": str(work), **environment})


def git(*words):
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=work / "repository", check=True,
                   capture_output=True)


def recipe(name, change=lambda text: text):
    (work / "repository/recipes" / f"{name}.yaml").write_text(change((DATA / "small.yaml").read_text()))


def pull_request(change):
    """The workflow over the change; (status of predict, status of budget, comment)."""
    git("checkout", "-q", "-B", "change", "base")
    change()
    git("add", "-A")
    git("commit", "-q", "-m", "change")
    for file in ("output", "summary", "said"):
        (work / file).write_text("")
    environment = {"BASE": "base", "GITHUB_OUTPUT": str(work / "output"), "GITHUB_STEP_SUMMARY": str(work / "summary"),
                   "PULL_REQUEST": "7"}
    predict = shell(parts["predict"], **environment)
    subprocess.run(["git", "worktree", "remove", "--force", str(work / "before")], cwd=work / "repository", check=True)
    if predict.returncode != 0:
        return predict.returncode, None, predict.stderr
    assert shell(parts["comment"], **environment).returncode == 0
    git("clean", "-fdq")
    status = re.search(r"status=(\d+)", (work / "output").read_text())[1]
    return 0, shell(parts["budget"], STATUS=status).returncode, (work / "said").read_text()


parts = steps()
assert set(parts) == {"install", "predict", "comment", "budget"}, parts
(work / "bin").mkdir()
(work / "bin/pipewright").symlink_to(PROGRAM)
(work / "bin/gh").write_text(f"#!/bin/bash\nwhile [ $# -gt 0 ]; do [ \"$1\" != --body-file ] || cat \"$2\" >{work}/said; shift; done\n")
(work / "bin/gh").chmod(0o755)
(work / "repository/recipes").mkdir(parents=True)
git("init", "-q", "-b", "base")
recipe("one")
recipe("two")
git("add", "-A")
git("commit", "-q", "-m", "base")

slower = pull_request(lambda: recipe("one", lambda t: t.replace("bf16: true", "bf16: true, recompute_granularity: selective, recompute_modules: [mlp]")))
assert slower[:2] == (0, 1), slower
assert re.search(r"\| one \|.*\| slower: \+[\d.]+ % time a token \(budget 1 %\)", slower[2]), slower[2]
assert "1 recipe did not change" in slower[2] and "| `recompute_modules` |" in slower[2], slower[2]

same = pull_request(lambda: recipe("two", lambda t: t + "# a comment\n"))
assert same[:2] == (0, 0) and re.search(r"\| two \|.*\| same \|", same[2]) and "Within the budget" in same[2], same

illegal = pull_request(lambda: recipe("one", lambda t: t.replace("bf16: true", "bf16: true, recompute_granularity: selective, recompute_modules: [moe_act]")))
assert illegal[:2] == (0, 1) and "illegal: breaks recompute.moe-act-needs-grouped-gemm" in illegal[2], illegal

new = pull_request(lambda: recipe("three"))
assert new[:2] == (0, 0) and re.search(r"\| three \|.*\| added \|", new[2]), new

gone = pull_request(lambda: (work / "repository/recipes/two.yaml").unlink())
assert gone[:2] == (0, 0) and re.search(r"\| two \|.*\| removed \|", gone[2]), gone

memory = pull_request(lambda: recipe("one", lambda t: t.replace("micro_batch_size: 1", "micro_batch_size: 4")))
assert memory[1] == 1 and re.search(r"rank 0 holds [\d.]+ GiB more \(budget 1.00 GiB\)", memory[2]), memory

broken = pull_request(lambda: recipe("one", lambda t: t.replace("hidden_size: 4096", "hidden_sice: 4096")))
assert broken[:2] == (0, 1) and "unknown: cannot be predicted" in broken[2] and "hidden_sice" in broken[2], broken
print("7 passed, 0 failed")
