"""Times what capture has no kernel of its own for: the routers of Megatron Core, the maps of Transformer Engine that say
where rows go, the copies by them and its loss, as their own code runs them. Writes families of a profile, and the launches of each
router.

usage: PYTHONPATH=MEGATRON_TREE python3 kernels/megatron_probe.py OUT.json [SECONDS [PART...]]
PART: maps, permute, losses, routers (default: all)

A time is the sum of the durations of the kernels of one call (CUPTI, through torch.profiler), the median of the calls.
Tokens are routed by random logits; the sort map is of even chunks.
"""
import collections, json, os, statistics, sys, time

import torch
from torch.profiler import ProfilerActivity, profile

TOKENS = [1024, 2048, 4096, 8192, 16384]
EXPERTS = [8, 16, 32, 64, 128, 256]
CALLS = 6


def top_k(experts):
    return 2 if experts <= 8 else 8 if experts > 32 else 4


# What a router is asked: scores, groups, one fused kernel; each with and without the auxiliary loss.
KINDS = {
    "topk": {},
    "sigmoid": dict(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                    moe_router_topk_scaling_factor=2.5),
    "grouped": dict(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                    moe_router_topk_scaling_factor=2.5, moe_router_num_groups=8, moe_router_group_topk=4),
    "fused": dict(moe_router_fusion=True),
    "fused_sigmoid": dict(moe_router_fusion=True, moe_router_score_function="sigmoid",
                          moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5),
}


