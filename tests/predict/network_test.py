#!/usr/bin/env python3
"""Exchanges of drawn clusters by hand: bytes of every level, what the slowest of them takes, and simulate's answer.

    network_test.py PROGRAM PROFILES

Nothing is shared with the program but the rates that docs/network.md states. What NVLink carries is the profile's. An exchange may take no less than its slowest level and no more than that and its steps.
One thing is changed at a time, too: exchanges and the step move by what the hand says.
"""
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
HIDDEN, FFN, HEADS, GROUPS, HEAD, VOCABULARY, LAYERS, SEQUENCE = 4096, 14336, 32, 8, 128, 32000, 4, 8192
BASE = """scenario: 1
model: {{num_layers: 4, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8, seq_length: 8192,
  max_position_embeddings: 8192, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, make_vocab_size_divisible_by: 128{model}}}
settings: {{micro_batch_size: 1, bf16: true, use_distributed_optimizer: true, grad_reduce_in_fp32: true, gradient_accumulation_fusion: true,
  hidden_dropout: 0.0, attention_dropout: 0.0, bias_activation_fusion: true, apply_rope_fusion: true, optimizer: adam{settings}}}
environment: {{CUDA_DEVICE_MAX_CONNECTIONS: '1'}}
cluster: {{profile: h100-sxm, num_gpus: {gpus}, gpus_per_node: 8, nvlink_domain: {domain}, nics_per_node: {nics}, nic_gbits: {gbits},
  host_time_factor: {host_time_factor}, network: {{latency_us: {latency}, levels: {levels}, oversubscription: {less}}}}}
software: {{megatron_core: 0.19.0, transformer_engine: 2.20.2, torch: 2.11.0}}
"""


class Cluster:
    def __init__(self, draw, gpus):
        self.gpus = gpus
        self.domain = draw.choice([8, 8, 16, 32])
        self.nics = draw.choice([1, 2, 4, 8, 16])
        self.gbits = draw.choice([100, 200, 400, 800])
        self.latency = draw.choice([5, 14, 40])
        below = self.domain * draw.choice([1, 2])
        self.levels, self.less = draw.choice([([], []), ([below], [draw.choice([2, 4])]), ([below, below * 2], [2, 3])])

    def card(self):
        return self.gbits / 8 * 0.94

    def share(self):
        return self.card() * self.nics / 8

    def simulate(self, model, settings, trace=False, host_time_factor=1):
        text = BASE.format(model="".join(f", {k}: {v}" for k, v in model.items()),
                           settings="".join(f", {k}: {v}" for k, v in settings.items()),
                           host_time_factor=host_time_factor, **vars(self))
        answer = subprocess.run([PROGRAM, "simulate", "/dev/stdin", "--trace" if trace else "--json", "-"], input=text, text=True,
                                capture_output=True, env={**os.environ, "PIPEWRIGHT_PROFILES": PROFILES}, check=False)
        if answer.returncode != 0:
            raise SystemExit(f"{answer.stderr}\n{text}")
        return json.loads(answer.stdout)


def exchanges(answer, rank=0):
    """By name: how often, and us each."""
    return {c["what"]: (c["times"], 1e3 * c["busy_ms"] / c["times"]) for c in answer["ranks"][rank]["communication"]}


class Check:
    def __init__(self):
        self.failed = self.done = 0

    def __call__(self, what, cluster, us, least, most):
        self.done += 1
        if least - 0.001 * abs(least) <= us <= most + 0.001 * abs(most) + 2:  # us: of an exchange that meets another kernel
            return
        self.failed += 1
        print(f"{what}: {us:.1f} us, by hand {least:.1f} to {most:.1f}; {vars(cluster)}")


    def step(self, what, cluster, us, spent, whole):
        """A step grows by what its exchanges do, but for clocks: a chip that waits longer is cooler."""
        self.done += 1
        if abs(us - spent) <= 0.03 * abs(spent) + 0.004 * whole:
            return
        self.failed += 1
        print(f"{what}: {us:.0f} us, exchanges {spent:.0f}, of a step of {whole:.0f}; {vars(cluster)}")


# ---- bytes by level. Group of n ranks, `stride` GPUs apart, m of them in a domain.

