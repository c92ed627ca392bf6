#!/usr/bin/env python3
"""The module beside the program: the same answers, errors with their place, threads, Ctrl-C, the stub.

    python_test.py PROGRAM        (PYTHONPATH: where the package pipewright lies)
"""
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import typing
import unittest

import pipewright
from pipewright import results

PROGRAM = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/cli/data"
SMALL = DATA / "small.yaml"
TABLE = str(DATA / "profiles/table.json")
BIG = ROOT / "scenarios/llama31-405b-pretrain-1024xh100.yaml"


def program(*words):
    run = subprocess.run([PROGRAM, *map(str, words), "--json", "-"], capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    return json.loads(run.stdout)


def timeless(result):
    """Without the clock's only figure."""
    result.get("searched", {}).pop("seconds", None)
    return result


def dictionary(path):
    """A scenario file as a dictionary, by way of the program: YAML is no part of Python."""
    written = subprocess.run([PROGRAM, "convert", str(path), "--out", "-"], capture_output=True, text=True, check=True).stdout
    out, section = {}, None
    for row in written.splitlines():
        key, _, value = row.strip().partition(":")
        value = value.split(" #")[0].strip()
        if not row.startswith(" "):
            section = out if value else out.setdefault(key, {})
            if value:
                out[key] = literal(value)
        else:
            section[key] = literal(value)
    return out


def literal(text):
    if text.startswith("[") and text.endswith("]"):
        return [literal(one.strip()) for one in text[1:-1].split(",") if one.strip()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.strip("'")


class SameAsTheProgram(unittest.TestCase):
    def equal(self, command, words=(), scenario=SMALL, **options):
        answer = getattr(pipewright, command)(scenario, profile=TABLE, **options)
        self.assertEqual(timeless(answer), timeless(program(command, scenario, "--profile", TABLE, *words)))
        return answer

    def test_simulate(self):
        answer = self.equal("simulate", ["--set", "recompute_modules=[mlp]", "--set", "recompute_granularity=selective",
                                         "--env", "NCCL_NVLS_ENABLE=0", "--tokens", "1B"],
                            set={"recompute_modules": ["mlp"], "recompute_granularity": "selective"},
                            env={"NCCL_NVLS_ENABLE": 0}, tokens="1B")
        self.assertGreater(answer["step_time_ms"], 0)

    def test_plan(self):
        answer = self.equal("plan", ["--open", "recompute,allocator", "--top", "3"], scenario=DATA / "search.yaml",
                            open="recompute,allocator", top=3)
        self.assertTrue(answer["best"]["flags"]["megatron"])

    def test_plan_where_nothing_fits(self):
        self.assertIsNone(self.equal("plan", ["--set", "search.memory_limit=4GiB"], scenario=DATA / "search.yaml",
                                     set={"search.memory_limit": "4GiB"})["best"])

    def test_sweep(self):
        self.equal("sweep", ["--over", "recompute_modules", "--over", "micro_batch_size=1,2"],
                   over={"recompute_modules": None, "micro_batch_size": [1, 2]})

    def test_check(self):
        answer = self.equal("check", ["--set", "pipeline_model_parallel_size=3"], set={"pipeline_model_parallel_size": 3})
        self.assertTrue(any(f["severity"] == "violation" for f in answer["findings"]))
        self.equal("check", ["--symptom", "oom"], symptom="oom")
        self.equal("check", ["--baseline", SMALL, "--set", "micro_batch_size=2"], baseline=SMALL, set={"micro_batch_size": 2})

    def test_schedule(self):
        self.equal("schedule", ["--hooks", "--frees"], hooks=True, frees=True)

    def test_validate(self):
        runs = [DATA / "measured.yaml"]
        self.assertEqual(pipewright.validate(runs, profile=TABLE), program("validate", *runs, "--profile", TABLE))

    def test_megatron_flags(self):
        flags = " ".join(pipewright.plan(DATA / "search.yaml", profile=TABLE)["best"]["flags"]["megatron"])
        self.assertEqual(pipewright.check(megatron=flags, gpus=2, profile=TABLE),
                         program("check", "--megatron", flags, "--gpus", 2, "--profile", TABLE))

    def test_a_dictionary_is_a_file(self):
        for path in (SMALL, ROOT / "scenarios/llama3-70b-sft-32xh100.yaml", ROOT / "scenarios/mixtral-8x7b-pretrain-32xh100.yaml"):
            written = dictionary(path)
            from_dictionary, from_file = pipewright.check(written), pipewright.check(path)
            self.assertEqual(from_dictionary["findings"], from_file["findings"])
            from_dictionary["configuration"].pop("scenario"), from_file["configuration"].pop("scenario")
            self.assertEqual(from_dictionary["configuration"], from_file["configuration"])


class Errors(unittest.TestCase):
    def test_a_place_in_a_file(self):
        with self.assertRaises(pipewright.UsageError) as caught:
            pipewright.simulate(DATA / "wrong_key.yaml")
        error = caught.exception
        self.assertTrue(error.file.endswith("wrong_key.yaml"))
        self.assertGreater(error.line, 0)
        self.assertIn(f"{error.file}:{error.line}: ", str(error))
        self.assertTrue(error.nearest)

    def test_a_place_in_a_dictionary(self):
        scenario = dictionary(SMALL)
        for section, key, wrong in (("settings", "pipeline_model_paralel_size", 2), ("model", "num_layers", "many"),
                                    ("cluster", "num_gpus", -1)):
            broken = json.loads(json.dumps(scenario))
            broken[section][key] = wrong
            with self.assertRaises(pipewright.UsageError) as caught:
                pipewright.simulate(broken, profile=TABLE)
            self.assertEqual(caught.exception.path, (section, key))
            self.assertEqual(caught.exception.file, "<scenario>")

    def test_no_file(self):
        for odd in ("/nowhere/x.yaml", "--json", "", "\udcff"):
            with self.assertRaises(pipewright.UsageError):
                pipewright.simulate(odd)

    def test_refused(self):
        with self.assertRaises(pipewright.Refused):
            pipewright.simulate(SMALL, profile=TABLE, set={"recompute_modules": ["moe_act"], "recompute_granularity": "selective"})

    def test_an_option_that_is_none(self):
        with self.assertRaises(pipewright.UsageError) as caught:
            pipewright.plan(DATA / "search.yaml", profile=TABLE, open="recompte")
        self.assertEqual(caught.exception.nearest, "recompute")

    def test_what_must_be_a_dictionary(self):
        for name in ("set", "env", "over"):
            with self.assertRaisesRegex(TypeError, f"{name}: expected a dictionary"):
                pipewright.sweep(SMALL, profile=TABLE, **{"over": {}, name: ["tp=2"]})


class Threads(unittest.TestCase):
    def test_many_at_once(self):
        wanted = {n: pipewright.simulate(SMALL, profile=TABLE, set={"global_batch_size": n}) for n in (4, 8, 12, 16)}
        found, threads = {}, []
        for n in wanted:
            def one(n=n):
                found[n] = pipewright.simulate(SMALL, profile=TABLE, set={"global_batch_size": n})
            threads.append(threading.Thread(target=one))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, wanted)

    def test_the_lock_is_released(self):
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.005)

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.monotonic()
        pipewright.simulate(BIG)
        end = time.monotonic()
        done.set()
        thread.join()
        during = [t for t in ticks if begin < t < end]
        self.assertGreater(len(during), (end - begin) / 0.1)

    def interrupted(self, call):
        """Ctrl-C after a moment; how long it took to be honoured."""
        before = signal.getsignal(signal.SIGINT)
        sent = []

        def send():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.4, send)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            call()
        took = time.monotonic() - sent[0]
        timer.join()
        self.assertEqual(signal.getsignal(signal.SIGINT), before)
        return took

    def test_ctrl_c(self):
        self.assertLess(self.interrupted(lambda: pipewright.plan(BIG, open="all")), 1)
        self.assertLess(self.interrupted(lambda: [pipewright.simulate(BIG) for _ in range(100)]), 1)
        self.assertGreater(pipewright.simulate(SMALL, profile=TABLE)["step_time_ms"], 0)  # and goes on


    def test_ctrl_c_ends_a_program(self):
        """Nothing crashes at the end of a process whose search was interrupted."""
        code = f"import pipewright; print('begun', flush=True); pipewright.plan({str(BIG)!r}, open='all')"
        run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        run.stdout.readline()
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual(run.returncode, -signal.SIGINT)


