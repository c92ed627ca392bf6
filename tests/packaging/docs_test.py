#!/usr/bin/env python3
"""Every command of README.md and docs/*.md is run: those in shell blocks and those in `code` that begin with pipewright.
What prints a part of a document is run by .ci/docs.py instead. Needs a GPU: only its options are tried.

    docs_test.py PROGRAM [BUILD]
"""
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
work = pathlib.Path(tempfile.mkdtemp())
failures, ran = [], 0

# What stands for something of the reader's, and what it is here.
WORDS = {"NAME": "gb200-nvl72", "DIR": "runs", "RUN.yaml ...": "runs/run.yaml", "...": ""}
# Other programs' lines, and ours that build the project anew: tests/packaging and .ci/run run them.
OTHERS = ("tests/run", ".ci/", "git ", "pip ", "meson ", "ninja ", "packaging/", "g++ ", "parallel ", "source ", "#SBATCH",
          "torchrun", "srun ", "mpirun ", "apt", "docker ", "sudo ")


def commands():
    """(document, command line) of every command."""
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"<!-- begin.*?<!-- end -->", "", document.read_text(), flags=re.S)
        for fence in re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S):
            for line in re.sub(r"\\\n\s*", " ", fence).splitlines():
                line = re.sub(r"\s+#\s.*", "", line).strip()
                if line and not line.startswith("#"):
                    yield document.name, line
        for line in re.findall(r"`((?:\./)?pipewright [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)):
            yield document.name, " ".join(line.split())


def prepare():
    for name in ("scenarios", "tests", "docs", "examples"):
        (work / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "profiles", work / "profiles")
    (work / "bin").mkdir()
    (work / "bin/pipewright").symlink_to(PROGRAM)
    (work / "bin/man").write_text("#!/bin/sh\ncat >/dev/null\n")
    (work / "bin/torchrun").write_text("#!/bin/sh\nexit 1\n")
    for tool in ("man", "torchrun"):
        (work / "bin" / tool).chmod(0o755)
    (work / "pipewright").symlink_to(PROGRAM)
    scenario = (ROOT / "tests/measured/a_pp4v2_m8.yaml").read_text()
    (work / "S.yaml").write_text(scenario)
    (work / "before.yaml").write_text(scenario.replace("micro_batch_size: 1", "micro_batch_size: 2"))
    for folder in ("before", "after", "recipes", "runs", "trial"):
        (work / folder).mkdir()
    shutil.copy(work / "before.yaml", work / "before/one.yaml")
    shutil.copy(work / "S.yaml", work / "after/one.yaml")
    shutil.copy(work / "S.yaml", work / "recipes/one.yaml")
    measured = ROOT / "tests/measured/a_pp4v2_m8.yaml"
    for place in ("runs/run.yaml", "trial/best.yaml"):
        shutil.copy(measured, work / place)
    shutil.copy(ROOT / "tests/import/data/dense.r1.json.gz", work / "trace.r1.json.gz")
    (work / "config.json").write_text((ROOT / "tests/scenario/data/llama-3-70b.json").read_text())
    with gzip.open(work / "run.r0.mem.json.gz", "wt") as packed:
        packed.write((ROOT / "tests/cli/data/attack/10_replay_expandable.mem.json").read_text())
    flags = ("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu"
             " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096"
             " --vocab-size 128256 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size ${TP:-2} --bf16"
             " --use-distributed-optimizer --position-embedding-type rope --normalization RMSNorm --disable-bias-linear"
             " --sequence-parallel --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer\n")
    (work / "train.sh").write_text("#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n" + flags)
    arguments = re.findall(r"--([a-z0-9-]+)(?: ((?!--)\S+))?", flags.split("pretrain_gpt.py")[1].replace("${TP:-2}", "2"))
    (work / "model_config.yaml").write_text(
        "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n" +
        "".join(f"  --{name}: {value or 'true'}\n" for name, value in arguments))


def fixtures(line):
    """What earlier commands would have left: profiles, and predictions before and after."""
    for name in ("mine.json", "profiles/mine.json"):
        shutil.copy(ROOT / "profiles/h200-sxm.json", work / name)
    shutil.copy(ROOT / "profiles/h200-sxm.json", work / "profiles/ours.json")
    for rank in (1, 3):
        shutil.copy(ROOT / f"tests/import/data/dense.r{rank}.json.gz", work / f"step.r{rank}.json.gz")
    for table in (ROOT / "tests/import/data/nccl-tests").iterdir():
        shutil.copy(table, work / table.name)
    if not (work / "links.json").exists():  # a network alone: beside a profile of any GPU
        assert run("pipewright import all_gather.txt --out links.json").returncode == 0
    if "before.json" in line:
        for name in ("before", "after"):
            assert run(f"pipewright simulate S.yaml --json {name}.json").returncode in (0, 1)
    out = re.search(r"--out (\S+)", line)
    if out and out[1] != "-":  # a reader has not written it yet
        (work / out[1]).unlink(missing_ok=True)


def run(line):
    return subprocess.run(["bash", "-c", line], cwd=work, capture_output=True, text=True, check=False, timeout=600,
                          env={"PATH": f"{work}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(work),
                               "PIPEWRIGHT_PROFILES": str(work / "profiles"), "SLURM_ARRAY_TASK_ID": "3"})


def expected(line, result):
    """0 and 1 are answers. Measuring needs a GPU, and a table of others' its files: that they are missing is said."""
    if result.returncode in (0, 1) and "rror" not in result.stderr:
        return True
    if " capture " in line:
        return any(said in result.stderr for said in ("libpipewright_capture.so", "CUDA", "GPU", "ran a kernel"))
    return "--aiconfigurator" in line and "tables" in result.stderr


prepare()
found = list(dict.fromkeys(commands()))
documents = {document for document, _ in found}
assert len(found) > 40 and {"README.md", "trial.md", "ci.md", "scale.md"} <= documents, (len(found), documents)
made = {}
for document, line in found:
    if line.startswith(OTHERS):
        continue
    for word, here in WORDS.items():
        line = re.sub(r"(?<!\w)" + re.escape(word) + r"(?![\w=])", here, line)
    words = line.removeprefix("./").split()
    if words[0] == "pipewright" and (len(words) == 2 or line.endswith(" A B")):
        line = f"pipewright {words[1]} --help"
    if words[:2] == ["pipewright", "plan"] and "--hf" in words and "--time-limit" not in words:
        line += " --time-limit 3"  # all is open: half a minute, which plan/shipped and tests/bench look at
    if line in made:
        continue
    made[line] = True
    fixtures(line)
    if "merge part" in line and not list(work.glob("part*.json")):
        failures.append(f"{document}: {line}: no parts were made before")
    result = run(line)
    ran += 1
    if not expected(line, result):
        failures.append(f"{document}: {line}\n  status {result.returncode}: {result.stderr.strip()[-500:]}")
shutil.rmtree(work)
for failure in failures:
    print(failure)
print(f"{ran - len(failures)} passed, {len(failures)} failed")
sys.exit(1 if failures else 0)
