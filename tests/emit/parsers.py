#!/usr/bin/env python3
"""Hands what pipewright emits to Megatron's own parsers and writes data/parsed.txt, the lines that they took.

    parsers.py --test build/tests/emit_tests --megatron CLONE [--python PYTHON]

CLONE: a git clone of NVIDIA/Megatron-LM that has the commits of include/scenario/pipewright/versions.def. PYTHON: one that
has torch (without CUDA suffices), numpy, packaging, einops, six, pydantic, requests and tqdm. For every version and line:
parse_args, validate_args (megatron/training/arguments.py) and core_transformer_config_from_args, in that version's tree,
with torch.distributed's variables set as torchrun would. What needs a GPU is stood in for and no more: the compute
capability (9.0), the version of Transformer Engine. Nothing is trained. If a line is refused, parsed.txt stays as it is.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = HERE.parents[1] / "include/scenario/pipewright/versions.def"
TRANSFORMER_ENGINE = "2.20.2"
# What a user adds to the flags of a configuration.
OF_THE_USER = "--train-iters 10 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer".split()


def commits():
    """Version as a scenario states it -> commit."""
    rows = re.findall(r'PIPEWRIGHT_MEGATRON\(\w+, "([^"]+)", (\w+), "[^"]+", "(\w+)"\)', VERSIONS.read_text())
    return {name + (".0" if kind == "release" else ""): commit for name, kind, commit in rows}


def cases(text):
    """version -> [(line, items)]; a change is its base with items added and taken away."""
    bases, result = {}, {}
    for line in text.splitlines():
        kind, base, versions, *items = line.split("\t")
        if kind == "base":
            bases[base, versions] = items
            result.setdefault(versions, []).append((line, items))
    for line in text.splitlines():
        kind, base, versions, *delta = line.split("\t")
        if kind != "change":
            continue
        for version in versions.split(","):
            gone = {d[1:] for d in delta if d[0] == "-"}
            items = [i for i in bases[base, version] if i not in gone] + [d[1:] for d in delta if d[0] == "+"]
            result[version].append((line, items))
    return result


def stand_in(*packages):
    """Packages that need a GPU: any name in them is an empty class, and they have a version."""
    import importlib
    import importlib.abc
    import importlib.machinery
    import importlib.metadata
    import types

    class Meta(type):
        def __getattr__(cls, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *a, **k: None

    class Module(types.ModuleType):
        __path__, __version__ = [], TRANSFORMER_ENGINE

        def __call__(self, *a, **k):
            return a[0] if a and callable(a[0]) else None

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            if name.islower():
                return importlib.import_module(self.__name__ + "." + name)
            setattr(self, name, Meta(name, (), {"__init__": lambda self, *a, **k: None}))
            return getattr(self, name)

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in packages:
                return importlib.machinery.ModuleSpec(name, self, is_package=True)

        def create_module(self, spec):
            return Module(spec.name)

        def exec_module(self, module):
            pass

    sys.meta_path.insert(0, Finder())
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: (
        TRANSFORMER_ENGINE if name.replace("-", "_") in packages else version(name))


def refusal(error):
    """What was raised, and where."""
    frame = error.__traceback__
    while frame.tb_next:
        frame = frame.tb_next
    return f"{type(error).__name__}: {error} ({os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})"


def try_all(tree, lines):
    """In a process of its own: the refusal of every line, or None."""
    import contextlib
    import io
    import types
    import typing
    import warnings

    sys.path.insert(0, tree)
    warnings.simplefilter("ignore")
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda f: f
    import torch

    torch.cuda.get_device_capability = lambda *a: (9, 0)
    torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(
        major=9, minor=0, name="NVIDIA H100", total_memory=80 << 30, multi_processor_count=132)
    stand_in("transformer_engine")
    from megatron.training import arguments

    parsers = []  # building one takes a third of a second

    def add_once(parser, build=arguments.add_megatron_arguments):
        parsers[:] = parsers or [build(parser)]
        return parsers[0]

    arguments.add_megatron_arguments = add_once
    clean = dict(os.environ)
    verdicts = []
    for items in lines:
        words = [w for item in items if item.startswith("--") for w in shlex.split(item)]
        os.environ.clear()
        os.environ.update(clean, RANK="0", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
        for item in items:
            if not item.startswith("--"):
                name, value = item.split("=", 1)
                os.environ["WORLD_SIZE" if name == "gpus" else name] = value
        sys.argv = ["pretrain_gpt.py", *words, *OF_THE_USER]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                args = arguments.parse_args()
                arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
                arguments.core_transformer_config_from_args(args)
            verdicts.append(None)
        except SystemExit:
            verdicts.append(said.getvalue().strip().splitlines()[-1])
        except Exception as error:  # whatever a version raises is its refusal
            verdicts.append(refusal(error))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", required=True, help="the program emit_tests")
    parser.add_argument("--megatron", required=True, help="git clone of NVIDIA/Megatron-LM")
    parser.add_argument("--python", default=sys.executable, help="Python with torch")
    parser.add_argument("--only", help="this version alone; writes nothing")
    options = parser.parse_args()
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        emitted = os.path.join(folder, "emitted.txt")
        subprocess.run([options.test, "--source-file=*/emit/parsed_test.cpp"], env={**os.environ, "PIPEWRIGHT_EMITTED": emitted}, stdout=subprocess.DEVNULL)
        text = pathlib.Path(emitted).read_text()
        header = ["# What parsers.py had Megatron's own parsers take: parse_args, validate_args and the config class of"]
        for version, lines in cases(text).items():
            commit = commits()[version]
            header.append(f"# {version} ({commit}): {len(lines)} command lines")
            if options.only not in (None, version):
                continue
            tree = os.path.join(folder, version)
            os.mkdir(tree)
            archive = subprocess.run(["git", "-C", options.megatron, "archive", commit, "megatron"], check=True,
                                     stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
            work = os.path.join(folder, "work.json")
            pathlib.Path(work).write_text(json.dumps([items for _, items in lines]))
            child = subprocess.run([options.python, __file__, "--try", tree, work], check=True, stdout=subprocess.PIPE)
            verdicts = json.loads(child.stdout.splitlines()[-1])
            for (line, _), verdict in zip(lines, verdicts):
                if verdict:
                    refused += 1
                    print(f"{version}: {line}\n    {verdict}")
            print(f"{version}: {len(lines)} lines, {sum(v is not None for v in verdicts)} refused", flush=True)
    if not refused and options.only is None:
        (HERE / "data/parsed.txt").write_text("\n".join(header) + "\n" + text)
    return 1 if refused else 0


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--try":
        verdicts = try_all(sys.argv[2], json.loads(pathlib.Path(sys.argv[3]).read_text()))
        print("\n" + json.dumps(verdicts))
    else:
        sys.exit(main())
