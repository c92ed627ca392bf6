#!/usr/bin/env python3
"""documented_test.py PROGRAM ROOT: every command that README.md, docs/*.md and the --help examples print is run, in a
folder that has what the placeholders name. Generated parts (between "<!-- begin" and "<!-- end -->") are .ci/docs.py's.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM, ROOT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()

# What a reader puts in the place of a name that stands for something of his own.
PLACEHOLDERS = [
    (r"\./pipewright\b", "pipewright"),
    (r"\bRUN\.yaml \.\.\.", "measured/one.yaml"),
    (r"--gpu NAME --out profiles/NAME\.json", "--gpu b200-sxm --out derived.json"),
    (r"\bDIR\b", "measured"),
    (r"\bdiff A B\b", "diff S.yaml before.yaml"),
    (r"\bK/8\b|\{\}/16|\$SLURM_ARRAY_TASK_ID/64", "1/1"),
    (r"\bpart(K|\{\}|\$SLURM_ARRAY_TASK_ID)\.json", "part1.json"),
    (r"^(seq 8 \| xargs -P 8 -I K|parallel -S host1,host2 --wd \.) ", ""),
    (r"^(srun --ntasks-per-node 8|mpirun -np 16 --map-by slot) ", ""),
    (r" ::: \$\(seq 16\)$", ""),
    (r"^source <\((.*)\)$", r"\1"),
    (r"~/\.config/fish/completions/", ""),
    (r"--out S\.yaml", "--out written.yaml"),
    (r" \| man -l -$", ""),
    (r"\bstep\.r0\.json\.gz step\.r1\.json\.gz", "step.r1.json.gz step.r3.json.gz"),  # of four ranks two are there
    (r"\btrace\.r0\.", "trace.r1."),
    (r"-- (torchrun|srun|\./my_program)\b.*", "-- echo {flags}"),
    (r"^pipewright (import|capture|profile (?:calibrate|merge)) (?!.*--force)", r"pipewright \1 --force "),
    (r"/shared/", ""),
    # All is open: half a minute, which plan/shipped and tests/bench look at.
    (r"^(pipewright plan (?!.*--time-limit).*--hf .*)", r"\1 --time-limit 3"),
]
# Wants what a test has not: a GPU, tables of others. What it names must be known all the same.
ELSEWHERE = re.compile(r"pipewright capture\b|--aiconfigurator")
ABSENT = re.compile(r"GPU|CUDA|libpipewright|no such file|no process of the command ran a kernel")


def commands():
    """(where it stands, command) of all documents and helps, once each."""
    found = {}

    def add(where, text):
        text = re.sub(r"\s+#\s.*$", "", text.strip())
        text = " ".join(text.split())
        if len(text.split()) > 2 or text.endswith(("--help", "--version")):  # a command's name alone is only mentioned
            found.setdefault(text, where)

    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"<!-- begin.*?<!-- end -->", "", path.read_text(), flags=re.S)
        for block in re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, flags=re.S):
            for line in block.replace("\\\n", " ").split("\n"):
                if re.search(r"(^|[ /|('])pipewright ", line):
                    add(path.name, line)
        outside = re.sub(r"```.*?```", "", text, flags=re.S)
        for line in re.findall(r"`((?:\./)?pipewright [^`]+)`", outside):
            add(path.name, " ".join(line.split()))
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout.split("Subcommands:")[1]
    for name in re.findall(r"^  ([a-z-]+)", listed, flags=re.M):
        text = subprocess.run([PROGRAM, name, "--help"], capture_output=True, text=True).stdout
        for part in re.split(r"\nExamples?:\n", text)[1:]:
            example = ""
            for line in part.split("\n"):
                goes_on = example.endswith("\\") or example.count('"') % 2 or line.strip().startswith("--")
                if line.startswith("    ") and goes_on:
                    example = example.rstrip("\\") + " " + line.strip()
                    continue
                if "pipewright " in example:
                    add("--help of " + name, example)
                example = "" if line.startswith("    ") else line  # what is indented further says what it does
            if "pipewright " in example:
                add("--help of " + name, example)
    return [(where, command) for command, where in found.items()]


def fill(folder):
    """What the commands' placeholders name."""
    tests = ROOT / "tests"
    scenario = tests / "measured/a_pp4v2_m8.yaml"
    for name in ("scenarios", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tests/scenario").mkdir(parents=True)
    (folder / "tests/scenario/data").symlink_to(tests / "scenario/data")
    for name in ("S.yaml", "before.yaml", "before/one.yaml", "after/one.yaml", "measured/one.yaml", "recipes/one.yaml",
                 "trial/one.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(scenario, folder / name)
    shutil.copy(tests / "scenario/data/llama-3-70b.json", folder / "config.json")
    for rank in (1, 3):
        for name in ("step", "trace"):
            shutil.copy(tests / f"import/data/dense.r{rank}.json.gz", folder / f"{name}.r{rank}.json.gz")
    for path in sorted((tests / "import/data/nccl-tests").iterdir()):
        shutil.copy(path, folder / path.name)
    for name in ("mine", "my-gpu", "profiles/mine", "profiles/ours"):  # what capture would have written
        shutil.copy(ROOT / "profiles/h200-sxm.json", folder / f"{name}.json")
    shutil.copy(ROOT / "tests/memory/data/a_mem_pp4v2_m8.r0.mem.json.gz", folder / "run.r0.mem.json.gz")
    (folder / "train.sh").write_text("""torchrun --nproc_per_node 8 --nnodes ${NNODES:-1} pretrain_gpt.py \\
  --tensor-model-parallel-size ${TP:-2} --num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 \\
  --use-distributed-optimizer --tokenizer-type NullTokenizer
""")
    (folder / "model_config.yaml").write_text("""ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --bf16: true
  --vocab-size: 32000
  --tokenizer-type: NullTokenizer
""")
    for name in ("before", "after"):
        subprocess.run([PROGRAM, "simulate", "S.yaml", "--json", name + ".json"], cwd=folder, check=True, capture_output=True)
    for name in ("links", "links-shm"):
        subprocess.run([PROGRAM, "import", "all_gather.txt", "--out", name + ".json"], cwd=folder, check=True, capture_output=True)


def main():
    failed, ran = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fill(folder)
        bin_folder = folder / ".bin"
        bin_folder.mkdir()
        (bin_folder / "pipewright").symlink_to(PROGRAM)
        environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}",
                       "PIPEWRIGHT_PROFILES": str(folder / "profiles")}
        for where, printed in commands():
            command = printed
            for pattern, text in PLACEHOLDERS:
                command = re.sub(pattern, text, command)
            run = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True,
                                 stdin=subprocess.DEVNULL)
            ran += 1
            good = run.returncode in (0, 1) and "rror" not in run.stderr
            if ELSEWHERE.search(printed):
                good |= run.returncode == 2 and ABSENT.search(run.stderr) is not None
            if not good:
                failed += 1
                print(f"{where}: {printed}\n  run as: {command}\n  exit status {run.returncode}: {run.stderr.strip()}")
    print(f"{ran} commands, {failed} failed")
    return 1 if failed or ran < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
