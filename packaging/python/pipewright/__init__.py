"""Step time, exposed communication and memory of Megatron training, before any GPU hour is spent.

    import pipewright
    prediction = pipewright.simulate("scenarios/llama3-70b-sft-32xh100.yaml", set={"tp": 8})
    prediction["step_time_ms"]

Every function is a command of the program: a scenario in (a path, or a dictionary with what a scenario file holds),
the JSON of `--json` out, as a dictionary. Keyword arguments are the command's options with underscores; `set`, `env`
and `over` take dictionaries. Errors are UsageError (the input is wrong, with its position) and Refused (a rule of
Megatron's is broken). The interpreter's lock is released while a command runs; Ctrl-C stops it.
"""

from __future__ import annotations

import json as _json
import os as _os
from pathlib import Path as _Path
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from . import _core
from .errors import InternalError, Refused, UsageError, path_at as _path_at
from .results import Check, Plan, Prediction, Schedule, Sweep, Validation

__all__ = ["simulate", "plan", "sweep", "check", "schedule", "validate", "version", "UsageError", "Refused",
           "InternalError", "Prediction", "Plan", "Sweep", "Check", "Schedule", "Validation"]

Scenario = Union[str, "_os.PathLike[str]", Mapping[str, Any]]
Values = Mapping[str, Any]
Names = Union[str, Iterable[str]]

_profiles = _Path(__file__).parent / "profiles"
if _profiles.is_dir():
    _core.use_profiles_of(str(_profiles))


def _value(value: Any) -> str:
    """A value as --set takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    return str(value)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as a command line."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if name in ("set", "env", "over") and not isinstance(value, Mapping):
            raise TypeError(f"{name}: expected a dictionary, found {value!r:.60}")
        if value is True:
            words.append(option)
        elif name == "over":
            for key, values in value.items():
                words += [option, key if values is None else f"{key}={','.join(map(_value, values))}"]
        elif name in ("set", "env"):
            for key, one in value.items():
                words += [option, f"{key}={_value(one)}" if name == "set" else f"{key}={'' if one is None else one}"]
        elif name == "symptom":
            words += [option, *([value] if isinstance(value, str) else value)]
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, _os.fspath(one)]
        else:
            words += [option, _os.fspath(value) if isinstance(value, _os.PathLike) else str(value)]
    return words


class _Inputs:
    """Paths as they are, dictionaries as texts under a name in angle brackets."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def name(self, scenario: Scenario, name: str) -> str:
        if not isinstance(scenario, Mapping):
            return _os.fspath(scenario)
        self.texts[name] = _json.dumps(scenario, indent=1, ensure_ascii=False)
        return name


def _run(command: str, inputs: _Inputs, arguments: Sequence[str], options: Mapping[str, Any]) -> Any:
    # Options first: what follows "--" is never taken for one, whatever a file is called.
    words = [command, *_words(options), "--json", "-", *(["--", *arguments] if arguments else [])]
    try:
        # Bytes: a path need not be text.
        _, text = _core.run([_os.fsencode(word) for word in words], inputs.texts)
    except UsageError as error:
        if error.file in inputs.texts:
            error.path = _path_at(inputs.texts[error.file], error.line)
        raise
    return _json.loads(text)


def _of_scenario(command: str, scenario: Optional[Scenario], options: Mapping[str, Any]) -> Any:
    inputs = _Inputs()
    arguments = [] if scenario is None else [inputs.name(scenario, "<scenario>")]
    options = dict(options)
    if isinstance(options.get("baseline"), Mapping):
        options["baseline"] = inputs.name(options["baseline"], "<baseline>")
    return _run(command, inputs, arguments, options)


def simulate(scenario: Optional[Scenario] = None, *, set: Optional[Values] = None, env: Optional[Values] = None,
             arguments: Optional[str] = None, profile: Names = (), ignore: Names = (),
             megatron: Optional[str] = None, bridge: Optional[str] = None, hf: Optional[str] = None,
             gpus: Optional[int] = None, gpus_per_node: Optional[int] = None, megatron_core: Optional[str] = None,
             tokens: Optional[str] = None) -> Prediction:
    """Time, exposed communication and memory of one configuration. `fits` says whether it does."""
    return _of_scenario("simulate", scenario, _given(locals()))


