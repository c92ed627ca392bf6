#!/usr/bin/env python3
"""Exchanges of drawn clusters by hand: bytes of every level (`bytes_each`), what the slowest of them takes, and simulate's answer.

    network_test.py PROGRAM PROFILES

Nothing is shared with the program but the rates that docs/network.md states. What NVLink carries is the profile's. An exchange may take no less than its slowest level and no more than that and its steps.
One thing is changed at a time, too: exchanges and the step move by what the hand says, and where something hides the exchanges
by no more than these do.
"""
import collections
import copy
import json
import math
import os
import random
import subprocess
import sys

PROGRAM, PROFILES = sys.argv[1:]
PROFILE = json.load(open(os.path.join(PROFILES, "h100-sxm.json"), encoding="utf8"))
NVLINK = next(link["gbytes_per_s"] for link in PROFILE["links"] if link["name"] == "nvlink")
# What a ring of so many GPUs of a domain passes on, GB/s: the profile's largest reduce-scatter; two pass less than eight.
BUS = {row["ranks"]: (row["ranks"] - 1) / row["ranks"] * row["bytes"] / row["time_us"] / 1e3
       for row in sorted(PROFILE["families"]["reduce_scatter.nvlink"]["samples"], key=lambda row: row["bytes"])}
HIDDEN, FFN, HEADS, GROUPS, HEAD, VOCABULARY, LAYERS, SEQUENCE = 4096, 14336, 32, 8, 128, 32000, 4, 8192
BASE = """scenario: 1
model: {{num_layers: 4, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8, seq_length: 8192,
  max_position_embeddings: 8192, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, make_vocab_size_divisible_by: 128{model}}}
settings: {{bf16: true, use_distributed_optimizer: true, grad_reduce_in_fp32: true, gradient_accumulation_fusion: true,
  hidden_dropout: 0.0, attention_dropout: 0.0, bias_activation_fusion: true, apply_rope_fusion: true, optimizer: adam{settings}}}
environment: {{CUDA_DEVICE_MAX_CONNECTIONS: '1'}}
cluster: {{profile: h100-sxm, num_gpus: {gpus}, gpus_per_node: {node}, nvlink_domain: {domain}, nics_per_node: {nics}, nic_gbits: {gbits},
  host_time_factor: {host_time_factor}, network: {{latency_us: {latency}, levels: {levels}, oversubscription: {less}}}}}
software: {{megatron_core: 0.19.0, transformer_engine: 2.20.2, torch: 2.11.0}}
"""


class Cluster:
    def __init__(self, draw, gpus, sizes=(1, 1, 2, 3, 4)):
        self.gpus = gpus
        self.node = draw.choice([8, 8, 4])
        self.domain = self.node * draw.choice(sizes)
        self.nics = draw.choice([1, 2, 4, 8, 16])
        self.gbits = draw.choice([100, 200, 400, 800])
        self.latency = draw.choice([5, 14, 40])
        below = self.domain * draw.choice([1, 2, 3])  # groups may lie across the end of a switch, too
        self.levels, self.less = draw.choice([([], []), ([below], [draw.choice([2, 4])]), ([below, below * 2], [2, 3])])

    def card(self):
        return self.gbits / 8 * 0.94

    def share(self):
        return self.card() * self.nics / self.node

    def simulate(self, model, settings, trace=False, host_time_factor=1):
        text = BASE.format(model="".join(f", {k}: {v}" for k, v in model.items()),
                           settings="".join(f", {k}: {v}" for k, v in ({"micro_batch_size": 1} | settings).items()),
                           host_time_factor=host_time_factor, **vars(self))
        answer = subprocess.run([PROGRAM, "simulate", "/dev/stdin", "--trace" if trace else "--json", "-"], input=text, text=True,
                                capture_output=True, env={**os.environ, "PIPEWRIGHT_PROFILES": PROFILES}, check=False)
        if answer.returncode != 0:
            raise SystemExit(f"{answer.stderr}\n{text}")
        return json.loads(answer.stdout)


Found = collections.namedtuple("Found", "times us bytes")


