"""The JSON contract as types: what each command's --json holds. All of them begin with `schema`, `tool`,
`configuration` and `assumed` (validate and check --baseline without the last two)."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class Tool(TypedDict):
    version: str
    commit: str


class _Result(TypedDict, total=False):
    schema: int
    tool: Tool
    configuration: Dict[str, Any]
    assumed: List[str]


class Exposed(TypedDict):
    """Milliseconds in which a rank's compute stream waits, by what it waits for."""

    p2p: float
    tp: float
    cp: float
    ep: float
    dp: float
    offload: float
    host: float


class Owner(TypedDict):
    owner: str
    bytes: int


class Sent(TypedDict, total=False):
    """Bytes that one GPU sends, by level of the network; none of what userbuffers send in pieces."""

    nvlink: float
    cards: float
    switches: List[float]


class Communication(TypedDict):
    """An exchange, all its executions in a step; `exposed_by_phase_ms`: warmup, steady, cooldown, end."""

    what: str
    purpose: str
    times: int
    busy_ms: float
    exposed_ms: float
    bytes_each: Sent
    exposed_by_phase_ms: Dict[str, float]


class Rank(TypedDict, total=False):
    pp_rank: int
    forward_backward_ms: float
    busy_ms: float
    bubble_ms: float
    idle_ms: float
    exposed_ms: Exposed
    as_traced: Dict[str, Dict[str, float]]
    static_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_allocator_bytes: int
    peak_at: str
    peak_owners: List[Owner]
    communication: List[Communication]
    offload: Dict[str, Any]
    pressure: Dict[str, Any]


# "from" is a word of Python's.
Boundary = TypedDict("Boundary", {"from": int, "to": int, "direction": str, "bytes": int, "transfers": int,
                                  "exposed_ms": float, "longest_wait": str})


class CriticalStep(TypedDict):
    what: str
    ms: float
    why: str


class IntervalPart(TypedDict):
    cause: str
    minus_ms: float
    plus_ms: float
    source: str


class Prediction(_Result, total=False):
    scenario: str
    profile: Dict[str, str]
    origins: Dict[str, float]
    software: Dict[str, str]
    forward_backward_ms: float
    optimizer_ms: float
    step_time_ms: float
    interval_ms: Optional[List[float]]
    interval_parts: List[IntervalPart]
    ignored: List[str]
    tflops_per_gpu: float
    mfu: Optional[float]
    tokens_per_s_per_gpu: float
    exposed_ms: Exposed
    bubble_ms: float
    recompute_ms: float
    ranks: List[Rank]
    boundaries: List[Boundary]
    critical_path: List[CriticalStep]
    fits: bool
    memory_limit_bytes: int
    notes: List[str]
    training: Dict[str, float]


class Flags(TypedDict):
    megatron: List[str]
    bridge: List[str]
    harness: List[str]
    env: Dict[str, str]
    remarks: Dict[str, List[str]]


class Candidate(TypedDict, total=False):
    label: str
    as_given: bool
    probability_to_fit: Optional[float]
    settings: Dict[str, Any]
    environment: Dict[str, str]
    configuration: Dict[str, Any]
    assumed: List[str]
    prediction: Prediction
    flags: Flags
    scenario: str


class Plan(_Result, total=False):
    best: Optional[Candidate]
    baseline: Candidate
    alternatives: List[Candidate]
    pareto: List[Dict[str, Any]]
    why: List[str]
    searched: Dict[str, Any]
    best_with_interval: Optional[Candidate]
    released: Optional[Candidate]
    closest: Optional[Candidate]
    fewest_gpus: Optional[int]
    ladder: List[Dict[str, Any]]
    sensitivity: List[Dict[str, Any]]
    rejected: List[Dict[str, Any]]
    training: Dict[str, float]


class Row(TypedDict, total=False):
    settings: Dict[str, Any]
    legal: bool
    reason: str
    step_time_ms: Optional[float]
    relative: Optional[float]
    peak_allocated_bytes: Optional[int]
    peak_reserved_bytes: Optional[int]
    fits: Optional[bool]
    exposed_ms: Optional[Exposed]


class Sweep(_Result, total=False):
    rows: List[Row]
    notes: List[str]
    part: Dict[str, int]


class Finding(TypedDict):
    rule: str
    severity: str
    settings: List[str]
    message: str
    fix: str
    source: str


class Check(_Result, total=False):
    findings: List[Finding]
    # with a baseline
    budget: Dict[str, Any]
    within_budget: bool
    recipes: List[Dict[str, Any]]


class Schedule(_Result, total=False):
    p: int
    v: Optional[int]
    m: int
    N: Optional[int]
    warmup: List[int]
    ranks: List[List[str]]


class Validation(_Result, total=False):
    mode: str
    cases: List[Dict[str, Any]]
    refused: List[Dict[str, str]]
    time: Optional[Dict[str, Any]]
    dense: Optional[Dict[str, Any]]
    mixtures: Optional[Dict[str, Any]]
    memory: Optional[Dict[str, float]]
    reserved: Optional[Dict[str, float]]
    outside: Optional[Dict[str, float]]
