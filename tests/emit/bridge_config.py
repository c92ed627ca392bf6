#!/usr/bin/env python3
"""Hands emitted overrides to Megatron Bridge's own configuration and writes data/overrides.txt, the lines that it took.

    bridge_config.py --test build/tests/emit_tests --bridge CLONE --megatron CLONE [--python PYTHON]

CLONE: git clones of NVIDIA-NeMo/Megatron-Bridge, with COMMIT, and of NVIDIA/Megatron-LM, with the commit that Bridge pins.
PYTHON: as parsers.py needs it, and omegaconf, transformers (5.8), hydra-core, datasets, pillow and tensorboard. Every line is what a user does with it: a
container with GPTModelProvider (MLAModelProvider for latent attention, HybridModelProvider for hybrids) and Bridge's own defaults, the statements below it,
then runtime_config_update(): environment, mixed precision, overlap, validate(). What needs a GPU is stood in for and no
more: Transformer Engine, the compute capability. If a line is refused, overrides.txt stays as it is.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import parsers

HERE = pathlib.Path(__file__).resolve().parent
COMMIT = "067f987df"  # 0.7.0
# Fields of pull request 4268 of Megatron-LM, of Gemma 2's provider, and of a dataset that packs, as the comment asks for.
ELSEWHERE = ("overlap_p2p_wgrad_delayed_layer_number", "overlap_p2p_with_transformer_layer_wgrad",
             "overlap_p2p_backward_on_comm_stream", "attn_logit_softcapping", "final_logit_softcapping",
             "enable_offline_packing", "offline_packing_specs")


def container(latent, hybrid, gemma3):
    from megatron.bridge.models.gemma.gemma3_provider import Gemma3ModelProvider
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training import config as c
    from megatron.bridge.training.tokenizers.config import TokenizerConfig

    provider = (MLAModelProvider if latent else HybridModelProvider if hybrid else Gemma3ModelProvider if gemma3
                else GPTModelProvider)
    return c.ConfigContainer(
        train=c.TrainingConfig(train_iters=10, global_batch_size=8, micro_batch_size=1),
        model=provider(num_layers=2, hidden_size=128, num_attention_heads=4, seq_length=128),
        optimizer=c.OptimizerConfig(lr=1e-4, use_distributed_optimizer=True),
        scheduler=c.SchedulerConfig(lr_decay_iters=10, lr_warmup_iters=0),
        dataset=c.MockGPTDatasetConfig(random_seed=1, reset_attention_mask=False, reset_position_ids=False,
                                       eod_mask_loss=False, seq_length=128),
        logger=c.LoggerConfig(),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=1000),
        checkpoint=c.CheckpointConfig(save="/tmp/x"),
        ddp=c.DistributedDataParallelConfig(use_distributed_optimizer=True))


class FusedAdam:
    """Its parameters are what Megatron asks Transformer Engine 2.20's for."""

    def __init__(self, params=None, lr=1e-3, master_weights=False, use_decoupled_grad=False,
                 store_param_remainders=False, exp_avg_dtype=None, exp_avg_sq_dtype=None, master_weight_dtype=None):
        pass


def require_field(cfg, line):
    """A dataclass takes any attribute: what it is not asked for would be lost silently."""
    path = line.split(" = ")[0].split("[")[0].split(".")
    if path[0] != "cfg":
        return
    for name in path[1:]:
        if not hasattr(cfg, name) and not name.startswith(ELSEWHERE):
            raise AttributeError(f"{type(cfg).__name__} has no {name}")
        cfg = getattr(cfg, name, None)


