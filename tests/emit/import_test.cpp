// Command lines and overrides as users type them, and the errors for what they mistype.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "../../src/emit/field_table.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace import_test {

using namespace pipewright;

namespace {

constexpr const char* llama =
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --bf16 --micro-batch-size 1 ";

emit::Import import(const std::string& more, const char* version = "", std::int64_t gpus = 16) {
  return emit::from_megatron(llama + more, {gpus, 8, "h100-sxm", version});
}

std::string error_of(const std::string& flags) {
  try {
    emit::from_megatron(flags, {16, 8, "h100-sxm", ""});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// Overrides beside those of a small model.
scenario::Scenario of_overrides(const std::string& overrides) {
  return emit::from_bridge_text(
             "cfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\n"
             "cfg.model.seq_length = 1024\ncfg.model.vocab_size = 1024\n" +
                 overrides,
             "run.py", {8, 8, "h100-sxm", ""})
      .scenario;
}

/// The flags that are written for it, as a shell reads them.
std::string emitted_line(const scenario::Scenario& s) {
  std::string line;
  for (const auto& word : emit::words(emit::megatron(s))) line += "'" + word + "' ";
  return line;
}

}  // namespace

TEST_CASE("the parser's defaults are those of the command line, not of the config classes") {
  const auto s = import("").scenario;
  CHECK(s.settings.gradient_accumulation_fusion);
  CHECK(s.settings.masked_softmax_fusion);
  CHECK(s.settings.bias_dropout_fusion);
  CHECK(s.settings.apply_rope_fusion);
  CHECK(s.settings.bias_activation_fusion);
  CHECK(s.settings.persist_layer_norm);
  CHECK(s.settings.grad_reduce_in_fp32);
  CHECK(s.settings.deallocate_pipeline_outputs);
  CHECK_FALSE(s.settings.overlap_p2p_comm);
  CHECK(s.model.gated_linear_unit);
  CHECK(scenario::activation_func(s) == "silu");
  CHECK(s.model.num_query_groups == 8);
  CHECK(s.settings.global_batch_size == 16);
}

TEST_CASE("what validate_args makes of flags does not depend on their order, and follows the flag that it reads") {
  const auto grads = [](const std::string& more) { return import(more).scenario.settings.grad_reduce_in_fp32; };
  CHECK(grads("--use-precision-aware-optimizer"));
  CHECK_FALSE(grads("--use-precision-aware-optimizer --main-grads-dtype bf16"));
  CHECK_FALSE(grads("--grad-reduce-in-bf16"));
  for (const auto* flags :
       {"--recompute-activations --recompute-granularity full", "--recompute-granularity full --recompute-activations"})
    CHECK(import(flags).scenario.settings.recompute_granularity == "selective");
  CHECK_FALSE(import("--position-embedding-type yarn").scenario.settings.apply_rope_fusion);
  // --swiglu has a flag of its own; all other activations follow the other one, which is off without biases.
  std::string quick = llama;
  quick.replace(quick.find("--swiglu"), 8, "--quick-geglu --num-experts 8 --moe-grouped-gemm");
  const auto fused = [&](std::string flags, const std::string& more) {
    return emit::from_megatron(flags + more, {16, 8, "h100-sxm", ""}).scenario.settings.bias_activation_fusion;
  };
  CHECK_FALSE(fused(quick, ""));
  quick.erase(quick.find("--disable-bias-linear "), 22);
  CHECK(fused(quick, "--no-bias-swiglu-fusion"));
  CHECK_FALSE(fused(quick, "--no-bias-gelu-fusion"));
  CHECK(fused(llama, "--no-bias-gelu-fusion"));
}

TEST_CASE("a graph of the whole iteration, as each version spells it, and back") {
  const std::string none = " --no-check-for-nan-in-loss-and-grad";
  const auto spelled = [&](const std::string& flags, const char* version) {
    return import(flags + none, version).scenario.settings;
  };
  for (const auto* version : {"0.16.0", "0.17.0", "0.18.0", "0.19.0"}) {
    CAPTURE(version);
    const auto s = spelled("--cuda-graph-scope full_iteration --cuda-graph-impl local", version);
    CHECK(s.cuda_graph_impl == "full_iteration");
    CHECK(s.cuda_graph_modules.empty());
    CHECK(spelled("--cuda-graph-scope full_iteration", version).cuda_graph_impl == "none");
    CHECK(spelled("--cuda-graph-scope full_iteration --cuda-graph-impl transformer_engine", version).cuda_graph_impl ==
          "transformer_engine");
  }
  CHECK(import("--cuda-graph-impl full_iteration" + none, "0.18.0").findings.empty());
  CHECK(import("--cuda-graph-impl full_iteration" + none, "0.17.0").findings.at(0).rule == "version.value");
  CHECK(import("--cuda-graph-impl full_iteration", "0.19.0").findings.at(0).rule == "flag.missing");
  const auto old = import("--cuda-graph-impl local --cuda-graph-scope full_iteration" + none, "0.17.0").scenario;
  std::string line;
  for (const auto& word : emit::words(emit::megatron(old))) line += word + " ";
  CHECK(line.find("--cuda-graph-impl local --cuda-graph-scope full_iteration") != std::string::npos);
}

TEST_CASE("flags that exclude each other") {
  const auto rules = [](const std::string& more) {
    std::vector<std::string> found;
    for (const auto& finding : import(more).findings) found.push_back(finding.rule);
    return found;
  };
  using Rules = std::vector<std::string>;
  const std::string four = "--pipeline-model-parallel-size 4 ";
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2").empty());
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 4") ==
        Rules{"flag.beside"});
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2 --decoder-first-pipeline-num-layers 8") ==
        Rules{"flag.beside"});
  CHECK(rules("--multi-latent-attention") == Rules{"flag.beside"});
  CHECK(rules("--accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16") == Rules{"flag.beside"});
}

TEST_CASE("one chunk a rank: none in Megatron-LM, the interleaved schedule in Bridge") {
  CHECK_FALSE(scenario::interleaved(
      import("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 1").scenario));
  const std::string text =
      "cfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256\ncfg.model.pipeline_model_parallel_size = 4\n"
      "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 32\n";
  for (const auto& [size, interleaved] : {std::pair("1", true), {"2", true}, {"None", false}}) {
    const auto s = emit::from_bridge_text(text + "cfg.model.virtual_pipeline_model_parallel_size = " + size + "\n",
                                          "run.py", {8, 8, "h100-sxm", ""})
                       .scenario;
    CHECK(scenario::interleaved(s) == interleaved);
  }
}

TEST_CASE("pipeline flags") {
  const auto plain = import("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2").scenario;
  CHECK(plain.settings.virtual_pipeline_model_parallel_size == 4);
  CHECK(plain.settings.overlap_p2p_comm);
  const auto none =
      import("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication")
          .scenario;
  CHECK(none.settings.virtual_pipeline_model_parallel_size == 2);
  CHECK_FALSE(none.settings.overlap_p2p_comm);
  CHECK(scenario::batch_p2p_comm(none));
}