def kernels_of(call):
    """Kernels of one `call`, the median of their summed durations in us, and half the width of its middle two thirds over it."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    events = sorted((e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA),
                    key=lambda e: e.time_range.start)
    times = [e.time_range.elapsed_us() for e in events]
    count = len(times) // CALLS
    if count * CALLS != len(times):
        raise RuntimeError(f"{len(times)} kernels in {CALLS} calls")
    sums = sorted(sum(times[i * count:(i + 1) * count]) for i in range(CALLS))
    median = statistics.median(sums)
    return count, median, (sums[-2] - sums[1]) / 2 / median


def routers(families, launches, end):
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.process_groups_config import ProcessGroupCollection

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    parallel_state.initialize_model_parallel()
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    model_parallel_cuda_manual_seed(1)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    for tokens in sorted(TOKENS, key=lambda t: abs(t - 4096)):
        for kind, extra in KINDS.items():
            for aux in (False, True):
                for experts in EXPERTS:
                    if time.time() > end:
                        return
                    if kind == "grouped" and experts < 16:
                        continue
                    config = TransformerConfig(
                        num_layers=1, hidden_size=1024, num_attention_heads=8, num_moe_experts=experts,
                        moe_router_topk=top_k(experts), moe_aux_loss_coeff=1e-3 if aux else 0.0,
                        moe_router_load_balancing_type="aux_loss" if aux else "none", moe_router_dtype="fp32",
                        params_dtype=torch.bfloat16, bf16=True, add_bias_linear=False, **extra)
                    router = TopKRouter(config, pg_collection=groups).cuda()
                    if hasattr(router, "set_layer_number"):
                        router.set_layer_number(1)
                    router.train()
                    router._maintain_float32_expert_bias()
                    logits = torch.randn(tokens, 1, experts, device="cuda", requires_grad=True)
                    gradient = torch.randn(tokens, experts, device="cuda")
                    result = []

                    def forward():
                        probs, _ = router.routing(logits)
                        result[:] = [probs]

                    def both():
                        forward()
                        torch.autograd.grad(result[0], logits, gradient)

                    name = f"moe.router.{kind}" + ("_aux" if aux else "")
                    ahead, forward_us, forward_spread = kernels_of(forward)
                    whole, both_us, spread = kernels_of(both)
                    families[name + ".forward"].append([[tokens, experts], forward_us, forward_spread])
                    families[name + ".backward"].append([[tokens, experts], both_us - forward_us, spread])
                    launches[name].add((experts, ahead, whole - ahead))


def sort_maps(families):
    from transformer_engine.pytorch.triton.permutation import make_chunk_sort_map
    for rows in [4096, 8192, 16384, 32768, 65536, 131072]:
        for splits in [2, 8, 32, 64, 128, 256, 512]:
            sizes = torch.full((splits,), rows // splits, dtype=torch.int64, device="cuda")
            order = torch.randperm(splits, device="cuda")
            count, us, spread = kernels_of(lambda: make_chunk_sort_map(sizes, order, rows, splits))
            assert count == 1, count
            families["moe.sort_map"].append([[rows, splits], us, spread])


def mapped(tokens, experts, topk):
    chosen = torch.rand(tokens, experts, device="cuda").topk(topk, 1).indices
    return torch.zeros(tokens, experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)


def row_id_maps(families):
    from transformer_engine.pytorch.triton.permutation import make_row_id_map
    for tokens in [1024, 2048, 4096, 8192, 16384, 32768, 65536]:
        for experts in [2, 4, 8, 16, 32, 64, 128, 256, 512]:
            if tokens * experts > 1 << 23:
                continue
            routing = mapped(tokens, experts, min(4, experts))
            count, us, spread = kernels_of(lambda: make_row_id_map(routing, tokens, experts))
            assert count == 3, count
            families["moe.row_id_map"].append([[tokens, experts], us, spread])


def permutes(families):
    """Of 64 experts; inputs by turns, of more than the L2 cache holds."""
    from transformer_engine.pytorch.triton.permutation import make_row_id_map, permute_with_mask_map
    experts = 64
    for tokens in [1024, 2048, 4096, 8192, 16384, 32768]:
        for hidden in [2048, 2880, 4096, 7168]:
            turns = max(2, min(12, 200_000_000 // (2 * tokens * hidden) + 1))
            inputs = [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(turns)]
            probs = torch.rand(tokens, experts, device="cuda")
            for topk in [1, 2, 4, 6, 8]:
                rows, turn = tokens * topk, iter(range(1 << 30))
                ids = make_row_id_map(mapped(tokens, experts, topk), tokens, experts)
                count, us, spread = kernels_of(lambda: permute_with_mask_map(
                    inputs[next(turn) % turns], ids, probs, None, None, tokens, experts, rows, hidden, 0))
                assert count == 1, count
                families["moe.permute.forward"].append([[tokens, hidden, topk], us, spread])


def losses(families):
    """Logits of two turns, each larger than the L2 cache. In the families of this version of Transformer Engine."""
    import transformer_engine
    from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy
    version = tuple(int(part) for part in transformer_engine.__version__.split(".")[:2])
    variant = "" if version < (2, 18) else ".fp32" if version < (2, 20) else ".copy"
    for tokens in [1024, 2048, 4096, 8192, 16384]:
        for vocab in [16000, 16032, 19008, 25344, 32000, 32064, 50304, 64128, 75968, 100352, 128256, 151936, 201088, 262144]:
            if tokens * vocab > 3_300_000_000:
                continue
            turns = [torch.randn(tokens, 1, vocab, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            target, gradient = torch.randint(0, vocab, (tokens, 1), device="cuda"), torch.rand(tokens, 1, device="cuda")
            turn = iter(range(1 << 30))

            def forward():
                logits = turns[next(turn) % 2].detach().requires_grad_(True)
                return logits, parallel_cross_entropy(logits, target, 0.0, False, None)

            def both():
                logits, loss = forward()
                torch.autograd.grad(loss, logits, gradient)
            _, us, spread = kernels_of(forward)
            _, of_both, spread_of_both = kernels_of(both)
            families["cross_entropy.te.forward" + variant].append([[tokens, vocab], us, spread])
            families["cross_entropy.te.backward" + variant].append([[tokens, vocab], of_both - us, spread_of_both])


def write(path, families):
    import datetime
    import transformer_engine

    named = {"moe.sort_map": ["rows", "splits"], "moe.permute.forward": ["tokens", "hidden", "topk"]}
    axes = lambda family: named.get(family, ["tokens", "vocab" if family.startswith("cross_entropy.") else "experts"])
    device = torch.cuda.get_device_properties(0)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    profile = {
        "profile": 1, "name": "megatron-probe", "device": device.name, "origin": "measured",
        "memory_bytes": device.total_memory,
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "transformer_engine": transformer_engine.__version__},
        "provenance": [f"kernels/megatron_probe.py: routers of Megatron Core, maps, copies of rows and losses of Transformer Engine ({when}, 1 GPU)"],
        "families": {family: {"samples": [dict(zip(axes(family), dims), time_us=round(us, 3), spread=round(spread, 5),
                                               count=CALLS) for dims, us, spread in rows]}
                     for family, rows in families.items()}}
    with open(path, "w") as out:
        json.dump(profile, out, indent=1)


def main():
    end = time.time() + (float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
    families, launches = collections.defaultdict(list), collections.defaultdict(set)
    parts = {"maps": lambda: (sort_maps(families), row_id_maps(families)), "permute": lambda: permutes(families),
             "losses": lambda: losses(families),
             "routers": lambda: routers(families, launches, end)}
    for name in sys.argv[3:] or parts:
        if name not in parts:
            sys.exit(f"no part {name}; there are {', '.join(parts)}")
        try:
            parts[name]()
        except Exception as e:
            import traceback
            traceback.print_exc()
    write(sys.argv[1], families)
    for name, seen in launches.items():
        print(name, sorted({(a, b) for _, a, b in seen}))


if __name__ == "__main__":
    main()
