#!/usr/bin/env python3
"""Which of Megatron Bridge's recipes are read, and why others are not: data/recipes.txt and the table of docs/recipes.md.

    recipes.py PIPEWRIGHT [--write]        read data/recipes.tar.xz; without --write compare with what is written
    recipes.py --dump FOLDER --bridge TREE --megatron TREE --configs HF [--only REGEX]

The archive holds what ConfigContainer.to_yaml() wrote of every recipe (recipes/ and perf_recipes/ of Bridge 067f987df)
after runtime_config_update(), on as many GPUs as the recipe's name says: --dump does that on
checkouts of both, with a Python as bridge_config.py needs it, and torchvision. HF holds NAME/config.json of the Hugging
Face models that recipes name, and stand_ins.json, name -> NAME, for models of which another size of the family was at
hand. What needs a GPU is stood in for, as bridge_config.py does.
"""
import argparse
import collections
import contextlib
import importlib
import inspect
import io
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHIVE, VERDICTS = HERE / "data/recipes.tar.xz", HERE / "data/recipes.txt"
TABLE = HERE.parents[1] / "docs/recipes.md"
# The profile nearest to what a recipe's name says; Rubin has none.
PROFILES = {"h100": "h100-sxm", "b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
            "r100": "gb300-nvl72", "vr200": "gb300-nvl72"}
READ = "read"
LENGTHS = "read, once it is told the lengths of the packed sequences"