def plan(scenario: Optional[Scenario] = None, *, set: Optional[Values] = None, env: Optional[Values] = None,
         arguments: Optional[str] = None, profile: Names = (), ignore: Names = (), megatron: Optional[str] = None,
         bridge: Optional[str] = None,
         hf: Optional[str] = None, gpus: Optional[int] = None, gpus_per_node: Optional[int] = None,
         megatron_core: Optional[str] = None, tokens: Optional[str] = None, top: Optional[int] = None,
         open: Names = (), time_limit: Optional[float] = None) -> Plan:
    """The best legal configuration of what is open, why, and its flags. `best` is None where nothing fits."""
    return _of_scenario("plan", scenario, _given(locals()))


def sweep(scenario: Optional[Scenario] = None, *, over: Mapping[str, Optional[Sequence[Any]]],
          set: Optional[Values] = None, env: Optional[Values] = None, arguments: Optional[str] = None,
          profile: Names = (), ignore: Names = (),
          megatron: Optional[str] = None, bridge: Optional[str] = None, hf: Optional[str] = None,
          gpus: Optional[int] = None, gpus_per_node: Optional[int] = None, megatron_core: Optional[str] = None,
          part: Optional[str] = None) -> Sweep:
    """Every combination of `over`: {"micro_batch_size": [1, 2], "recompute_modules": None}; None: every legal set."""
    return _of_scenario("sweep", scenario, _given(locals()))


def check(scenario: Optional[Scenario] = None, *, set: Optional[Values] = None, env: Optional[Values] = None,
          arguments: Optional[str] = None, profile: Names = (), ignore: Names = (), megatron: Optional[str] = None,
          bridge: Optional[str] = None,
          hf: Optional[str] = None, gpus: Optional[int] = None, gpus_per_node: Optional[int] = None,
          megatron_core: Optional[str] = None, symptom: Optional[Names] = None, baseline: Optional[Scenario] = None,
          step_budget: Optional[float] = None, memory_budget: Optional[str] = None) -> Check:
    """What a configuration breaks, what has no effect, what is a trap; with `baseline`, what a change of it does."""
    return _of_scenario("check", scenario, _given(locals()))


def schedule(scenario: Optional[Scenario] = None, *, set: Optional[Values] = None, env: Optional[Values] = None,
             arguments: Optional[str] = None, profile: Names = (), ignore: Names = (), megatron: Optional[str] = None,
             bridge: Optional[str] = None,
             hf: Optional[str] = None, gpus: Optional[int] = None, gpus_per_node: Optional[int] = None,
             megatron_core: Optional[str] = None, detail: bool = False, hooks: bool = False,
             frees: bool = False) -> Schedule:
    """Megatron's program of every rank."""
    return _of_scenario("schedule", scenario, _given(locals()))


def validate(runs: Union[Scenario, Sequence[Scenario]], *, profile: Names = (), calibrate: bool = False,
             tolerance: Optional[float] = None) -> Validation:
    """Measured runs (scenarios with `measured`, or folders of them) beside their predictions."""
    options = _given(locals())
    options.pop("runs", None)
    inputs = _Inputs()
    every = runs if isinstance(runs, (list, tuple)) else [runs]
    return _run("validate", inputs, [inputs.name(run, f"<run {i}>") for i, run in enumerate(every)], options)


def version() -> str:
    """Version, commit, and the profiles that are found."""
    return _core.version()


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A function's options, without its scenario."""
    out = {name: value for name, value in arguments.items() if name != "scenario"}
    for name in ("profile", "ignore", "open"):
        if isinstance(out.get(name), str):
            out[name] = [out[name]]
        elif name in out:
            out[name] = list(out[name])
    return out