TEST_CASE("lists, Python patterns, equals signs and continued lines") {
  const auto s = import(
                     "--recompute-granularity selective --recompute-modules mlp core_attn --num-experts=8 \\\n"
                     " --moe-layer-freq '([0]*2+[1]*30)' --expert-model-parallel-size 8")
                     .scenario;
  CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  CHECK(s.model.num_moe_experts == 8);
  REQUIRE(s.model.moe_layer_freq.size() == 32);
  CHECK(s.model.moe_layer_freq[1] == 0);
  CHECK(s.model.moe_layer_freq[2] == 1);
}

TEST_CASE("what stands before the script belongs to the run") {
  const auto s = emit::from_megatron(std::string("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 "
                                                 "pretrain_gpt.py ") +
                                         llama + "--tensor-model-parallel-size 2",
                                     {8, 8, "h100-sxm", ""})
                     .scenario;
  CHECK(s.environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "1");
  CHECK(s.settings.tensor_model_parallel_size == 2);
}

TEST_CASE("the launcher says how many GPUs there are") {
  const auto gpus = [](const std::string& launcher, std::int64_t said = 0) {
    const auto s = emit::from_megatron(launcher + " pretrain_gpt.py " + llama, {said, 8, "h100-sxm", ""}).scenario;
    return std::pair(s.cluster.num_gpus, s.cluster.gpus_per_node);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  CHECK(gpus("torchrun --nproc_per_node 8 --nnodes 1") == Pair{8, 8});
  CHECK(gpus("torchrun --nproc-per-node=4 --nnodes=2") == Pair{8, 4});
  CHECK(gpus("python -m torch.distributed.run --nproc_per_node 8") == Pair{8, 8});
  CHECK(gpus("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4:4") == Pair{32, 8});
  CHECK(gpus("srun -N 16 --ntasks-per-node=8 python") == Pair{128, 8});
  CHECK(gpus("srun --nodes 2 torchrun --nproc_per_node 4") == Pair{8, 4});
  CHECK(gpus("mpirun -np 16 python") == Pair{16, 8});
  CHECK(gpus("torchrun --nproc_per_node 8", 64) == Pair{64, 8});  // --gpus wins
  CHECK(gpus("torchrun --nproc_per_node gpu") == Pair{1, 8});
}

TEST_CASE("lists in the spellings of NVIDIA's files") {
  for (const auto* list : {"mlp core_attn", "'[mlp core_attn]'", "\"[mlp, core_attn]\"", "[mlp core_attn]",
                           "mlp,core_attn", "\"['mlp', 'core_attn']\""}) {
    CAPTURE(std::string(list));
    const auto s = import(std::string("--recompute-granularity selective --recompute-modules ") + list).scenario;
    CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  }
  // As argparse does, the last of two counts.
  CHECK(import("--micro-batch-size 4").scenario.settings.micro_batch_size == 4);
}

TEST_CASE("a launch script: variables, arrays, conditions, loops and the launcher's options") {
  const std::string text = R"(#!/bin/bash
#SBATCH --nodes=4
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
GPUS_PER_NODE=8
TP=${TP:-2}; PP=4
SEQ="${SEQ_LENGTH:-4096}"
if [ ! -f pretrain_gpt.py ]; then echo missing; exit 1; fi
MODEL_ARGS=(
    --num-layers $((8 * PP))   # thirty-two
    --hidden-size 4096
    --num-attention-heads 32
    --seq-length $SEQ
    "--vocab-size 128256"
)
if [[ $TP -gt 1 ]]; then
  MODEL_ARGS+=(--tensor-model-parallel-size $TP --sequence-parallel)
fi
OPTS="     --bf16     --swiglu     --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
case "$PP" in
  1) ;;
  *) OPTS="$OPTS --pipeline-model-parallel-size $PP" ;;
esac
for flag in disable-bias-linear use-distributed-optimizer; do OPTS+=" --$flag"; done
launch() {
  cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES pretrain_gpt.py ${MODEL_ARGS[*]} $OPTS"
  srun -N 2 bash -c "$cmd --micro-batch-size $1"
}
launch 2
)";
  const auto import_of = [&](const std::map<std::string, std::string>& variables) {
    return emit::from_launch_file(text, "train.sh", {0, 8, "h100-sxm", ""}, variables);
  };
  const auto s = import_of({}).scenario;
  CHECK(s.model.num_layers == 32);
  CHECK(s.model.vocab_size == 128256);
  CHECK(s.settings.tensor_model_parallel_size == 2);
  CHECK(s.settings.pipeline_model_parallel_size == 4);
  CHECK(s.settings.sequence_parallel);
  CHECK(s.settings.micro_batch_size == 2);
  CHECK(s.settings.recompute_granularity == "full");
  CHECK(s.settings.use_distributed_optimizer);
  CHECK_FALSE(s.model.add_bias_linear);
  CHECK(s.cluster.num_gpus == 32);  // sbatch sets SLURM_NNODES
  CHECK(s.environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "1");
  const auto other = import_of({{"TP", "1"}, {"SLURM_NNODES", "8"}}).scenario;
  CHECK(other.settings.tensor_model_parallel_size == 1);
  CHECK_FALSE(other.settings.sequence_parallel);
  CHECK(other.cluster.num_gpus == 64);
}