def verdict(pipewright, file):
    """READ, or why not: the names of what is not modelled, Megatron's own refusal, the reader's error."""
    name = file.stem
    gpus = re.search(r"_(\d+)gpu", name)  # otherwise as many as its data-parallel size says
    chip = re.search(r"_(gb200|gb300|vr200|b200|b300|r100|h100)", name)
    chip = chip.group(1) if chip else "h100"
    node = 4 if chip in ("gb200", "gb300", "vr200") else 8
    machine = ["--gpus", gpus.group(1), "--gpus-per-node", str(min(node, int(gpus.group(1))))] if gpus else []
    command = [pipewright, "check", file, *machine, "--profile", PROFILES[chip], "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "vocabulary is missing" in done.stderr:  # setup() writes the tokenizer's into it
        command += ["--set", "vocab_size=131072"]
        done = subprocess.run(command, capture_output=True, text=True)
    packed = '"unmodelled.sft"' in done.stdout
    if packed:
        done = subprocess.run([*command, "--set", "sequence_lengths=[512*256, 1024*256]"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        key = re.search(r"cfg\.[\w.]+", done.stderr)
        return "error: " + (key.group(0) if key else done.stderr.strip()[:80])
    findings = json.loads(done.stdout)["findings"]
    unmodelled = sorted(f["rule"][11:] for f in findings if f["rule"].startswith("unmodelled."))
    violations = sorted(f["rule"] for f in findings if f["severity"] == "violation")
    if unmodelled:
        return "not modelled: " + ", ".join(unmodelled)
    return "Megatron refuses: " + ", ".join(violations) if violations else LENGTHS if packed else READ


def verdicts(pipewright):
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
        files = sorted(pathlib.Path(folder).glob("*.yaml"))
        return {f.stem.replace("__", "/"): verdict(pipewright, f) for f in files}


def reasons(found):
    """Reason -> recipes that have it, recipes that have it alone."""
    count = collections.defaultdict(lambda: [0, 0])
    for text in found.values():
        if text in (READ, LENGTHS):
            continue
        kind, _, names = text.partition(": ")
        names = names.split(", ") if kind == "not modelled" else [text]
        for name in names:
            count[name][0] += 1
            count[name][1] += len(names) == 1
    return sorted(count.items(), key=lambda item: (-item[1][0], item[0]))


def table(found):
    lines = [f"Of {len(found)} recipes {sum(v == READ for v in found.values())} are read as they are, "
             f"{sum(v == LENGTHS for v in found.values())} once they are told the lengths of the packed sequences.", "",
             "| what is missing | recipes | of these for nothing else |", "|---|---|---|"]
    rows = reasons(found)
    lines += [f"| `{name}` | {all_} | {alone} |" for name, (all_, alone) in rows if all_ > 2]
    rest = [name for name, (all_, _) in rows if all_ <= 2]
    lines += ["", f"{len(rest)} other reasons have one or two recipes each (`tests/emit/data/recipes.txt` has every recipe)."]
    return "\n".join(lines) + "\n"


def rewritten(text, new):
    begin, end = "<!-- recipes -->\n", "<!-- end -->"
    return text[:text.index(begin) + len(begin)] + new + text[text.index(end):]


def count(options):
    found = verdicts(options.pipewright)
    text = "".join(f"{name}\t{why}\n" for name, why in sorted(found.items()))
    page = rewritten(TABLE.read_text(), table(found))
    if options.write:
        VERDICTS.write_text(text)
        TABLE.write_text(page)
    print(table(found))
    known = dict(line.split("\t") for line in VERDICTS.read_text().splitlines())
    wrong = [f"{name}: {why}, was: {known.get(name)}" for name, why in found.items() if why != known.get(name)]
    wrong += [name + " is gone" for name in known if name not in found]
    if TABLE.read_text() != page:
        wrong.append(f"{TABLE}: the table is another")
    print("\n".join(wrong[:20]) + (f"\n{len(wrong)} differences: recipes.py PIPEWRIGHT --write" if wrong else ""))
    return 1 if wrong else 0


class Energon:
    """megatron.energon: data loaders of models with vision, which recipes only name."""

    def find_spec(self, name, path=None, target=None):
        import importlib.machinery
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("megatron.energon") else None

    def create_module(self, spec):
        import types

        class Module(types.ModuleType):
            __path__ = []

            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {"__class_getitem__": classmethod(lambda c, i: c),
                                       "__init__": lambda self, *a, **k: None,
                                       "__call__": lambda self, *a, **k: a[0] if a else self})
        return Module(spec.name)

    def exec_module(self, module):
        pass


def recipes(package, failed):
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda n: None):
        try:
            module = importlib.import_module(info.name)
        except Exception as error:
            failed[info.name] = repr(error)
            continue
        for name, function in sorted(vars(module).items()):
            if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_") \
                    and re.search(r"_\d+gpu_.*_config$|_(pretrain|sft|peft)_config$", name):
                yield name, function


def stand_in_for_gpu(options):
    """Bridge and Megatron of these trees, importable where no GPU is."""
    import logging
    import time
    import types
    import typing
    import warnings

    warnings.simplefilter("ignore")
    sys.path[:0] = [options.bridge + "/src", options.megatron, str(HERE)]
    import parsers
    import bridge_config
    import torch

    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda f: f
    time.sleep = lambda *a: None  # a config.json that is not at hand is tried again and again
    torch.cuda.get_device_capability = lambda *a: (9, 0)
    torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(
        major=9, minor=0, name="NVIDIA H100", total_memory=85 << 30, multi_processor_count=132)
    parsers.stand_in("transformer_engine", "diffusers", "qwen_vl_utils", "open_clip", "modelopt")
    import transformer_engine.pytorch.optimizers

    transformer_engine.pytorch.optimizers.FusedAdam = bridge_config.FusedAdam
    sys.meta_path.insert(0, Energon())
    import megatron

    megatron.__path__ = [options.bridge + "/src/megatron", options.megatron + "/megatron"]
    logging.disable(logging.WARNING)


def dump(options):
    stand_in_for_gpu(options)
    import megatron.bridge.perf_recipes
    import megatron.bridge.recipes
    import transformers
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.config import runtime_config_update

    stand_ins = json.loads((pathlib.Path(options.configs) / "stand_ins.json").read_text())

    def local(path):
        folder = os.path.join(options.configs, stand_ins.get(str(path), str(path)))
        if not os.path.isdir(str(path)) and not os.path.exists(folder + "/config.json"):
            raise RuntimeError(f"no config.json of {path}")
        return str(path) if os.path.isdir(str(path)) else folder

    for owner, name in ((AutoBridge, "from_hf_pretrained"), (transformers.AutoConfig, "from_pretrained")):
        plain = owner.__dict__[name].__func__
        setattr(owner, name, classmethod(lambda cls, path, *a, plain=plain, **k: plain(
            cls, local(path), *a, **{key: value for key, value in k.items() if key != "revision"})))
    clean, failed = dict(os.environ), {}
    for label, package in (("lib", megatron.bridge.recipes), ("perf", megatron.bridge.perf_recipes)):
        for name, function in list(recipes(package, failed)):
            if not re.search(options.only, label + "/" + name):
                continue
            world = re.search(r"_(\d+)gpu", name)
            os.environ.clear()
            os.environ.update(clean, WORLD_SIZE=world.group(1) if world else "8", RANK="0", LOCAL_RANK="0")
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    cfg = function()
                    if getattr(cfg, "peft", None) is not None and cfg.checkpoint.pretrained_checkpoint is None:
                        cfg.checkpoint.pretrained_checkpoint = "/tmp"
                    with contextlib.suppress(Exception):  # what Bridge itself refuses is read as it stands
                        runtime_config_update(cfg)
                    cfg.to_yaml(os.path.join(options.dump, f"{label}__{name}.yaml"))
            except Exception as error:
                failed[label + "/" + name] = f"{type(error).__name__}: {str(error)[:200]}"
    for name, why in failed.items():
        print(name, why, sep="\t")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipewright", nargs="?")
    parser.add_argument("--write", action="store_true")
    for name in ("--dump", "--bridge", "--megatron", "--configs"):
        parser.add_argument(name)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    return dump(options) if options.dump else count(options)


if __name__ == "__main__":
    sys.exit(main())
