#!/usr/bin/env python3
"""Exchanges of drawn clusters by hand: bytes of every level, what the slowest of them takes, and simulate's answer.

    network_test.py PROGRAM PROFILES

Nothing is shared with the program but the rates that docs/network.md states. What NVLink carries is the profile's. An exchange may take no less than its slowest level and no more than that and its steps.
"""
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
  network: {{latency_us: {latency}, levels: {levels}, oversubscription: {less}}}}}
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

    def simulate(self, model, settings, trace=False):
        text = BASE.format(model="".join(f", {k}: {v}" for k, v in model.items()),
                           settings="".join(f", {k}: {v}" for k, v in settings.items()), **vars(self))
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
        if least * 0.999 <= us <= most * 1.001 + 2:  # us: of an exchange that meets another kernel
            return
        self.failed += 1
        print(f"{what}: {us:.1f} us, by hand {least:.1f} to {most:.1f}; {vars(cluster)}")


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


def all_to_all(check, what, cluster, us, n, stride, size):
    m = together(cluster, n, stride)
    if m == n:
        floor = size * (n - 1) / n / NVLINK / 1e3
        return check(what, cluster, us, floor / 1.1, 1.35 * floor + 30)
    cards = levels_us(cluster, n, stride, size * (n - m) / n, lambda k: size * (n - max(k, m)) / n)
    nvlink = (size * (n - m) / n * (m - 1) / m + size * (m - 1) / n) / NVLINK / 1e3  # relayed to the right card, and own domain's
    steps = 8.4 + math.ceil(n / 8) * cluster.latency
    return check(what, cluster, us, max(cards + steps, nvlink / 1.1), max(cards + steps, 1.35 * nvlink + 30))


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


# By library: GB/s an SM (dispatch, combine) between nodes and in one domain, shares of NVLink between and in one, of the card, us to start.
RATES = {"deepep": ((11.8, 9.2), (18.8, 18.8), (0.76, 0.76), (0.76, 0.76), 0.966, 72),
         "hybridep": ((36.7, 42.9), (45.9, 42.9), (0.58, 0.51), (0.87, 0.80), 0.93, 0)}


def dispatcher(check, what, cluster, us, library, way, n, sms, tokens, gpus, domains, imbalance, drawn):
    m = together(cluster, n, 1)
    d = n // m
    between, alone, link, link_alone, card, start = RATES[library]
    row = 2 * HIDDEN * tokens
    busiest = min(imbalance, n / gpus)  # no rank receives more than all tokens
    slowest = row * gpus * busiest / ((between if d > 1 else alone)[way] * sms) / 1e3
    slowest = max(slowest, row * gpus * (m - 1) / m * busiest / ((link if d > 1 else link_alone)[way] * NVLINK) / 1e3)
    if d > 1:
        sent = row * domains * (d - 1) / d * (1 + (busiest - 1) / m)
        slowest = max(slowest, levels_us(cluster, n, 1, sent, lambda k: sent * (d - max(1, k / m)) / (d - 1), card))
    by_hand = slowest + start + (cluster.latency if d > 1 else 0)
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
        for part in (experts, data_parallel, context_parallel, pipeline):
            part(check, draw)
    print(f"{check.done} exchanges, {check.failed} off")
    return check.failed > 0


if __name__ == "__main__":
    sys.exit(main())