TEST_CASE("a script's words that are not set are told, and what only prints a command runs nothing") {
  const std::string text = R"(GPUS=8
run() { local tp=$1; shift; torchrun --nproc_per_node $GPUS pretrain_gpt.py ${ARGS[@]} --tensor-model-parallel-size $tp "$@"; }
ARGS=(--num-layers 4 --hidden-size 1024 --num-attention-heads 8)
ARGS[${#ARGS[@]}]="--bf16"
ARGS+=("--seq-length 1024" --vocab-size $((32 * 1000)))
mkdir -p logs && MBS=2
srun -N 2 bash -c 'cd /workspace && export NCCL_DEBUG=WARN; exec python pretrain_gpt.py --num-layers 1 > log 2>&1'
run 2 --sequence-parallel --micro-batch-size $MBS $EXTRA --swiglu $MORE
echo "ran: torchrun pretrain_gpt.py --num-layers 99"
)";
  const auto import = emit::from_launch_file(text, "train.sh", {0, 8, "h100-sxm", ""});
  CHECK(import.scenario.model.num_layers == 4);
  CHECK(import.scenario.model.vocab_size == 32000);
  CHECK(import.scenario.settings.bf16);
  CHECK(import.scenario.settings.tensor_model_parallel_size == 2);
  CHECK(import.scenario.settings.sequence_parallel);
  CHECK(import.scenario.settings.micro_batch_size == 2);
  CHECK(import.scenario.cluster.num_gpus == 8);
  for (const char* name : {"EXTRA", "MORE"})
    CHECK(std::ranges::find(import.notes, "${" + std::string(name) + "} is not set: taken as empty") !=
          import.notes.end());
  const auto within = emit::from_launch_file(
      "export N=4\nsrun -N 2 --ntasks-per-node=8 bash -c 'cd /w && export NCCL_DEBUG=WARN; torchrun pretrain_gpt.py "
      "--num-layers $N "
      "--hidden-size 64 --num-attention-heads 2 --seq-length 64 --vocab-size 320 --micro-batch-size 1 --bf16 > log "
      "2>&1'\n",
      "train.sh", {0, 8, "h100-sxm", ""});
  CHECK(within.scenario.model.num_layers == 4);
  CHECK(within.scenario.cluster.num_gpus == 16);
  CHECK(within.scenario.environment.at("NCCL_DEBUG") == "WARN");
}

TEST_CASE("a script's faults are named with its line") {
  const auto error = [](const std::string& text) -> std::string {
    try {
      emit::from_launch_file(text, "t.sh", {8, 8, "h100-sxm", ""});
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  const std::string head = "A=(\n --num-layers 2\n --hidden-size 64\n --num-attention-heads 2\n --seq-length 64\n";
  CHECK(error(head + " --vocab-size many\n)\ntorchrun p.py ${A[@]} --micro-batch-size 1\n")
            .starts_with("t.sh:6: --vocab-size: expected an integer"));
  CHECK(error(head + " --recompute-module mlp\n)\ntorchrun p.py ${A[@]} --micro-batch-size 1\n") ==
        "t.sh:6: --recompute-module: unknown flag; without it: --ignore --recompute-module; did you mean "
        "\"--recompute-modules\"?");
  CHECK(error(head).starts_with("t.sh:1: A: the array's bracket ( is not closed"));
  CHECK(error("echo 'x\n").starts_with("t.sh:1: a quote ' is not closed"));
  CHECK(error("if true; then\necho\n").find("the script ends before \"") != std::string::npos);
  CHECK(error("echo hello\n").find("no training command found") != std::string::npos);
  CHECK(error(head + " --vocab-size 9\n)\ntorchrun p.py ${A[@]} --micro-batch-size $MBS\n")
            .starts_with("t.sh:8: --micro-batch-size: ${MBS} is not set: give what it holds with --env MBS=VALUE"));
  CHECK(error(head + " --vocab-size $V\n)\ntorchrun p.py ${A[@]} --micro-batch-size $MBS --global-batch-size $V "
                     "--data-path $DATA\n") ==
        "t.sh:6: --vocab-size: ${V}, ${MBS} are not set: give what they hold with --env V=VALUE --env "
        "MBS=VALUE");
  // How many GPUs there are is asked for with the others.
  for (const std::string& size : {std::string("$MBS"), std::string("1")}) {
    std::string said;
    try {
      emit::from_launch_file(head +
                                 " --vocab-size 9\n)\ntorchrun --nproc-per-node 8 --nnodes $N p.py ${A[@]} "
                                 "--micro-batch-size " +
                                 size + "\n",
                             "t.sh", {0, 8, "h100-sxm", ""});
    } catch (const UsageError& e) {
      said = e.what();
    }
    CAPTURE(said);
    CHECK(said.starts_with(size == "1" ? "t.sh:8: --nnodes ${N}: nobody says how many these are"
                                       : "t.sh:8: --micro-batch-size: ${MBS}, ${N} are not set: give"));
  }
  CHECK(error("f() { f; }\nf\n").find("without end") != std::string::npos);
}

TEST_CASE("model_config.yaml of Megatron's functional tests") {
  const std::string text =
      "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n  CUBLAS: \":4096:8\"\nTEST_TYPE: regular\n"
      "BASE: &BASE\n  x: y\nBASE_MODEL_ARGS: &B\n  --bf16: true\n  --num-layers: 2\n"
      "MODEL_ARGS:\n  <<: *B\n  # a comment\n  --num-layers: 16 # another\n  --hidden-size: 1024\n"
      "  --num-attention-heads: 32\n  --seq-length: 4096\n  --micro-batch-size: 4\n  --vocab-size: 51200\n"
      "  --recompute-granularity: selective\n  --recompute-modules: \"[layernorm mlp]\"\n  --num-experts: 32\n"
      "  --moe-layer-freq: ([0]*1+[1]*15)\n  --swiglu: true\n";
  CHECK(emit::is_launch_file("model_config.yaml", text));
  const auto gpus = [&](const std::string& head) {
    return emit::from_launch_file(head + text, "m.yaml", {0, 8, "h100-sxm", ""}).scenario.cluster.num_gpus;
  };
  CHECK(gpus("") == 8);
  CHECK(
      gpus("MODEL_ENV_VARS:\n  # each\n  MODEL_ARGS:\n    GPUS_PER_NODE: 2\n  MODEL_ARGS_2:\n    GPUS_PER_NODE: 4\n") ==
      2);
  // Releases up to 0.16 escape what a shell would read.
  CHECK(emit::from_launch_file(text + "  --pipeline-model-parallel-size: 4\n  --pipeline-model-parallel-layout: "
                                      "Et*2\\\\|\\\\(tt\\\\|\\\\)*5t\\\\|ttttL # Et*2|(tt|)*5t|ttttL\n",
                               "m.yaml", {0, 8, "h100-sxm", ""})
            .scenario.settings.pipeline_model_parallel_layout == std::optional<std::string>("Et*2|(tt|)*5t|ttttL"));
  CHECK_FALSE(emit::is_launch_file("s.yaml", "scenario: 1\nmodel: {}\n"));
  const auto s = emit::from_launch_file(text, "model_config.yaml", {0, 8, "h100-sxm", ""}).scenario;
  CHECK(s.model.num_layers == 16);
  CHECK(s.settings.bf16);
  CHECK(s.settings.recompute_modules == scenario::Strings{"layernorm", "mlp"});
  CHECK(s.model.moe_layer_freq.size() == 16);
  CHECK(s.cluster.num_gpus == 8);
  CHECK(s.environment.at("CUBLAS") == ":4096:8");
}

TEST_CASE("model_config.yaml with variables, and flags that are false") {
  const std::string text =
      "ENV_VARS:\n  NVTE_FUSED_ATTN: $FUSED\nMODEL_ARGS:\n  --num-layers: 16\n  --hidden-size: 1024\n"
      "  --num-attention-heads: 32\n  --seq-length: 4096\n  --micro-batch-size: ${MBS}\n  --vocab-size: 51200\n"
      "  --tensor-model-parallel-size:\n    ${TP}\n  --wandb-exp-name: a-TP${TP}-${COMMENT}\n"
      "  --sequence-parallel: false\n  --finetune: false\n  --bf16: true\n"
      "  --num-experts: 8\n  --moe-layer-freq: \"'([0]*1+[1]*15)'\"\n";
  const emit::Machine machine{0, 8, "h100-sxm", ""};
  const auto read = [&](const std::map<std::string, std::string>& variables) {
    return emit::from_launch_file(text, "m.yaml", machine, variables);
  };
  const auto import = read({{"TP", "2"}, {"MBS", "4"}, {"FUSED", "1"}});
  CHECK(import.scenario.settings.tensor_model_parallel_size == 2);
  CHECK(import.scenario.settings.micro_batch_size == 4);
  CHECK(import.scenario.environment.at("NVTE_FUSED_ATTN") == "1");
  CHECK_FALSE(import.scenario.settings.sequence_parallel);
  CHECK(import.scenario.model.moe_layer_freq.size() == 16);
  CHECK(std::ranges::any_of(import.notes, [](const std::string& note) {
    return note.find("being false: --sequence-parallel, --finetune") != std::string::npos;
  }));
  CHECK_THROWS_WITH_AS(
      read({{"MBS", "4"}}),
      "m.yaml:10: --tensor-model-parallel-size: ${TP} is not set: give what it holds with --env TP=VALUE", UsageError);
}

TEST_CASE("a variable stands where it was read, not on a command line that nobody wrote") {
  const std::string flags =
      "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
      "--micro-batch-size 1 --global-batch-size 8 --vocab-size 1024 --tokenizer-type NullTokenizer --bf16";
  const std::string variable = "NVTE_ALLOW_NONDETERMINISTIC_ALGO";
  const auto place = [&](const scenario::Scenario& s) { return scenario::position(s, "environment." + variable).file; };
  std::string config = "ENV_VARS:\n  " + variable + ": 0\nMODEL_ARGS:\n";
  std::istringstream words(flags);
  for (std::string word, value; words >> word; config += "  " + word + ": " + value + "\n")
    value = word == "--bf16" ? "true" : (words >> value, value);
  const emit::Machine machine{0, 8, "h100-sxm", ""};
  CHECK(place(emit::from_launch_file(config, "model_config.yaml", machine).scenario) == "model_config.yaml");
  const auto script = "export " + variable + "=0\ntorchrun --nproc_per_node 8 pretrain_gpt.py " + flags + "\n";
  CHECK(place(emit::from_launch_file(script, "train.sh", machine).scenario) == "train.sh");
  const auto overrides =
      "cfg.model.num_layers = 2\ncfg.model.vocab_size = 9\ncfg.env_vars[\"" + variable + "\"] = \"0\"\n";
  CHECK(place(emit::from_bridge_text(overrides, "x.py", machine).scenario) == "x.py");
}

TEST_CASE("what would set a field of Bridge's configuration by another name, or with a slip, is refused") {
  const std::string text =
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\n"
      "cfg.model.seq_length = 1024\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 8\n";
  const auto read = [&](const std::string& line) {
    return emit::from_bridge_text(text + line + "\n", "x.py", {8, 8, "h100-sxm", ""}).scenario.model.num_layers;
  };
  for (const char* line : {"config.model.num_layers = 8", "cfg2.model.num_layers = 8", "self.cfg.model.num_layers = 8",
                           "cfg[\"model\"].num_layers = 8", "cfg.modle.num_layers = 8", "modle.num_layers=8",
                           "x = cfg.model\nx.num_layers = 8", "cfg.nope.x = 5"}) {
    CAPTURE(std::string(line));
    CHECK_THROWS_WITH_AS(read(line), doctest::Contains("no section of Bridge's configuration"), UsageError);
  }
  CHECK_THROWS_WITH_AS(read("config.model.num_layers = 8"), doctest::Contains("did you mean \"cfg.model.num_layers\"?"),
                       UsageError);
  for (const char* line : {"torch.backends.cuda.matmul.allow_tf32 = True", "my.thing = 5",
                           "cfg.logger.log_interval = 1", "model.num_layers=4"})
    CHECK(read(line) == 4);
}

TEST_CASE("a value of model_config.yaml may begin in the next line") {
  const std::string text =
      "MODEL_ARGS:\n  --num-layers:\n    2\n  --hidden-size: 64\n  --bf16:\n    true\n    # a comment\n  --swiglu: "
      "true\n"
      "  --num-attention-heads: 4\n  --seq-length: 64\n  --micro-batch-size: 1\n  --vocab-size: 64\n";
  const auto s = emit::from_launch_file(text, "model_config.yaml", {0, 8, "h100-sxm", ""}).scenario;
  CHECK(s.model.num_layers == 2);
  CHECK(s.settings.bf16);
  CHECK(s.model.gated_linear_unit);
}

TEST_CASE("the vocabulary: stated, GPT-2's where its tokenizer is meant, or said beside the flags") {
  const std::string flags =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 ";
  emit::Machine machine{8, 8, "h100-sxm", ""};
  const auto vocabulary = [&](const std::string& more) {
    return emit::from_megatron(flags + more, machine).scenario.model.vocab_size;
  };
  CHECK_THROWS_WITH_AS(vocabulary(""), doctest::Contains("--set vocab_size=N"), UsageError);
  CHECK_THROWS_AS(vocabulary("--tokenizer-type HuggingFaceTokenizer --merge-file m"), UsageError);
  CHECK_THROWS_AS(vocabulary("--vocab-file vocab.txt"), UsageError);  // BERT's has no merges
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer") == 50257);
  CHECK(vocabulary("--vocab-file v --merge-file m") == 50257);
  CHECK(emit::from_megatron(flags + "--merge-file m", machine).scenario.assumed.size() == 1);
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer --vocab-size 100") == 100);
  CHECK(vocabulary("--tokenizer-type NullTokenizer --vocab-size 131072") == 131072);
  machine.megatron_core = "0.17.0";  // NullTokenizer added an entry for the end of a document
  CHECK(vocabulary("--tokenizer-type NullTokenizer --vocab-size 131072") == 131073);
  CHECK(vocabulary("--tokenizer-type NullTokenizer --padded-vocab-size 131072") == 131072);
  machine.vocab_size = 777;
  CHECK(vocabulary("") == 777);
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer") == 777);
}

TEST_CASE("programs that train other models are refused by name, unknown ones are named") {
  const auto run = [](const std::string& program) {
    return emit::from_megatron("torchrun --nproc_per_node 8 " + program +
                                   " --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
                                   "--micro-batch-size 1 --vocab-size 64",
                               {0, 8, "h100-sxm", ""})
        .notes;
  };
  CHECK_THROWS_WITH_AS(run("/opt/megatron/pretrain_t5.py"), doctest::Contains("pretrain_t5.py"), UsageError);
  CHECK_THROWS_AS(run("pretrain_vlm.py"), UsageError);
  const std::string note = "mine.py is taken to train as pretrain_gpt.py does";
  const auto mine = run("mine.py"), gpt = run("./pretrain_gpt.py");
  CHECK(std::ranges::find(mine, note) != mine.end());
  CHECK(std::ranges::none_of(gpt, [](const auto& n) { return n.find("taken to train") != std::string::npos; }));
}

TEST_CASE("without a GPU count the fewest that the parallelism needs") {
  const auto s = import("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", "", 0).scenario;
  CHECK(s.cluster.num_gpus == 8);
}

TEST_CASE("flags outside what is modelled are noted") {
  const auto result =
      import("--save /ckpt --save-interval 9 --num-workers 4 --log-interval 10 --tokenizer-type NullTokenizer");
  REQUIRE(result.notes.size() == 2);
  CHECK(result.notes[0] ==
        "without effect on time and memory: --log-interval --num-workers --save --save-interval --tokenizer-type");
  CHECK(result.findings.empty());
}

TEST_CASE("every flag of every version sets a field or has an effect") {
  for (const auto& flag : emit::flags()) {
    CAPTURE(flag.name);
    CHECK(scenario::effect_of(flag.field.empty() ? flag.name : flag.field) != nullptr);
  }
  for (const auto& flag : emit::other_flags()) {
    CAPTURE(flag.name);
    CHECK(scenario::effect_of(flag.name) != nullptr);
    CHECK(emit::find_flag(flag.name) == nullptr);
  }
  CHECK(emit::flags().size() + emit::other_flags().size() > 950);
}

TEST_CASE("flags that are not modelled stay in the scenario, to be refused or ignored") {
  const auto result = import("--use-torch-fsdp2 --spec local --mtp-hybrid-override-pattern MM", "0.19.0");
  CHECK(result.findings.empty());
  const auto& other = result.scenario.settings.other;
  CHECK(other.at("use_torch_fsdp2") == "true");
  CHECK(other.at("spec") == "local");
  const auto found = scenario::unmodelled(result.scenario);
  CHECK(found.size() == 3);
}

TEST_CASE("dist_muon is muon with the distributed optimizer from 0.18 on, unless nothing is laid out for it") {
  const auto read = [](const char* flags, const char* version) { return import(flags, version).scenario.settings; };
  for (const char* version : {"0.16.0", "0.17.0"})
    CHECK(read("--optimizer dist_muon", version).optimizer == "dist_muon");
  for (const char* flags : {"--optimizer dist_muon", "--optimizer muon --use-distributed-optimizer"}) {
    CAPTURE(flags);
    CHECK(read(flags, "0.18.0").optimizer == "muon");
    CHECK(read(flags, "0.18.0").use_distributed_optimizer);
    const std::string none = std::string(flags) + " --no-use-layer-wise-param-layout";
    // 0.19 builds models where no layout is made; alone there is nothing to deal.
    for (const auto& dealt : {read(none.c_str(), "0.18.0"), read(none.c_str(), "0.19.0"), read(flags, "0.19.0")}) {
      CHECK(dealt.optimizer == "dist_muon");
      CHECK_FALSE(dealt.use_distributed_optimizer);
    }
    CHECK(import(flags, "0.19.0", 1).scenario.settings.optimizer == "muon");
  }
  CHECK(read("--optimizer muon", "0.19.0").optimizer == "muon");
  CHECK_FALSE(read("--optimizer muon", "0.19.0").use_distributed_optimizer);
}

TEST_CASE("a hybrid's pattern, its older names and its ratios") {
  const auto of = [](const std::string& flags, const char* version) { return import(flags, version).scenario.model; };
  const auto now = of("--hybrid-layer-pattern 'M-M*|M-M-' --mamba-num-heads 64 --mamba-state-dim 64", "0.19.0");
  CHECK(now.hybrid_layer_pattern == "M-M*|M-M-");
  CHECK(now.num_layers == 8);
  CHECK((now.mamba_num_heads == 64 && now.mamba_state_dim == 64 && now.mamba_head_dim == 64));
  for (const char* version : {"0.17.0", "0.19.0"}) {  // arguments.py: the pattern counts, --num-layers does not
    CHECK(of("--hybrid-override-pattern 'M-*M'", version).num_layers == 4);
    CHECK(of("--hybrid-override-pattern 'M-*M'", version).hybrid_layer_pattern == "M-*M");
  }
  CHECK_THROWS_WITH_AS(of("--hybrid-override-pattern MM --hybrid-layer-pattern MM", "0.19.0"),
                       doctest::Contains("deprecated name"), UsageError);
  // ssm/mamba_hybrid_layer_allocation.py of core_r0.16.0, run as Python.
  for (const auto& [ratios, pattern] : std::initializer_list<std::pair<const char*, const char*>>{
           {"--num-layers 48 --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5",
            "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-"},
           {"--num-layers 10 --hybrid-attention-ratio 0.2", "MMM*MM*MMM"},
           {"--num-layers 7 --hybrid-mlp-ratio 0.5", "M-M--M-"},
           {"--num-layers 4 --is-hybrid-model", "MMMM"}}) {
    CAPTURE(ratios);
    CHECK(of(ratios, "0.16.0").hybrid_layer_pattern == pattern);
  }
  // What is emitted comes back, by the name that the version has.
  for (const auto& [version, flag] :
       std::initializer_list<std::pair<const char*, const char*>>{{"0.16.0", "--hybrid-override-pattern"},
                                                                  {"0.17.0", "--hybrid-layer-pattern"},
                                                                  {"0.19.0", "--hybrid-layer-pattern"}}) {
    auto s = import("--hybrid-override-pattern 'M-M-M-M*' --num-layers 8", version).scenario;
    const std::string line = emitted_line(s);
    CAPTURE(line);
    CHECK(line.find(flag) != std::string::npos);
    CHECK(line.find("--spec") != std::string::npos);
    CHECK(import(line, version).scenario.model == s.model);
  }
}

TEST_CASE("layers of multi-token prediction in a hybrid's pattern, and apart from it") {
  const auto of = [](const std::string& flags) { return import(flags, "0.19.0").scenario.model; };
  const auto joined = of("--hybrid-layer-pattern 'M-M*/*-/*-' --position-embedding-type none");
  CHECK(joined.hybrid_layer_pattern == "M-M*/*-/*-");
  CHECK((joined.num_layers == 4 && joined.mtp_num_layers == 2));
  // arguments.py: the pattern's number of depths wins, and its layers do.
  CHECK(of("--hybrid-layer-pattern 'M-M*/*-/*-' --mtp-num-layers 1 --position-embedding-type none") == joined);
  CHECK(of("--hybrid-layer-pattern 'M-M*/*-/*-' --mtp-num-layers 1 --mtp-hybrid-override-pattern M "
           "--position-embedding-type none") == joined);
  CHECK(of("--hybrid-override-pattern 'M-M*' --mtp-num-layers 2 --mtp-hybrid-override-pattern '*-' "
           "--position-embedding-type none") == joined);
  const auto stated = import("--hybrid-layer-pattern 'M-M*/*-/*-' --position-embedding-type none", "0.19.0").scenario;
  CHECK(import(emitted_line(stated), "0.19.0").scenario.model == joined);
  // models/hybrid/hybrid_provider.py, finalize: what is stated apart wins.
  const auto bridge = [](const std::string& more) {
    return of_overrides(
               "cfg.model.hybrid_layer_pattern = \"M-M*\"\n"
               "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 8\n" +
               more)
        .model;
  };
  const auto apart = bridge("cfg.model.mtp_hybrid_override_pattern = \"*-\"\ncfg.model.mtp_num_layers = 2\n");
  CHECK(apart.hybrid_layer_pattern == "M-M*/*-/*-");
  CHECK((apart.num_layers == 4 && apart.mtp_num_layers == 2));
  CHECK(bridge("cfg.model.mtp_hybrid_override_pattern = \"*-\"\n").hybrid_layer_pattern == "M-M*");
}

TEST_CASE("a batch that the ranks do not divide is lowered where that is asked for, as Megatron does") {
  const std::string uneven = "--global-batch-size 30 ";
  const auto lowered = import(uneven + "--decrease-batch-size-if-needed", "", 8);
  CHECK(lowered.scenario.settings.global_batch_size == 24);
  CHECK_NOTHROW(scenario::check(lowered.scenario));
  CHECK(std::ranges::any_of(lowered.notes,
                            [](const auto& note) { return note.find("steps of 24") != std::string::npos; }));
  CHECK(import(uneven, "", 8).scenario.settings.global_batch_size == 30);
  CHECK(import(uneven + "--decrease-batch-size-if-needed", "", 5).scenario.settings.global_batch_size == 30);
  CHECK(import("--global-batch-size 3 --decrease-batch-size-if-needed", "", 8).scenario.settings.global_batch_size ==
        3);
  const auto bridge = [](const std::string& more) {
    return of_overrides("cfg.model.num_layers = 4\ncfg.train.micro_batch_size = 2\ncfg.train.global_batch_size = 30\n" +
                        more)
        .settings.global_batch_size;
  };
  CHECK(bridge("cfg.train.decrease_batch_size_if_needed = True\n") == 16);
  CHECK(bridge("cfg.train.decrease_batch_size_if_needed = False\n") == 30);
}

TEST_CASE("flags that no version or not this version has") {
  const auto legend = import("--overlap-p2p-communication");
  REQUIRE(legend.findings.size() == 1);
  CHECK(legend.findings[0].rule == "flag.unknown");
  CHECK(legend.findings[0].fix.find("--no-overlap-p2p-communication") != std::string::npos);
  CHECK_THROWS_AS(emit::require_known_flags(legend), UsageError);
  const auto early = import("--activation-offload-fraction 0.5", "0.17.0");
  REQUIRE(early.findings.size() == 1);
  CHECK(early.findings[0].rule == "version.flag");
  CHECK(early.findings[0].message ==
        "--activation-offload-fraction does not exist in Megatron Core 0.17.0; versions with it: 0.19, dev, main, "
        "pr-4268");
  CHECK(early.findings[0].fix == "remove it, or say the version that runs: --megatron-core 0.19.0");
  CHECK(import("--activation-offload-fraction 0.5", "0.19.0").findings.empty());
  CHECK(import("--overlap-p2p-backward-on-comm-stream").findings[0].fix.ends_with("--megatron-core pr-4268"));
  CHECK(import("--overlap-p2p-backward-on-comm-stream").findings.size() == 1);
  CHECK(import("--overlap-p2p-backward-on-comm-stream", "pr-4268").findings.empty());
}

TEST_CASE("errors") {
  CHECK(error_of(std::string(llama) + "--recompute-module mlp") ==
        "--megatron: --recompute-module: unknown flag; without it: --ignore --recompute-module; did you mean "
        "\"--recompute-modules\"?");
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size four").find("--tensor-model-parallel-size") !=
        std::string::npos);
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size").find("takes one value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--fp16 yes").find("takes no value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--recompute-granularity 'full").find("not closed") != std::string::npos);
  CHECK(error_of("--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1")
            .find("the vocabulary is missing: add --vocab-size N") != std::string::npos);
  CHECK(error_of("--num-layers 2 --num-attention-heads 2 --seq-length 64")
            .starts_with("--megatron: --hidden-size, --micro-batch-size: are missing; the vocabulary is missing: add"));
  CHECK(error_of(std::string(llama) + "--moe-layer-freq ([1]*999999*999999)").find("--moe-layer-freq") !=
        std::string::npos);
}

TEST_CASE("Bridge: Python's lists, several lines, calls, Hydra's spelling, and lengths that must agree") {
  const std::string head =
      "from megatron.bridge import x\ncfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\n"
      "cfg.model.num_attention_heads = 32\ncfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256\n";
  const auto s =
      emit::from_bridge_text(head +
                                 "cfg.model.num_moe_experts = 8\n"
                                 "cfg.model.moe_layer_freq = [0]*3+[1]*29\n"
                                 "cfg.model.recompute_modules = [  # which\n    \"mlp\",\n    'core_attn',\n]\n"
                                 "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False,\n"
                                 "    overlap_grad_reduce=False)\n"
                                 "model.recompute_granularity=selective\n++model.mtp_num_layers=null\n",
                             "run.py", {8, 8, "h100-sxm", ""})
          .scenario;
  REQUIRE(s.model.moe_layer_freq.size() == 32);
  CHECK(s.model.moe_layer_freq[2] == 0);
  CHECK(s.model.moe_layer_freq[3] == 1);
  CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  CHECK_FALSE(s.settings.overlap_grad_reduce);
  CHECK_THROWS_WITH_AS(
      emit::from_bridge_text(head + "cfg.dataset.seq_length = 8192\n", "run.py", {8, 8, "h100-sxm", ""}),
      "run.py:7: cfg.dataset.seq_length: is 8192, cfg.model.seq_length 4096: Megatron Bridge insists on one length",
      UsageError);
  CHECK_THROWS_WITH_AS(emit::from_bridge_text(head + "cfg.model.moe_layer_freq = [0]*\n", "run.py", {}),
                       doctest::Contains("run.py:7: cfg.model.moe_layer_freq: expected a number"), UsageError);
}

TEST_CASE("Bridge: comments, quotes, recipes and what CommOverlapConfig makes of them") {
  const std::string text =
      "# a run\n"
      "cfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256  # padded later\n"
      "cfg.model.activation_func = torch.nn.functional.silu\ncfg.model.gated_linear_unit = True\n"
      "cfg.model.pipeline_model_parallel_size = 4\ncfg.model.virtual_pipeline_model_parallel_size = 2\n"
      "cfg.model.recompute_granularity = \"selective\"\ncfg.model.recompute_modules = [\"mlp\"]\n"
      "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 32\n"
      "cfg.mixed_precision = \"bf16_with_fp8_current_scaling_mixed\"\n"
      "cfg.mixed_precision.grad_reduce_in_fp32 = False\n"
      "cfg.ddp.use_distributed_optimizer = True\ncfg.comm_overlap.tp_comm_overlap = False\n"
      "cfg.logger.log_interval = 10\ncfg.env_vars[\"NCCL_NVLS_ENABLE\"] = \"0\"\n";
  const auto result = emit::from_bridge_text(text, "run.py", {8, 8, "h100-sxm", ""});
  const auto& s = result.scenario;
  CHECK(s.settings.fp8 == "hybrid");
  CHECK(s.settings.fp8_param_gather);
  CHECK(s.settings.first_last_layers_bf16);
  CHECK_FALSE(s.settings.grad_reduce_in_fp32);
  CHECK(s.settings.overlap_p2p_comm);
  CHECK(s.settings.batch_p2p_comm == false);
  CHECK(s.settings.overlap_grad_reduce);
  CHECK(s.settings.bucket_size == 128 * 1024 * 1024);
  CHECK(s.settings.align_param_gather);
  CHECK(s.settings.cross_entropy_loss_fusion);
  CHECK(s.environment.at("NCCL_NVLS_ENABLE") == "0");
  CHECK(s.software.megatron_bridge.has_value());
  REQUIRE(result.notes.size() == 2);
  CHECK(result.notes[0].find("checks for NaN") != std::string::npos);
  CHECK(s.settings.check_for_nan_in_loss_and_grad == true);
  CHECK(result.notes[1].find("cfg.logger.log_interval") != std::string::npos);
  const auto checks = [&](const std::string& more) {
    return *emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""})
                .scenario.settings.check_for_nan_in_loss_and_grad;
  };
  CHECK(checks("cfg.ddp.check_for_nan_in_grad = False\n"));  // of losses still
  CHECK_FALSE(
      checks("cfg.ddp.check_for_nan_in_grad = False\n"
             "cfg.rerun_state_machine.check_for_nan_in_loss = False\n"));

  // Without the distributed optimizer setup() leaves cfg.ddp alone.
  const auto kept = emit::from_bridge_text(
      text +
          "cfg.ddp.use_distributed_optimizer = False\ncfg.comm_overlap.overlap_grad_reduce = True\n"
          "cfg.comm_overlap.bucket_size = 1000\n",
      "run.py", {8, 8, "h100-sxm", ""});
  CHECK_FALSE(kept.scenario.settings.overlap_grad_reduce);
  CHECK_FALSE(kept.scenario.settings.bucket_size.has_value());
  const auto own =
      emit::from_bridge_text(text +
                                 "cfg.ddp.use_distributed_optimizer = False\ncfg.ddp.overlap_grad_reduce = True\n"
                                 "cfg.ddp.bucket_size = 1000\n",
                             "run.py", {8, 8, "h100-sxm", ""});
  CHECK(own.scenario.settings.overlap_grad_reduce);
  CHECK(own.scenario.settings.bucket_size == 1000);

  const auto lost = emit::from_bridge_text(text + "cfg.model.overlap_moe_expert_parallel_comm = True\n", "run.py",
                                           {8, 8, "h100-sxm", ""});
  CHECK_FALSE(lost.scenario.settings.overlap_moe_expert_parallel_comm);
  REQUIRE(lost.findings.size() == 1);
  CHECK(lost.findings[0].rule == "bridge.comm-overlap-resets");
  CHECK_THROWS_WITH(emit::from_bridge_text(text + "cfg.model.num_layer = 3\n", "run.py", {8, 8, "h100-sxm", ""}),
                    doctest::Contains("run.py:21: cfg.model.num_layer"));
}

