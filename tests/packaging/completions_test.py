#!/usr/bin/env python3
"""Completions in the shells themselves, where they are installed: what Tab offers is what `list commands` says.

    completions_test.py PROGRAM
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

program = sys.argv[1]
listed = json.loads(subprocess.run([program, "list", "commands", "--json", "-"], capture_output=True, check=True).stdout)
commands = {c["name"]: c for c in listed["commands"]}
for name in commands:  # CLI11 2.4 (Ubuntu 24.04) ends every command where a name has a space
    usage = subprocess.run([program, *name.split(), "--help"], capture_output=True, text=True, check=True).stdout
    for line in usage.partition("Positionals:\n")[2].partition("\n\n")[0].splitlines():
        assert " TEXT" not in line or line.split(" TEXT")[0].split() == [line.split()[0]], f"{name}: {line}"
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "pipewright").symlink_to(program)
(folder / "run.yaml").touch()
environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"}
passed = 0


def script(shell):
    return subprocess.run([program, "completion", shell], capture_output=True, text=True, check=True).stdout


def in_bash(*words):
    quoted = " ".join("'" + w + "'" for w in words)
    code = f"source completion.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _pipewright; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    out = subprocess.run(["bash", "--norc", "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert out.returncode == 0 and not out.stderr, out.stderr
    return out.stdout.split()


def in_fish(*words):
    line = " ".join(words)
    out = subprocess.run(["fish", "--no-config", "-c", f"source completion.fish; complete -C '{line}'"], cwd=folder,
                         env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return [row.split("\t")[0] for row in out.stdout.splitlines()]


def in_zsh(wanted, *words):
    """zsh completes in a terminal only: a pseudo-terminal of its own, as its tests do it, given time until it has
    answered."""
    for patience in (1, 4, 16):
        offered = asked_zsh(patience, *words)
        if wanted <= set(offered):
            return
    raise AssertionError((words, wanted - set(offered), offered))


def asked_zsh(patience, *words):
    code = f"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PROMPT=; fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; stty columns 4000; zstyle ":completion:*" list-prompt ""; LISTMAX=10000; setopt nolistbeep; echo READY'
zpty -r z line '*READY*READY*'
zpty -n -w z '{" ".join(words)}'$'\\C-d'
sleep {patience}
zpty -n -w z $'\\C-u'$'echo DONE\\n'
zpty -r z out '*DONE*'
print -r -- $out
"""
    out = subprocess.run(["zsh", "-f", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    return out.stdout.split()


def options(name):
    return {o["name"] for o in commands[name]["options"] if o["name"].startswith("--")}


def check(complete):
    """The same questions to every shell."""
    global passed
    top = {name.split()[0] for name in commands}
    assert top <= set(complete("pipewright", "")), top - set(complete("pipewright", ""))
    for name in commands:
        offered = set(complete("pipewright", *name.split(), "--"))
        assert options(name) <= offered, (name, options(name) - offered)
    assert "run.yaml" in complete("pipewright", "plan", "r")
    assert {"auto", "always", "never"} <= set(complete("pipewright", "plan", "--color", ""))
    assert any(w.startswith("tensor_model_parallel_size") for w in complete("pipewright", "plan", "--set", "tensor_m"))
    assert "h200-sxm" in complete("pipewright", "plan", "--profile", "h200")
    passed += 1


for shell, name, complete in (("bash", "completion.bash", in_bash), ("fish", "completion.fish", in_fish),
                              ("zsh", "_pipewright", in_zsh)):
    (folder / name).write_text(script(shell))
    if shutil.which(shell) is None:
        print(f"{shell} is not installed: its completion is not tried")
        continue
    if shell == "zsh":  # in a terminal: two questions, not thirty
        in_zsh({"plan", "simulate", "merge"}, "pipewright", "")
        in_zsh(options("plan"), "pipewright", "plan", "--")
        passed += 1
    else:
        check(complete)

# Every option with a value says what it is: none is left to its type where it names a file.
for command in commands.values():
    for option in command["options"]:
        if "write " in option["help"] and not option["flag"]:
            assert option["value"] == "FILE", (command["name"], option)
passed += 1
shutil.rmtree(folder)
print(f"{passed} passed, 0 failed")
