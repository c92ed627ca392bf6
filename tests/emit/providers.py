#!/usr/bin/env python3
"""A config.json and what Megatron Bridge makes of it are one model: data/providers.tar.xz.

    providers.py PIPEWRIGHT                                           compare both ways to read each
    providers.py --dump FOLDER --bridge TREE --megatron TREE --configs FOLDER    NAME.json beside NAME.yaml

The archive holds NAME.json, a model's config.json, and NAME.yaml: what ConfigContainer.to_yaml() wrote of the provider
that AutoBridge (Bridge 067f987df) made of it, as recipes.py has it. What is compared is the model, layer by layer.
NAME_KEY_none.json: without that key, for which the class has a default.
"""
import argparse
import contextlib
import io
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHIVE = HERE / "data/providers.tar.xz"
# What only says how positions are counted or a vocabulary is filled up, and what latent attention does not read.
ELSEWHERE = {"max_position_embeddings", "make_vocab_size_divisible_by", "mtp_loss_scaling_factor", "softmax_scale",
             "seq_len_interpolation_factor"}
YARN = {"mscale": 1.0, "mscale_all_dim": 0.0, "rotary_scaling_factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096}  # MLATransformerConfig's
LATENT = {"num_query_groups", "kv_channels"}
EXPERTS = {"num_moe_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_latent_size"}
# What Bridge's class has and cannot build: ministral3_provider.py looks for llama_4_scaling_beta, which Mistral Small
# 3.1's config.json lacks (KeyError); predicted is Mistral Small 3 as MistralSmall3ModelProvider builds it.
NOT_BUILT = {"mistral-small-3.1": {"scale_queries_by_position"}}


def layers(model, name, last_of):
    """A frequency as Megatron reads it: one number, every n-th layer is other; or a number a layer."""
    freq, count = model.get(name), model["num_layers"]
    if freq is None:
        return None
    freq = freq if isinstance(freq, list) else [freq]
    return freq if len(freq) > 1 else [last_of if (layer + 1) % freq[0] == 0 else 1 - last_of for layer in range(count)]


def normal(model):
    """The model's fields without what does not count in it, defaults filled in."""
    m = {name: value for name, value in model.items() if name not in ELSEWHERE}
    for name, last_of in (("window_attn_skip_freq", 0), ("linear_attention_freq", 0), ("no_rope_freq", 1)):
        m[name] = layers(model, name, last_of)
    m["moe_layer_freq"] = layers(model, "moe_layer_freq", 1) or [1] * model["num_layers"]
    if m.get("multi_latent_attention"):
        m = {name: value for name, value in m.items() if name not in LATENT}
        m.update({name: float(m.get(name, value)) for name, value in YARN.items()})
        if m["rotary_scaling_factor"] == 1:  # yarn_rotary_pos_embedding.py: neither counts
            m.update(mscale=None, mscale_all_dim=None)
    else:
        m.setdefault("kv_channels", model["hidden_size"] // model["num_attention_heads"])
        m.setdefault("num_query_groups", model["num_attention_heads"])
    m["position_embedding_type"] = {"yarn": "rope", "mrope": "rope"}.get(*[m["position_embedding_type"]] * 2)
    pattern = m.get("hybrid_layer_pattern")
    if not m.get("num_moe_experts") or (pattern and "E" not in pattern):  # fields of experts that no layer has
        m = {name: value for name, value in m.items() if name not in EXPERTS and not name.startswith("moe_")}
    elif pattern or (0 not in m["moe_layer_freq"]):
        m.pop("ffn_hidden_size", None)
    if m.get("moe_router_score_function") == "sigmoid":
        m.pop("moe_router_pre_softmax", None)
    return {name: value for name, value in m.items() if value not in (None, 0, False, [])}


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def read(pipewright, arguments):
    """The model's section of the scenario that comes of it, or the error."""
    done = subprocess.run([pipewright, "convert", *arguments, "--gpus", "8", "--profile", "h100-sxm", "--out", "-"],
                          capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    def section(name):
        lines = itertools.takewhile(lambda line: line.startswith("  "), done.stdout.split(f"\n{name}:\n")[1].splitlines())
        return {name.strip(): value_of(value) for name, value in (line.split(": ", 1) for line in lines if ": " in line)}

    settings = section("settings")
    losses = zip(*(value if isinstance(value, list) else [value] for value in (
        settings.get("moe_router_load_balancing_type", "aux_loss"), settings.get("moe_aux_loss_coeff", 0.0))))
    losses = [(each.strip("[]"), weight) for each, weight in losses if each.strip("[]").endswith("aux_loss") and weight]
    return {**section("model"), "moe_aux_losses": losses}


def compare(options):
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
        for config in sorted(pathlib.Path(folder).glob("*.json")):
            count += 1
            one = read(options.pipewright, ["--hf", config, "--set", "seq_length=4096", "--set", "global_batch_size=8"])
            other = read(options.pipewright, [config.with_suffix(".yaml")])
            if isinstance(one, str) or isinstance(other, str):
                differences = [str(each)[:200] for each in (one, other) if isinstance(each, str)]
            else:
                one, other = normal(one), normal(other)
                differences = [f"{name}: config.json {one.get(name)}, Bridge {other.get(name)}"
                               for name in sorted({*one, *other} - NOT_BUILT.get(config.stem, set()))
                               if one.get(name) != other.get(name)]
            wrong += bool(differences)
            for each in differences:
                print(config.stem, each)
    print(f"{count} models, {wrong} other than Bridge's")
    return 1 if wrong or not count else 0


def dump(options):
    import recipes
    recipes.stand_in_for_gpu(options)
    from megatron.bridge import AutoBridge
    from megatron.bridge.training import config as c
    from megatron.bridge.training.tokenizers.config import TokenizerConfig
    from transformers import AutoConfig, PretrainedConfig, Qwen2Config

    AutoConfig.register("mimo", type("mimo", (Qwen2Config,), {"model_type": "mimo"}))
    for family in ("sarvam_moe", "sarvam_mla"):  # of classes that only their repositories have
        # transformers 5 moves rope_theta into rope_parameters, where Bridge does not look for it
        AutoConfig.register(family, type(family, (PretrainedConfig,), {"model_type": family, "rope_theta": 10000.0}))
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    for path in sorted(pathlib.Path(options.configs).glob("*.json")):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(path, folder + "/config.json")
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    model = AutoBridge.from_hf_pretrained(folder).to_megatron_provider(load_weights=False)
                    model.seq_length = 4096
                    cfg = c.ConfigContainer(
                        train=c.TrainingConfig(train_iters=10, global_batch_size=8, micro_batch_size=1), model=model,
                        optimizer=c.OptimizerConfig(lr=1e-4, use_distributed_optimizer=True, bf16=True),
                        scheduler=c.SchedulerConfig(lr_decay_iters=10, lr_warmup_iters=0),
                        dataset=c.MockGPTDatasetConfig(random_seed=1, reset_attention_mask=False,
                                                       reset_position_ids=False, eod_mask_loss=False, seq_length=4096),
                        logger=c.LoggerConfig(), checkpoint=c.CheckpointConfig(save="/tmp/x"), mixed_precision="bf16_mixed",
                        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=model.vocab_size),
                        ddp=c.DistributedDataParallelConfig(use_distributed_optimizer=True))
                    cfg.to_yaml(os.path.join(options.dump, path.stem + ".yaml"))
                shutil.copy(path, options.dump)
            except Exception as error:
                print(path.stem, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", sep="\t", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipewright", nargs="?")
    for name in ("--dump", "--bridge", "--megatron", "--configs"):
        parser.add_argument(name)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    return dump(options) if options.dump else compare(options)


if __name__ == "__main__":
    sys.exit(main())