TEST_CASE("packed sequences: --sft, Bridge's specifications in its older and newer spelling, and back") {
  const auto flags = import("--sft").scenario;
  CHECK(flags.settings.sft);
  CHECK(scenario::unmodelled(flags).size() == 1);  // no lengths yet
  const std::string text =
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 8\n";
  const auto read = [&](const std::string& more) {
    return emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""}).scenario;
  };
  CHECK_FALSE(read("").settings.sft);
  for (const char* more : {"cfg.dataset.enable_offline_packing = True\n",
                           "cfg.dataset.offline_packing_specs.packed_sequence_size = 4096\n",
                           "cfg.dataset.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=4096)\n"}) {
    CAPTURE(more);
    CHECK(read(more).settings.sft);
  }
  CHECK_FALSE(read("cfg.dataset.offline_packing_specs = None\n").settings.sft);
  CHECK_THROWS_AS(read("cfg.dataset.offline_packing_specs.packed_sequence_size = 2048\n"), UsageError);

  auto packed = read("cfg.dataset.enable_offline_packing = True\n");
  packed.settings.sequence_lengths = {"512*40"};
  std::string printed;
  for (const auto& word : emit::words(emit::bridge(packed))) printed += word + "\n";
  CHECK(printed.find("PackedSequenceSpecs(packed_sequence_size=4096, pad_seq_to_mult=1)") != std::string::npos);
  const auto back = emit::from_bridge_text(printed, "back.py", {8, 8, "h100-sxm", ""}).scenario;
  CHECK(back.settings.sft);
  CHECK_FALSE(back.settings.pad_cu_seqlens);
  packed.settings.pad_cu_seqlens = true;
  printed.clear();
  for (const auto& word : emit::words(emit::bridge(packed))) printed += word + "\n";
  CHECK(emit::from_bridge_text(printed, "back.py", {8, 8, "h100-sxm", ""}).scenario.settings.pad_cu_seqlens);
  CHECK(read("cfg.dataset.offline_packing_specs.pad_cu_seqlens = True\n").settings.pad_cu_seqlens);
  const auto words = emit::words(emit::megatron(packed));
  CHECK(std::ranges::find(words, "--sft") != words.end());
}