def together(cluster, n, stride, gpus=None):
    return max(1, min(n, (gpus or cluster.domain) // stride))


def levels_us(cluster, n, stride, card_bytes, beyond, rate=1.0):
    """Of cards and switches: the slowest. `beyond(k)`: bytes that leave a switch with k of the ranks below it."""
    slowest = card_bytes / (rate * cluster.share())
    for below, less in zip(cluster.levels, cluster.less):
        k = together(cluster, n, stride, below)
        if k < n:
            slowest = max(slowest, beyond(k) * less / cluster.share())
    return slowest / 1e3  # B / (GB/s) = ns


def ring(check, what, cluster, us, n, stride, size):
    m = together(cluster, n, stride)
    d = n // m
    moved = size * (n - 1) / n
    nvlink = moved / NVLINK / 1e3 / 1.02 if m > 1 else 0  # no ring passes more than a link carries
    if d == 1:
        return check(what, cluster, us, nvlink, 1.6 * nvlink + 3.5 * n + 30)
    floor = max(nvlink, levels_us(cluster, n, stride, moved * d / n, lambda k: moved * math.ceil(n / k) / n))
    steps = 8.4 + (n - d) * 3.4 + (d - 1) * max(3.4, cluster.latency)  # NCCL's Simple protocol
    return check(what, cluster, us, floor, max(floor, 1.2 * nvlink) + max(steps, 3.5 * n))


def all_to_all_us(cluster, n, stride, size):
    m = together(cluster, n, stride)
    if m == n:
        floor = size * (n - 1) / n / NVLINK / 1e3
        return floor / 1.1, 1.35 * floor + 30
    cards = levels_us(cluster, n, stride, size * (n - m) / n, lambda k: size * (n - max(k, m)) / n)
    nvlink = (size * (n - m) / n * (m - 1) / m + size * (m - 1) / n) / NVLINK / 1e3  # relayed to the right card, and own domain's
    steps = 8.4 + math.ceil(n / 8) * cluster.latency
    return max(cards + steps, nvlink / 1.1), max(cards + steps, 1.35 * nvlink + 30)


def all_to_all(check, what, cluster, us, n, stride, size):
    check(what, cluster, us, *all_to_all_us(cluster, n, stride, size))


def units(experts, topk, u, groups=1, kept=0, draws=4000):
    """Distinct of u units that hold a token's experts."""
    if not kept:
        return u * (1 - math.comb(experts - experts // u, topk) / math.comb(experts, topk))
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


def dispatcher(check, what, cluster, us, library, way, n, sms, tokens, gpus, domains, imbalance, drawn):
    by_hand = dispatcher_us(cluster, library, way, n, sms, 2 * HIDDEN * tokens, gpus, domains, imbalance)
    known = 0.02 if drawn else 0.001  # means over some thousand tokens, here and there
    check(what, cluster, us, by_hand * (1 - known), by_hand * (1 + known))


def experts(check, draw):
    cluster = Cluster(draw, 64)
    ep, topk, imbalance = draw.choice([8, 16, 32, 64]), draw.choice([2, 4, 8]), draw.choice([1, 1, 1.3, 1.8])
    moe = {"num_moe_experts": 64, "moe_router_topk": topk, "moe_ffn_hidden_size": 1024}
    groups = draw.choice([1, 1, 8])
    kept = 4 if groups > 1 else 0
    if kept:
        topk = max(topk, 4)
        moe |= {"moe_router_num_groups": groups, "moe_router_group_topk": kept, "moe_router_topk": topk}
    how = {"expert_model_parallel_size": ep, "global_batch_size": 64, "moe_grouped_gemm": "true", "moe_load_imbalance": imbalance}
    row = 2 * HIDDEN * SEQUENCE
    found = exchanges(cluster.simulate(moe, how | {"moe_token_dispatcher_type": "alltoall"}))
    for name in ("moe dispatch all-to-all", "moe combine all-to-all", "moe dispatch all-to-all in backward"):
        all_to_all(check, name, cluster, found[name][1], ep, 1, row * topk * imbalance)
    found = exchanges(cluster.simulate(moe, how | {"moe_token_dispatcher_type": "allgather"}))
    for name in ("moe dispatch all-gather", "moe combine reduce-scatter", "moe combine all-gather in backward"):
        ring(check, name, cluster, found[name][1], ep, 1, row * ep)
    for library in RATES:
        sms = draw.choice([4, 8, 16, 20, 32])
        found = exchanges(cluster.simulate(moe, how | {
            "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": library, "moe_router_dtype": "fp32",
            "moe_flex_dispatcher_num_sms": sms}))
        gpus = units(64, topk, ep, groups, kept)
        domains = units(64, topk, max(1, ep // cluster.domain), groups, kept) if ep > cluster.domain else 1
        for name, way in (("moe dispatch", 0), ("moe combine", 1), ("moe dispatch in backward", 0), ("moe combine in backward", 1)):
            dispatcher(check, f"{library} {name}, {sms} SMs, EP {ep}, top-{topk} of {groups} groups, imbalance {imbalance}", cluster,
                       found[name][1], library, way, ep, sms, SEQUENCE, gpus, domains, imbalance, kept > 0)


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
}


def one_change(check, draw):
    """The change of every exchange of tokens, and of the step, whose hosts are fast and where nothing hides an exchange."""
    before = Cluster(draw, 64)
    of = {"ep": draw.choice([16, 32, 64]), "topk": 8, "sms": draw.choice([4, 8, 16]), "kept": 0, "imbalance": 1,
          "library": draw.choice(["alltoall", "deepep", "hybridep"])}
    what = draw.choice([c for c in ONE_CHANGE if of["library"] != "alltoall" or "multiprocessors" not in c])
    after, to = copy.copy(before), dict(of)
    ONE_CHANGE[what](after, to)
    seen = []
    for cluster, m in ((before, of), (after, to)):
        ep, kept = m["ep"], m["kept"]
        moe = {"num_moe_experts": 64, "moe_router_topk": m["topk"], "moe_ffn_hidden_size": 1024, "moe_router_num_groups": 8}
        moe |= {"moe_router_group_topk": kept or 8}
        how = {"expert_model_parallel_size": ep, "global_batch_size": 64, "moe_grouped_gemm": "true", "moe_router_dtype": "fp32",
               "moe_load_imbalance": m["imbalance"]}
        if m["library"] == "alltoall":
            how |= {"moe_token_dispatcher_type": "alltoall"}
            by_hand = {w: all_to_all_us(cluster, ep, 1, 2 * HIDDEN * SEQUENCE * m["topk"] * m["imbalance"])
                       for w in ("moe dispatch all-to-all", "moe combine all-to-all")}
        else:
            how |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": m["library"],
                    "moe_flex_dispatcher_num_sms": m["sms"]}
            gpus = units(64, m["topk"], ep, 8, kept)
            nodes = units(64, m["topk"], ep // cluster.domain, 8, kept) if ep > cluster.domain else 1
            by_hand = {w: 2 * (dispatcher_us(cluster, m["library"], way, ep, m["sms"], 2 * HIDDEN * SEQUENCE, gpus, nodes, m["imbalance"]),)
                       for way, w in enumerate(("moe dispatch", "moe combine"))}
        answer = cluster.simulate(moe, how, host_time_factor=0.1)
        seen.append((by_hand, exchanges(answer), answer["step_time_ms"]))
    (hand, was, step), (hand_to, now, step_to) = seen
    drawn = 0.02 * max(hand_to[w][1] for w in hand_to) if to["kept"] else 0
    for name in hand:
        title = f"{of['library']}, EP {of['ep']}, {of['sms']} SMs: {name}, {what}: change"
        check(title, before, now[name][1] - was[name][1], hand_to[name][0] - hand[name][1] - drawn, hand_to[name][1] - hand[name][0] + drawn)
    spent = sum(times * us for times, us in now.values()) - sum(times * us for times, us in was.values())
    if of["ep"] == to["ep"] and of["imbalance"] == to["imbalance"]:  # else experts' products change, too
        check.step(f"{of['library']}, EP {of['ep']}: step, {what}", before, 1e3 * (step_to - step), spent, 1e3 * step)


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
        times, us = found[name]
        ring(check, f"{name} TP {tp}", cluster, us, dp, tp, size * parameters / times)


def context_parallel(check, draw):
    cluster = Cluster(draw, 64)
    cp = draw.choice([8, 16, 32])
    held = SEQUENCE // cp
    how = {"context_parallel_size": cp, "global_batch_size": 64}
    found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "all_gather"}))
    ring(check, "k all-gather", cluster, found["attention.k all-gather"][1], cp, 1, 2 * SEQUENCE * GROUPS * HEAD)
    ring(check, "k reduce-scatter", cluster, found["attention.k gradient reduce-scatter"][1], cp, 1, 2 * SEQUENCE * GROUPS * HEAD)
    if cp <= GROUPS:
        found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "a2a"}))
        all_to_all(check, "q all-to-all", cluster, found["attention.q all-to-all"][1], cp, 1, 2 * held * HEADS * HEAD)
    found = exchanges(cluster.simulate({}, how | {"cp_comm_type": "p2p"}))
    times, us = found["attention.core forward key and value exchange"]
    size = 2 * 2 * held * GROUPS * HEAD
    if cp > cluster.domain:
        upwards = [1] + [less * 8 / cluster.nics / below for below, less in zip(cluster.levels, cluster.less) if below < cp]
        floor = size / cluster.card() / 1e3 * max(upwards) + cluster.latency
    else:
        floor = size / NVLINK / 1e3
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
    if stage < cluster.domain:
        return check("pipeline transfer", cluster, us, inside * 0.99, inside * 1.01)
    slowest = max(1, 8 / cluster.nics)  # GPUs of a node that share a card
    for below, less in zip(cluster.levels, cluster.less):
        if stage % below == 0 or stage < below and cluster.gpus > below:
            slowest = max(slowest, 8 / cluster.nics * less * min(1, stage / below))
    by_hand = max(inside, size / cluster.card() / 1e3 * slowest + cluster.latency)
    return check("pipeline transfer", cluster, us, by_hand * 0.99, by_hand * 1.01)


def main():
    check, draw = Check(), random.Random(11)
    for _ in range(int(os.environ.get("DRAWS", "12"))):
        for part in (experts, one_change, data_parallel, context_parallel, pipeline):
            part(check, draw)
    print(f"{check.done} exchanges, {check.failed} off")
    return check.failed > 0


if __name__ == "__main__":
    sys.exit(main())