def exchanges(answer, rank=0):
    """By name: how often, us and bytes by level of each."""
    return {c["what"]: Found(c["times"], 1e3 * c["busy_ms"] / c["times"], c["bytes_each"]) for c in answer["ranks"][rank]["communication"]}


class Check:
    def __init__(self):
        self.failed = self.done = 0

    def __call__(self, what, cluster, us, least, most):
        self.done += 1
        if least - 0.001 * abs(least) <= us <= most + 0.001 * abs(most) + 2:  # us: of an exchange that meets another kernel
            return
        self.failed += 1
        print(f"{what}: {us:.1f} us, by hand {least:.1f} to {most:.1f}; {vars(cluster)}")

    def bytes(self, what, cluster, found, by_hand, known=0.0001):
        """By level: NVLink, cards, then the switches of each height."""
        self.done += 1
        sent = [found["nvlink"], found["cards"], *found.get("switches", [])]
        if len(sent) == len(by_hand) and all(abs(a - b) <= known * max(a, b) + 1 for a, b in zip(sent, by_hand)):
            return
        self.failed += 1
        print(f"{what}: sends {sent}, by hand {by_hand}; {vars(cluster)}")

    def hidden(self, what, cluster, us, longer, whole):
        """Where other work hides an exchange the step grows by no more than what is exchanged; beside it kernels are slower for longer."""
        self.done += 1
        if -0.004 * whole <= us <= 1.3 * max(0, longer) + 0.004 * whole:
            return
        self.failed += 1
        print(f"{what}: {us:.0f} us, exchanges {longer:.0f}, of a step of {whole:.0f}; {vars(cluster)}")

    def step(self, what, cluster, us, spent, whole):
        """A step grows by what its exchanges do, but for clocks: a chip that waits longer is cooler."""
        self.done += 1
        if abs(us - spent) <= 0.03 * abs(spent) + 0.004 * whole:
            return
        self.failed += 1
        print(f"{what}: {us:.0f} us, exchanges {spent:.0f}, of a step of {whole:.0f}; {vars(cluster)}")


# ---- bytes by level. Group of n ranks, `stride` GPUs apart, m of them in a domain.