TEST_CASE("Bridge's LoRA is read, what it trains otherwise is refused") {
  const std::string text =
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 8\n";
  const auto read = [&](const std::string& more) {
    return emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""}).scenario.settings;
  };
  const auto all = read("cfg.peft = LoRA()\n");
  CHECK(all.lora_target_modules.size() == 4);
  CHECK(all.lora_dim == 32);
  const auto some = read("cfg.peft = LoRA(target_modules=[\"linear_qkv\"], dim=16, alpha=32)\n");
  CHECK(some.lora_target_modules == scenario::Strings{"linear_qkv"});
  CHECK(some.lora_dim == 16);
  CHECK_FALSE(some.other.contains("peft"));
  const auto changed = read("cfg.peft = LoRA()\ncfg.peft.target_modules = [\"linear_qkv\"]\ncfg.peft.dim = 8\n");
  CHECK(changed.lora_target_modules == scenario::Strings{"linear_qkv"});
  CHECK(changed.lora_dim == 8);
  CHECK(read("cfg.peft = LoRA()\ncfg.peft = None\n").lora_target_modules.empty());
  const auto mixers = read("cfg.peft = LoRA(target_modules=[\"linear_qkv\", \"in_proj\", \"out_proj\"])\n");
  CHECK(mixers.lora_target_modules == scenario::Strings{"linear_qkv", "in_proj", "out_proj"});
  const auto every = read("cfg.peft = LoRA(target_modules=[\"*.linear_qkv\", \"*linear_fc1\"])\n");
  CHECK(every.lora_target_modules == scenario::Strings{"linear_qkv", "linear_fc1"});
  CHECK_FALSE(every.other.contains("peft"));
  // By what each adapter is, and not by the class of what is refused.
  const auto general = scenario::effect_of("peft")->text;
  for (const auto& [peft, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"DoRA()", "DoRA"},
           {"CanonicalLoRA(dim=8)", "CanonicalLoRA"},
           {"LoRA(a2a_experimental=True)", "a2a_experimental"},
           {"LoRA(share_expert_adapters=False)", "share_expert_adapters"},
           {"LoRA(normalize_moe_lora=True)", "normalize_moe_lora"},
           {"LoRA(exclude_modules=[\"linear_qkv\"])", "exclude_modules"},
           {"LoRA(target_modules=[])", "exclude_modules"},
           {"LoRA(lora_dtype=torch.float32)", "lora_dtype"},
           {"LoRA(target_modules=[\"linear_q\"])", "linear_q"},
           {"LoRA(target_modules=[\"*.layers.0.*.linear_qkv\"])", "*"},
           {"LoRA(target_modules=[\"*.mlp.linear_fc1\"])", "*"}}) {
    CAPTURE(peft);
    const auto s =
        emit::from_bridge_text(text + "cfg.peft = " + peft + "\n", "run.py", {8, 8, "h100-sxm", ""}).scenario;
    CHECK(s.settings.other.at("peft") == value);
    const auto refused = scenario::unmodelled(s);
    const auto found = std::ranges::find(refused, "peft", &scenario::Unmodelled::name);
    REQUIRE(found != refused.end());
    CHECK(found->missing != general);
  }
  const auto usual = read(
      "cfg.peft = LoRA(dim=8, dropout_position=\"pre\", a2a_experimental=False, lora_dtype=None, exclude_modules=[], "
      "share_expert_adapters=True, normalize_moe_lora=False)\n");
  CHECK_FALSE(usual.other.contains("peft"));
  CHECK(usual.lora_dim == 8);
}