def try_all(trees, lines):
    """In a process of its own: the refusal of every line, or None."""
    import contextlib
    import io
    import logging
    import types
    import typing
    import warnings

    warnings.simplefilter("ignore")
    sys.path[:0] = trees
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda f: f
    import torch

    torch.cuda.get_device_capability = lambda *a: (9, 0)
    torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(
        major=9, minor=0, name="NVIDIA H100", total_memory=85 << 30, multi_processor_count=132)
    parsers.stand_in("transformer_engine")
    import transformer_engine.pytorch.optimizers

    transformer_engine.pytorch.optimizers.FusedAdam = FusedAdam
    import megatron

    megatron.__path__ = [tree + "/megatron" for tree in trees]
    logging.disable(logging.WARNING)
    from megatron.bridge.training.config import runtime_config_update

    clean = dict(os.environ)
    verdicts = []
    for items in lines:
        text = [item for item in items if not item.startswith("gpus=")]
        world = next(item for item in items if item.startswith("gpus="))[5:]
        # Imports, then objects, then their fields: as the tool prints them.
        text.sort(key=lambda s: (not s.startswith(("from", "import")), s.split(" = ")[0].split("[")[0].count(".")))
        os.environ.clear()
        os.environ.update(clean, WORLD_SIZE=world, RANK="0", LOCAL_RANK="0")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                cfg = container(*(any(name in s for s in text)
                                  for name in ("multi_latent_attention = True", "hybrid_layer_pattern",
                                               "interleaved_attn_pattern")))
                names = {"cfg": cfg}
                for line in text:
                    require_field(cfg, line)
                    exec(line, names)
                if cfg.peft is not None:
                    cfg.checkpoint.pretrained_checkpoint = str(HERE)  # as the override's comment asks
                runtime_config_update(cfg)
            verdicts.append(None)
        except Exception as error:  # whatever Bridge raises is its refusal
            verdicts.append(parsers.refusal(error))
    return verdicts


def checkout(clone, commit, paths, tree):
    os.mkdir(tree)
    archive = subprocess.run(["git", "-C", clone, "archive", commit, *paths], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", required=True, help="the program emit_tests")
    parser.add_argument("--bridge", required=True, help="git clone of NVIDIA-NeMo/Megatron-Bridge")
    parser.add_argument("--megatron", required=True, help="git clone of NVIDIA/Megatron-LM")
    parser.add_argument("--python", default=sys.executable, help="Python with torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        emitted = os.path.join(folder, "emitted.txt")
        subprocess.run([options.test, "--source-file=*/emit/overrides_test.cpp"], env={**os.environ, "PIPEWRIGHT_EMITTED": emitted}, stdout=subprocess.DEVNULL)
        text = pathlib.Path(emitted).read_text()
        (_, lines), = parsers.cases(text).items()
        pinned = subprocess.run(["git", "-C", options.bridge, "rev-parse", COMMIT + ":3rdparty/Megatron-LM"], check=True,
                                stdout=subprocess.PIPE, text=True).stdout.strip()
        trees = [os.path.join(folder, name) for name in ("bridge", "megatron")]
        checkout(options.bridge, COMMIT, ["src"], trees[0])
        checkout(options.megatron, pinned, ["megatron"], trees[1])
        trees[0] += "/src"
        work = os.path.join(folder, "work.json")
        pathlib.Path(work).write_text(json.dumps([items for _, items in lines]))
        child = subprocess.run([options.python, __file__, "--try", work, *trees], check=True, stdout=subprocess.PIPE)
        verdicts = json.loads(child.stdout.splitlines()[-1])
        for (line, _), verdict in zip(lines, verdicts):
            if verdict:
                print(f"{line}\n    {verdict}")
        refused = sum(v is not None for v in verdicts)
        print(f"{len(lines)} lines, {refused} refused", flush=True)
    if not refused:
        header = ["# What bridge_config.py had Megatron Bridge's own runtime_config_update() take:",
                  f"# 0.7.0 ({COMMIT}, with Megatron Core {pinned[:10]}): {len(lines)} sets of overrides"]
        (HERE / "data/overrides.txt").write_text("\n".join(header) + "\n" + text)
    return 1 if refused else 0


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--try":
        print("\n" + json.dumps(try_all(sys.argv[3:], json.loads(pathlib.Path(sys.argv[2]).read_text()))))
    else:
        sys.exit(main())