def together(cluster, n, stride, gpus=None):
    """Of the group that is spread the most: the fewest that share a domain (what hangs below a switch); their cards decide."""
    unit, block = gpus or cluster.domain, n * stride
    return min(min(collections.Counter((first + lane + rank * stride) // unit for rank in range(n)).values())
               for first in range(0, cluster.gpus, block) for lane in range(stride))


def upwards(cluster, n, stride, beyond):
    """Bytes that go beyond the switches of each height, of `beyond(k)` with k ranks below one."""
    m = together(cluster, n, stride)
    ranks = [max(m, together(cluster, n, stride, below)) for below in cluster.levels]
    return [beyond(k) if m < n and k < n else 0 for k in ranks]


def ring_bytes(cluster, n, stride, size):
    moved, m = size * (n - 1) / n, together(cluster, n, stride)
    if m == n:
        return [moved, 0] + upwards(cluster, n, stride, None)
    return [moved * (1 - 1 / m), moved / m] + upwards(cluster, n, stride, lambda k: moved * math.ceil(n / k) / n)


def all_to_all_bytes(cluster, n, stride, size):
    m = together(cluster, n, stride)
    cards = size * (n - m) / n
    return [size * (m - 1) / n + cards * (m - 1) / m, cards] + upwards(cluster, n, stride, lambda k: size * (n - k) / n)


def dispatcher_bytes(cluster, n, row, gpus, domains):
    m = together(cluster, n, 1)
    d = n // m
    cards = row * domains * (d - 1) / d
    return [row * gpus * (m - 1) / m, cards] + upwards(cluster, n, 1, lambda k: cards * (d - k / m) / (d - 1))


def levels_us(cluster, n, stride, card_bytes, beyond, rate=1.0):
    """Of cards and switches: the slowest. `beyond(k)`: bytes that leave a switch with k of the ranks below it."""
    slowest = card_bytes / (rate * cluster.share())
    for sent, less in zip(upwards(cluster, n, stride, beyond), cluster.less):
        slowest = max(slowest, sent * less / cluster.share())
    return slowest / 1e3  # B / (GB/s) = ns


def ring(check, what, cluster, found, n, stride, size):
    check.bytes(what, cluster, found.bytes, ring_bytes(cluster, n, stride, size))
    us = found.us
    m = together(cluster, n, stride)
    d = math.ceil(n / m)
    moved = size * (n - 1) / n
    nvlink = moved / NVLINK / 1e3 / 1.02 if m > 1 else 0  # no ring passes more than a link carries
    if d == 1:
        return check(what, cluster, us, nvlink, 1.6 * nvlink + 3.5 * n + 30)
    floor = max(nvlink, levels_us(cluster, n, stride, moved / m, lambda k: moved * math.ceil(n / k) / n))
    steps = 8.4 + (n - d) * 3.4 + (d - 1) * max(3.4, cluster.latency)  # NCCL's Simple protocol
    inside = moved / BUS[max(r for r in BUS if r <= m)] / 1e3 if m > 1 else 0
    return check(what, cluster, us, floor, max(floor, 1.2 * inside) + max(steps, 3.5 * n))


def all_to_all_us(cluster, n, stride, size):
    m = together(cluster, n, stride)
    if m == n:
        floor = size * (n - 1) / n / NVLINK / 1e3
        return floor / 1.1, 1.35 * floor + 30
    cards = levels_us(cluster, n, stride, size * (n - m) / n, lambda k: size * (n - max(k, m)) / n)
    nvlink = (size * (n - m) / n * (m - 1) / m + size * (m - 1) / n) / NVLINK / 1e3  # relayed to the right card, and own domain's
    steps = 8.4 + math.ceil(n / 8) * cluster.latency
    return max(cards + steps, nvlink / 1.1), max(cards + steps, 1.35 * nvlink + 30)


def all_to_all(check, what, cluster, found, n, stride, size):
    check.bytes(what, cluster, found.bytes, all_to_all_bytes(cluster, n, stride, size))
    check(what, cluster, found.us, *all_to_all_us(cluster, n, stride, size))


def units(experts, topk, u, groups=1, kept=0, draws=4000, sent=1.0):
    """Distinct of u units that hold a token's experts; `sent`: of its choices, those that no capacity drops."""
    if not kept:
        here = experts // u
        missed = sum(math.comb(here, j) * math.comb(experts - here, topk - j) * (1 - sent)**j for j in range(min(here, topk) + 1))
        return u * (1 - missed / math.comb(experts, topk))
    random.seed(7)
    met = 0
    size = experts // groups
    for _ in range(draws):
        score = [random.random() for _ in range(experts)]
        best = sorted(range(groups), key=lambda g: -sum(sorted(score[g * size:(g + 1) * size])[-(topk // kept):]))[:kept]
        chosen = sorted((e for g in best for e in range(g * size, (g + 1) * size)), key=lambda e: -score[e])[:topk]
        met += len({e * u // experts for e in chosen})
    return met / draws


# By library: GB/s an SM (dispatch, combine) between nodes and in one domain, shares of NVLink between nodes, of the card, us to start.
RATES = {"deepep": ((11.8, 9.2), (18.8, 18.8), (0.76, 0.76), 0.966, 72),
         "hybridep": ((36.7, 42.9), (45.9, 42.9), (0.58, 0.51), 0.93, 0)}
# HybridEP in one domain of a GB200: GB/s with 16 and 32 SMs by ranks (dispatch, combine), own copies counted.
ALONE = {8: ((750.15, 764.03), (684.27, 737.13)), 16: ((661.93, 706.95), (600.75, 666.26)), 24: ((637.80, 665.97), (565.53, 639.80)),
         32: ((629.79, 642.23), (547.25, 605.15)), 36: ((612.85, 632.31), (543.27, 596.99))}


def share_alone(library, way, n, sms):
    if library == "deepep":
        return RATES[library][2][way]
    x = (32 / min(32, max(16, sms))) - 1  # of the way from 32 to 16 SMs, in time
    slow = {r: ((1 - x) / rates[way][1] + x / rates[way][0]) * r / (r - 1) for r, rates in ALONE.items()}
    n = min(36, max(8, n))
    a = max(r for r in slow if r <= n)
    b = min(r for r in slow if r >= n)
    return 1 / (slow[a] + ((slow[b] - slow[a]) * math.log(n / a) / math.log(b / a) if b > a else 0)) / (900 * 20.6 / 25)  # a GB200's line, NCCL's share of it


def dispatcher_us(cluster, library, way, n, sms, row, gpus, domains, imbalance=1):
    m = together(cluster, n, 1)
    d = n // m
    between, alone, link, card, start = RATES[library]
    busiest = min(imbalance, n / gpus)  # no rank receives more than all tokens
    slowest = row * gpus * busiest / ((between if d > 1 else alone)[way] * sms) / 1e3
    share = link[way] if d > 1 else share_alone(library, way, n, sms)
    slowest = max(slowest, row * gpus * (m - 1) / m * busiest / (share * NVLINK) / 1e3)
    if d > 1:
        sent = row * domains * (d - 1) / d * (1 + (busiest - 1) / m)
        slowest = max(slowest, levels_us(cluster, n, 1, sent, lambda k: sent * (d - max(1, k / m)) / (d - 1), card))
    return slowest + start + (cluster.latency if d > 1 else 0)


def dispatcher(check, what, cluster, found, library, way, n, sms, row, gpus, domains, imbalance, drawn):
    known = 0.02 if drawn else 0.001  # means over some thousand tokens, here and there
    check.bytes(what, cluster, found.bytes, dispatcher_bytes(cluster, n, row, gpus, domains), known)
    by_hand = dispatcher_us(cluster, library, way, n, sms, row, gpus, domains, imbalance)
    check(what, cluster, found.us, by_hand * (1 - known), by_hand * (1 + known))


def experts(check, draw):
    cluster = Cluster(draw, 64)
    tp = draw.choice([1, 1, 2, 4])
    etp = draw.choice([1, tp])
    ep, topk, imbalance = draw.choice([8, 16, 32, 64]) // etp, draw.choice([2, 4, 8]), draw.choice([1, 1, 1.3, 1.8])
    moe = {"num_moe_experts": 64, "moe_router_topk": topk, "moe_ffn_hidden_size": 1024}
    groups = draw.choice([1, 1, 8])
    kept = 4 if groups > 1 else 0
    if kept:
        topk = max(topk, 4)
        moe |= {"moe_router_num_groups": groups, "moe_router_group_topk": kept, "moe_router_topk": topk}
    micro, tokens = draw.choice([(1, SEQUENCE // tp), (2, 2 * SEQUENCE // tp)])
    how = {"expert_model_parallel_size": ep, "global_batch_size": 64 * micro, "moe_grouped_gemm": "true", "moe_load_imbalance": imbalance,
           "micro_batch_size": micro, "tensor_model_parallel_size": tp, "expert_tensor_parallel_size": etp}
    how |= {"sequence_parallel": "true"} if tp > 1 else {}
    row, n = 2 * HIDDEN * tokens, ep * etp
    # Token drop: of each expert a rank sends so many at most, or exactly.
    capacity, pads = draw.choice([None, None, 0.5, 1.5]), draw.choice(["true", "false"])
    most = 64 * math.ceil(tokens * topk / 64 * capacity) if capacity else math.inf
    dropping = {"moe_expert_capacity_factor": capacity} if capacity else {}
    padded = capacity and pads == "true"
    rows = most if padded else min(tokens * topk * min(ep, imbalance), most)
    found = exchanges(cluster.simulate(moe, how | dropping | {"moe_token_dispatcher_type": "alltoall"} |
                                       ({"moe_pad_expert_input_to_capacity": "true"} if padded else {})))
    told = f"EP {ep}, ETP {etp}, top-{topk}, capacity {capacity}, padded {padded}: "
    for name in ("moe dispatch all-to-all", "moe combine all-to-all", "moe dispatch all-to-all in backward"):
        all_to_all(check, told + name, cluster, found[name], ep, etp, 2 * HIDDEN * rows)
    if etp > 1:
        ring(check, told + "experts' all-gather", cluster, found["moe expert-tensor all-gather"], etp, 1, 2 * HIDDEN * rows * etp)
    found = exchanges(cluster.simulate(moe, how | {"moe_token_dispatcher_type": "allgather"}))
    for name in ("moe dispatch all-gather", "moe combine reduce-scatter", "moe combine all-gather in backward"):
        ring(check, told + name, cluster, found[name], n, 1, row * n)
    m = together(cluster, n, 1)
    if n % m != 0:
        return  # libraries want as many ranks in every domain
    for library in RATES:
        sms = draw.choice([4, 8, 16, 20, 32])
        found = exchanges(cluster.simulate(moe, how | (dropping if not kept else {}) | {
            "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": library, "moe_router_dtype": "fp32",
            "moe_flex_dispatcher_num_sms": sms}))
        sent = 1.0 if kept or not capacity else min(1, most / (tokens * topk))
        gpus = etp * units(64, topk, ep, groups, kept, sent=sent)
        domains = units(64, topk, n // m, groups, kept, sent=sent) if m < n else 1
        for name, way in (("moe dispatch", 0), ("moe combine", 1), ("moe dispatch in backward", 0), ("moe combine in backward", 1)):
            dispatcher(check, f"{told}{library} {name}, {sms} SMs, {groups} groups, imbalance {imbalance}", cluster,
                       found[name], library, way, n, sms, row, gpus, domains, imbalance, kept > 0)


ONE_CHANGE = {
    "cards half as fast": lambda c, m: setattr(c, "gbits", c.gbits // 2),
    "half the cards": lambda c, m: setattr(c, "nics", max(1, c.nics // 2)),
    "three times the latency": lambda c, m: setattr(c, "latency", 3 * c.latency),
    "oversubscribed switches above each domain": lambda c, m: (setattr(c, "levels", [c.domain]), setattr(c, "less", [3])),
    "domains twice as large": lambda c, m: (setattr(c, "domain", 2 * c.domain), setattr(c, "levels", []), setattr(c, "less", [])),
    "experts on half the ranks": lambda c, m: m.update(ep=m["ep"] // 2),
    "twice the multiprocessors": lambda c, m: m.update(sms=2 * m["sms"]),
    "groups limited": lambda c, m: m.update(kept=2),
    "cards twice as fast": lambda c, m: setattr(c, "gbits", 2 * c.gbits),
    "twice the cards": lambda c, m: setattr(c, "nics", 2 * c.nics),
    "uneven experts": lambda c, m: m.update(imbalance=1.5),
    "twice the tokens": lambda c, m: m.update(micro=2),
    "half of them dropped": lambda c, m: m.update(capacity=0.5),
}


def experts_as(cluster, m):
    """Model, settings and the exchanges of tokens by hand: us, from and to."""
    ep, kept, tokens = m["ep"], m["kept"], SEQUENCE * m["micro"]
    moe = {"num_moe_experts": 64, "moe_router_topk": m["topk"], "moe_ffn_hidden_size": 1024, "moe_router_num_groups": 8,
           "moe_router_group_topk": kept or 8}
    how = {"expert_model_parallel_size": ep, "global_batch_size": 64 * m["micro"], "moe_grouped_gemm": "true", "moe_router_dtype": "fp32",
           "moe_load_imbalance": m["imbalance"], "micro_batch_size": m["micro"]}
    how |= {"moe_expert_capacity_factor": m["capacity"]} if m["capacity"] else {}
    sent = m["capacity"] or 1
    if m["library"] == "alltoall":
        size = 2 * HIDDEN * tokens * m["topk"] * (m["capacity"] or m["imbalance"])
        return moe, how | {"moe_token_dispatcher_type": "alltoall"}, {
            w: all_to_all_us(cluster, ep, 1, size) for w in ("moe dispatch all-to-all", "moe combine all-to-all")}
    how |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": m["library"], "moe_flex_dispatcher_num_sms": m["sms"]}
    gpus = units(64, m["topk"], ep, 8, kept, sent=sent)
    nodes = units(64, m["topk"], ep // cluster.domain, 8, kept, sent=sent) if ep > cluster.domain else 1
    by_hand = {w: dispatcher_us(cluster, m["library"], way, ep, m["sms"], 2 * HIDDEN * tokens, gpus, nodes, m["imbalance"])
               for way, w in enumerate(("moe dispatch", "moe combine"))}
    return moe, how, {w: (us, us) for w, us in by_hand.items()}


def drawn_change(draw):
    """A cluster and mixture before and after one change, and its name."""
    of = {"ep": draw.choice([16, 32, 64]), "topk": 8, "sms": draw.choice([4, 8, 16]), "kept": 0, "imbalance": 1, "micro": 1,
          "capacity": None, "library": draw.choice(["alltoall", "deepep", "hybridep"])}
    before = Cluster(draw, 64, (1, 2, 3, 4) if of["library"] == "alltoall" else (1, 2, 4))  # libraries: as many ranks in every domain
    what = draw.choice([c for c in ONE_CHANGE if of["library"] != "alltoall" or "multiprocessors" not in c])
    after, to = copy.copy(before), dict(of)
    ONE_CHANGE[what](after, to)
    return what, (before, of), (after, to)


def spent_us(found):
    return sum(each.times * each.us for each in found.values())


def one_change(check, draw):
    """The change of every exchange of tokens, and of the step, whose hosts are fast and where nothing hides an exchange."""
    what, *both = drawn_change(draw)
    (before, of), (_, to) = both
    seen = []
    for cluster, m in both:
        moe, how, by_hand = experts_as(cluster, m)
        answer = cluster.simulate(moe, how, host_time_factor=0.1)
        seen.append((by_hand, exchanges(answer), answer["step_time_ms"]))
    (hand, was, step), (hand_to, now, step_to) = seen
    drawn = 0.02 * max(hand_to[w][1] for w in hand_to) if to["kept"] else 0
    for name in hand:
        title = f"{of['library']}, EP {of['ep']}, {of['sms']} SMs: {name}, {what}: change"
        check(title, before, now[name].us - was[name].us, hand_to[name][0] - hand[name][1] - drawn, hand_to[name][1] - hand[name][0] + drawn)
    if all(of[k] == to[k] for k in ("ep", "imbalance", "micro", "capacity")):  # else experts' products change, too
        check.step(f"{of['library']}, EP {of['ep']}: step, {what}", before, 1e3 * (step_to - step), spent_us(now) - spent_us(was), 1e3 * step)


def hidden_change(check, draw):
    """The same where exchanges of tokens run beside another microbatch's layers and those of gradients and parameters beside all."""
    what, *both = drawn_change(draw)
    (before, of), (_, to) = both
    if any(of[k] != to[k] for k in ("ep", "imbalance", "micro", "capacity", "sms")):
        return
    hides = {"overlap_moe_expert_parallel_comm": "true", "overlap_grad_reduce": "true", "overlap_param_gather": "true"}
    seen = []
    for cluster, m in both:
        moe, how, _ = experts_as(cluster, m)
        answer = cluster.simulate(moe, how | hides | {"global_batch_size": 4 * 64}, host_time_factor=0.1)
        seen.append((spent_us(exchanges(answer)), 1e3 * answer["step_time_ms"]))
    (was, step), (now, step_to) = seen
    if now < was:
        (was, step), (now, step_to) = (now, step_to), (was, step)
    check.hidden(f"{of['library']}, EP {of['ep']}: hidden, {what}", before, step_to - step, now - was, step)


def data_parallel(check, draw):
    cluster = Cluster(draw, draw.choice([32, 64, 128]))
    tp = draw.choice([1, 2, 4, 8])
    dp = cluster.gpus // tp
    how = {"tensor_model_parallel_size": tp, "global_batch_size": 128} | ({"sequence_parallel": "true"} if tp > 1 else {})
    found = exchanges(cluster.simulate({}, how))
    layer = HIDDEN * HEAD * (HEADS + 2 * GROUPS) // tp + HIDDEN * HEAD * HEADS // tp + 3 * HIDDEN * FFN // tp + 2 * HIDDEN
    vocabulary = -(-VOCABULARY // (128 * tp)) * 128
    parameters = LAYERS * layer + HIDDEN + 2 * vocabulary * HIDDEN
    for name, size in (("gradient reduction", 4), ("parameter all-gather", 2)):
        ring(check, f"{name} TP {tp}", cluster, found[name], dp, tp, size * parameters / found[name].times)


def transfers_us(cluster, pairs, size):
    """GPUs that send at once: those of a node that leave their domain share its cards, all below a switch its way up."""
    def leaving(unit):
        return collections.Counter(a // unit for a, b in pairs if a // unit != b // unit)

    def beyond(a, b):
        return a // cluster.domain != b // cluster.domain

    nodes = collections.Counter(a // cluster.node for a, b in pairs if beyond(a, b))
    if not nodes:
        return 0
    slowest = max(1, max(nodes.values()) / cluster.nics)
    for below, less in zip(cluster.levels, cluster.less):
        slowest = max([slowest] + [n * less / (below * cluster.nics / cluster.node) for n in leaving(below).values()])
    return size / cluster.card() / 1e3 * slowest + cluster.latency


def context_parallel(check, draw):
    cluster = Cluster(draw, 64)
    cp = draw.choice([8, 16, 32])
    held = SEQUENCE // cp
    how = {"context_parallel_size": cp, "global_batch_size": 64}
    found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "all_gather"}))
    ring(check, "k all-gather", cluster, found["attention.k all-gather"], cp, 1, 2 * SEQUENCE * GROUPS * HEAD)
    ring(check, "k reduce-scatter", cluster, found["attention.k gradient reduce-scatter"], cp, 1, 2 * SEQUENCE * GROUPS * HEAD)
    if cp <= GROUPS:
        found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "a2a"}))
        all_to_all(check, "q all-to-all", cluster, found["attention.q all-to-all"], cp, 1, 2 * held * HEADS * HEAD)
    found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "p2p"}))
    times, us, _ = found["attention.core forward key and value exchange"]
    size = 2 * 2 * held * GROUPS * HEAD
    floor = size / NVLINK / 1e3 if cp <= cluster.domain and cluster.domain % cp == 0 else 0
    floor = max(floor, transfers_us(cluster, [(g, g - g % cp + (g + 1) % cp) for g in range(64)], size))
    check(f"ring of CP {cp}", cluster, us, floor, 1.3 * floor + 30)
    if times != LAYERS * 64 // (64 // cp) * (cp - 1):
        check.failed += 1
        print(f"ring of CP {cp}: {times} exchanges")


def pipeline(check, draw):
    cluster = Cluster(draw, draw.choice([16, 32, 64]))
    stage = cluster.gpus // 2
    events = cluster.simulate({}, {"pipeline_model_parallel_size": 2, "global_batch_size": 2 * stage}, trace=True)["traceEvents"]
    us = min(e["dur"] for e in events if e.get("ph") == "X" and e["name"].startswith("send "))
    size = 2 * SEQUENCE * HIDDEN
    table = PROFILE["families"]["send_recv.nvlink"]["samples"]
    inside = next(row["time_us"] for row in table if row["bytes"] == size)
    by_hand = max(inside, transfers_us(cluster, [(gpu, gpu + stage) for gpu in range(stage)], size))
    return check("pipeline transfer", cluster, us, by_hand * 0.99, by_hand * 1.01)


def main():
    check, draw = Check(), random.Random(11)
    for _ in range(int(os.environ.get("DRAWS", "12"))):
        for part in (experts, one_change, hidden_change, data_parallel, context_parallel, pipeline):
            part(check, draw)
    print(f"{check.done} exchanges, {check.failed} off")
    return check.failed > 0


if __name__ == "__main__":
    sys.exit(main())