TEST_CASE("a recipe's body: objects made by calls, its own variables, None for what the class decides") {
  const std::string model =
      "cfg.model.num_layers = 8\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 16\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 64\n";
  const auto read = [&](const std::string& text, std::vector<std::string> ignore = {}) {
    emit::Machine machine{8, 8, "h100-sxm", ""};
    machine.ignore = std::move(ignore);
    return emit::from_bridge_text(text, "recipe.py", machine);
  };
  const auto plain = read(model);
  for (const char* more : {
           "cfg = _pretrain_common()\ncfg.model = AutoBridge.from_hf_pretrained(\"meta-llama/Meta-Llama-3-8B\")"
           ".to_megatron_provider(load_weights=False)\n",
           "cfg.model = provider\n",
           "cfg.dataset = HFDatasetConfig(path=\"x\", seed=1)\ncfg.tokenizer = TokenizerConfig(a=1)\n",
           "cfg.env_vars = {**COMMON, }\n",
           "cfg.model.attention_backend = None\ncfg.model.vocab_size = None\n",
           "cfg.scheduler.lr_decay_iters = float(3)\n",
       }) {
    CAPTURE(std::string(more));
    auto both = read(more + model);
    CHECK(both.scenario == plain.scenario);
  }
  CHECK_NOTHROW(read(model + "cfg.train.manual_gc_eval = 3\n"));
  // Newer names, and values that Megatron compares with none of its own.
  CHECK(read(model + "cfg.model.cp_comm_type = \"allgather\"\n").scenario ==
        read(model + "cfg.model.cp_comm_type = \"all_gather\"\n").scenario);
  CHECK(read(model + "cfg.model.experimental_attention_variant = \"gdn\"\n").scenario ==
        read(model + "cfg.model.experimental_attention_variant = \"gated_delta_net\"\n").scenario);
  const auto mixture = [&](const std::string& more) {
    return read(model + "cfg.model.num_moe_experts = 8\n" + more).scenario;
  };
  CHECK(mixture("cfg.model.moe_router_load_balancing_type = \"noaux_tc\"\n") ==
        mixture("cfg.model.moe_router_load_balancing_type = \"none\"\n"));
  CHECK(mixture("cfg.model.moe_router_dtype = \"bf16\"\n") == mixture("cfg.model.moe_router_dtype = None\n"));
  CHECK(read(model + "cfg.model.window_attn_skip_freq = [True, False]\n").scenario.model.window_attn_skip_freq ==
        read(model + "cfg.model.window_attn_skip_freq = [1, 0]\n").scenario.model.window_attn_skip_freq);
  CHECK(read(model + "length = 8192\ncfg.model.seq_length = length\n").scenario.model.seq_length == 8192);
  CHECK(read("cfg.model = GPTModelProvider(num_layers=8, hidden_size=1024, num_attention_heads=16, seq_length=4096, "
             "vocab_size=32000)\ncfg.train = TrainingConfig(micro_batch_size=1, global_batch_size=64)\n")
            .scenario == plain.scenario);
  CHECK(read(model + "cfg.env_vars = {**COMMON, \"NCCL_DEBUG\": \"WARN\"}\n")
            .scenario.environment.contains("NCCL_DEBUG"));
  CHECK_THROWS_WITH_AS(read(model + "cfg.model.frobnicate = 3\n"), doctest::Contains("--ignore frobnicate"),
                       UsageError);
  CHECK(read(model + "cfg.model.frobnicate = 3\n", {"frobnicate"}).scenario == plain.scenario);
  CHECK_THROWS_WITH_AS(read(model + "cfg.model.seq_length = LENGTH\n"), doctest::Contains("recipe.py:8"), UsageError);
  CHECK_THROWS_AS(read(model + "cfg.model.pipeline_model_parallel_layout = _layout(4, 1)\n"), UsageError);
}

}  // namespace import_test