class Stub(unittest.TestCase):
    """The functions take what the commands take; the types have what the JSON has."""

    OUTPUTS = {"--json", "--report", "--trace", "--csv", "--markdown", "--color", "--emit", "--traces"}

    def test_arguments_are_the_options(self):
        listed = json.loads(subprocess.run([PROGRAM, "list", "commands", "--json", "-"], capture_output=True, check=True).stdout)
        options = {c["name"]: {o["name"] for o in c["options"] if o["name"].startswith("--")} for c in listed["commands"]}
        for command in ("simulate", "plan", "sweep", "check", "schedule", "validate"):
            parameters = set(inspect.signature(getattr(pipewright, command)).parameters) - {"scenario", "runs"}
            self.assertEqual({"--" + p.replace("_", "-") for p in parameters}, options[command] - self.OUTPUTS, command)

    def known(self, value, kind, where):
        origin = typing.get_origin(kind)
        if origin is typing.Union:
            inner = [k for k in typing.get_args(kind) if k is not type(None)]
            if value is not None:
                self.known(value, inner[0], where)
        elif origin is list:
            for one in value:
                self.known(one, typing.get_args(kind)[0], where)
        elif isinstance(kind, type) and issubclass(kind, dict) and kind is not dict and hasattr(kind, "__annotations__"):
            hints = typing.get_type_hints(kind)
            self.assertLessEqual(set(value), set(hints), where)
            for key, one in value.items():
                self.known(one, hints[key], f"{where}.{key}")
        elif kind in (int, float, str, bool):
            self.assertIsInstance(value, (int, float) if kind is float else kind, where)

    def test_types_are_the_answers(self):
        moe = ROOT / "scenarios/qwen3-30b-a3b-pretrain-16xh100.yaml"
        self.known(pipewright.simulate(moe, tokens="1B"), results.Prediction, "simulate")
        self.known(pipewright.plan(DATA / "search.yaml", profile=TABLE, tokens="1B"), results.Plan, "plan")
        self.known(pipewright.sweep(SMALL, profile=TABLE, over={"micro_batch_size": [1, 2, 64]}), results.Sweep, "sweep")
        self.known(pipewright.check(moe), results.Check, "check")
        self.known(pipewright.check(SMALL, baseline=SMALL, profile=TABLE), results.Check, "baseline")
        self.known(pipewright.schedule(SMALL), results.Schedule, "schedule")
        self.known(pipewright.validate(DATA / "measured.yaml", profile=TABLE), results.Validation, "validate")


class Notebook(unittest.TestCase):
    def test_the_example(self):
        """Its cells in order; pandas, which its last ones draw with, may be missing."""
        cells = json.loads((ROOT / "docs/examples/sweep.ipynb").read_text())["cells"]
        code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        self.assertGreater(len(code), 3)
        try:
            import pandas  # noqa: F401
        except ImportError:
            code = [c for c in code if "pd." not in c and "frame" not in c and "pandas" not in c]
        space = {}
        folder = os.getcwd()
        os.chdir(ROOT / "docs/examples")
        try:
            for cell in code:
                exec(compile(cell, "sweep.ipynb", "exec"), space)  # noqa: S102
        finally:
            os.chdir(folder)
        self.assertTrue(space["prediction"]["fits"] in (True, False))


if __name__ == "__main__":
    unittest.main()
