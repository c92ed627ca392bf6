// Launch scripts and model_config.yaml as people and NVIDIA write them, and what of them is told.
#include <doctest/doctest.h>

#include <algorithm>

#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace import_script_test {

using namespace pipewright;

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

}  // namespace import_script_test
