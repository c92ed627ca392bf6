// Command lines of Megatron Bridge's runners over what their recipe sets.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "../plan/bases.hpp"
#include "support.hpp"

namespace recipe_command_test {

using namespace pipewright;

namespace {

const std::string configuration = std::string(SOURCE_ROOT) + "/tests/emit/data/run_config.yaml";

emit::Import run(const std::string& command, const std::string& recipe = configuration) {
  emit::Machine machine{0, 8, "h100-sxm", ""};
  machine.recipe = recipe;
  return emit::from_launch_file("#!/bin/bash\n" + command + "\n", "train.sh", machine);
}

std::string said(const std::string& command, const std::string& recipe = configuration) {
  try {
    run(command, recipe);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

/// Overrides that make a scenario, in a file.
class Recipe {
 public:
  explicit Recipe(const scenario::Scenario& s)
      : path_(std::filesystem::temp_directory_path() / ("pipewright_recipe_" + std::to_string(getpid()) + ".txt")) {
    std::ofstream out(path_);
    for (const auto& line : emit::words(emit::bridge(s))) out << line << "\n";
  }
  ~Recipe() { std::filesystem::remove(path_); }
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("a command's options and overrides lie over the recipe's configuration, its launcher says the GPUs") {
  const auto import =
      run("torchrun --nnodes 2 --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config "
          "--mode pretrain --dataset mock -tp 2 --micro_batch_size=1 -gb 64 -sl 2048 --save_dir /x "
          "model.sequence_parallel=true "
          "train.train_iters=10");
  const auto& s = import.scenario;
  CHECK((s.cluster.num_gpus == 16 && s.cluster.gpus_per_node == 8));
  CHECK((s.settings.tensor_model_parallel_size == 2 && s.settings.sequence_parallel));
  CHECK((s.settings.micro_batch_size == 1 && s.settings.global_batch_size == 64 && s.model.seq_length == 2048));
  const auto plain = emit::from_bridge(configuration, {16, 8, "h100-sxm", ""}).scenario;
  CHECK(s.model.hidden_size == plain.model.hidden_size);
  CHECK(s.model.num_layers == plain.model.num_layers);
  CHECK(s.settings.optimizer == plain.settings.optimizer);
  CHECK(import.notes.back().find("model.sequence_parallel=true") != std::string::npos);
  const auto copied = run("torchrun run_recipe.py --recipe x -tp 2\ncp run_recipe.py /logs/");
  CHECK(copied.scenario.settings.tensor_model_parallel_size == 2);
  // What submits it says GPUs by options of its own, and hands variables on.
  const auto sent = run("./scripts/training/train.sh --nodes 4 --gpus-per-node 4 --account A --partition P "
                        "--container-image i.sqsh --env "
                        "NCCL_DEBUG=WARN --recipe x -pp 2")
                        .scenario;
  CHECK((sent.cluster.num_gpus == 16 && sent.cluster.gpus_per_node == 4));
  CHECK(sent.environment.at("NCCL_DEBUG") == "WARN");
  CHECK(sent.settings.pipeline_model_parallel_size == 2);
}

TEST_CASE("an option is its override, of whatever spelling") {
  const std::vector<std::array<std::string, 3>> pairs = {
      {"-tp", "--tensor_model_parallel_size", "model.tensor_model_parallel_size"},
      {"-pp", "--pipeline-model-parallel-size", "model.pipeline_model_parallel_size"},
      {"-cp", "--context_parallel_size", "model.context_parallel_size"},
      {"-mb", "--micro_batch_size", "train.micro_batch_size"},
      {"-gb", "--global-batch-size", "train.global_batch_size"},
      {"-sl", "--seq_length", "dataset.seq_length"},
      {"-vp", "--virtual_pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"}};
  for (unsigned round = 0; round < 60; ++round) {
    test::Mutator random(round);
    std::string by_option, by_override;
    for (const auto& [brief, whole, field] : pairs) {
      if (random.below(2) == 0) continue;
      const auto value = std::to_string(1U << random.below(3));
      const auto& name = random.below(2) == 0 ? brief : whole;
      by_option += ' ' + name + (name == whole && random.below(2) == 0 ? "=" : " ") + value;
      by_override += ' ' + field + '=' + value;
    }
    CAPTURE(by_option);
    const std::string command = "torchrun --nproc_per_node 8 run_recipe.py --recipe x";
    CHECK(run(command + by_option).scenario == run(command + by_override).scenario);
  }
}

TEST_CASE("options of the performance harness as they are emitted are read back over another run of the model") {
  for (const auto& [base, changes] : std::vector<std::pair<const char*, const char*>>{
           {"dense", "tensor_model_parallel_size=1; sequence_parallel=false; micro_batch_size=2"},
           {"dense", "recompute_granularity=selective; recompute_modules=[mlp, core_attn]"},
           {"dense", "recompute_granularity=full; recompute_method=block; recompute_num_layers=2"},
           {"dense", "global_batch_size=256; context_parallel_size=2"},
           {"dense", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]"},
           {"dense", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn, mlp]"},
           {"dense", "cuda_graph_impl=full_iteration"},
           {"moe", "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn, moe_router, moe_preprocess]"},
           {"moe", "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep"},
           {"moe", "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep"}}) {
    CAPTURE(std::string(changes));
    const Recipe recipe(test::scenario(base, ""));
    const auto s = test::scenario(base, changes);
    std::string command = "python scripts/performance/setup_experiment.py -m llama -mr llama3_8b";
    for (const auto& word : emit::words(emit::harness(s))) command += ' ' + emit::quoted(word);
    const auto back = run(command, recipe.path()).scenario;
    CHECK(back.cluster.num_gpus == s.cluster.num_gpus);
    for (const char* field : {"tensor_model_parallel_size", "sequence_parallel", "pipeline_model_parallel_size",
                              "context_parallel_size", "micro_batch_size", "global_batch_size", "seq_length",
                              "recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers",
                              "cuda_graph_impl", "cuda_graph_modules", "moe_token_dispatcher_type"}) {
      CAPTURE(std::string(field));
      CHECK(scenario::get(back, field) == scenario::get(s, field));
    }
    if (s.settings.moe_token_dispatcher_type == "flex")
      CHECK(back.settings.moe_flex_dispatcher_backend == s.settings.moe_flex_dispatcher_backend);
  }
}

// utils/overrides.py: what its functions make of options, over recipes with and without experts and graphs.
TEST_CASE("the harness' options set what its code sets, whatever stands in the recipe and in which order") {
  for (unsigned round = 0; round < test::draws(60); ++round) {
    test::Mutator random(round);
    const bool graphs = random.below(2) == 0;
    const auto dense_before = static_cast<scenario::Int>(random.below(4));
    auto own = test::scenario("moe", graphs ? "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]" : "");
    own.model.moe_layer_freq.assign(static_cast<std::size_t>(own.model.num_layers), 1);
    std::fill_n(own.model.moe_layer_freq.begin(), dense_before, 0);
    const Recipe recipe(own);
    std::vector<std::string> options;
    auto expected = run("setup_experiment.py -mr x", recipe.path()).scenario;
    auto& o = expected.settings;
    auto& m = expected.model;
    std::string impl = graphs ? "transformer_engine" : "none";
    if (random.below(2) == 0) {
      impl = random.below(2) == 0 ? "none" : "transformer_engine";
      options.push_back("--cuda_graph_impl " + impl);
      if (impl == "none") o.cuda_graph_modules.clear();
      if (impl != "none") o.use_te_rng_tracker = true;
    }
    if (random.below(2) == 0) {
      const bool router = random.below(2) == 0;
      options.emplace_back(router ? "--cuda_graph_scope attn,moe_router" : "--cuda_graph_scope=mlp");
      if (impl != "none")
        o.cuda_graph_modules = router ? scenario::Strings{"attn", "moe_router"} : scenario::Strings{"mlp"};
    }
    o.cuda_graph_impl = impl;
    if (random.below(2) == 0) {
      const char* backend = random.below(2) == 0 ? "deepep" : random.below(2) == 0 ? "hybridep" : "None";
      options.push_back(std::string("--moe_flex_dispatcher_backend ") + backend);
      const bool flex = std::string(backend) != "None";
      o.moe_token_dispatcher_type = flex ? "flex" : "alltoall";
      if (flex) {
        o.moe_flex_dispatcher_backend = backend;
        o.moe_shared_expert_overlap = false;
      }
    }
    if (random.below(2) == 0) {
      const bool drops = random.below(2) == 0;
      options.emplace_back(drops ? "--use_tokendrop True" : "--use_tokendrop no");
      o.moe_expert_capacity_factor = drops ? std::optional<double>(1.0) : std::nullopt;
      o.moe_pad_expert_input_to_capacity = drops;
      o.moe_router_force_load_balancing = !drops;
    }
    std::optional<scenario::Int> dense;
    bool pattern = false;
    if (random.below(2) == 0) {
      dense = static_cast<scenario::Int>(random.below(5));
      options.push_back("--first_k_dense_replace " + std::to_string(*dense));
      pattern = true;
    }
    if (random.below(2) == 0) {
      m.num_layers = 8;
      options.emplace_back("--num_layers 8");
      pattern = true;
    }
    if (pattern) {
      m.moe_layer_freq.assign(static_cast<std::size_t>(m.num_layers), 1);
      std::fill_n(m.moe_layer_freq.begin(), dense.value_or(dense_before), 0);
    }
    if (random.below(2) == 0) {
      const bool split = random.below(2) == 0;
      o.tensor_model_parallel_size = split ? 2 : 1;
      o.sequence_parallel = split;
      options.emplace_back(split ? "-tp 2" : "--tensor_model_parallel_size=1");
      options.emplace_back(split ? "model.sequence_parallel=false" : "model.tensor_model_parallel_size=4");  // lose
    }
    std::string command = "python scripts/performance/setup_experiment.py -mr x";
    for (; !options.empty(); options.pop_back()) {
      std::swap(options[random.below(options.size())], options.back());
      command += ' ' + options.back();
    }
    CAPTURE(command);
    const auto back = run(command, recipe.path()).scenario;
    for (const char* field :
         {"num_layers", "moe_layer_freq", "tensor_model_parallel_size", "sequence_parallel", "cuda_graph_impl",
          "cuda_graph_modules", "use_te_rng_tracker", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
          "moe_shared_expert_overlap", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity",
          "moe_router_force_load_balancing"}) {
      CAPTURE(std::string(field));
      CHECK(scenario::get(back, field) == scenario::get(expected, field));
    }
  }
  CHECK(said("setup_experiment.py -mr x --cuda_graph_scope attn,mpl").find("mlp") != std::string::npos);
  CHECK(said("setup_experiment.py -mr x --cuda_graph_scope attn,full_iteration").find("cannot be combined") !=
        std::string::npos);
  CHECK(said("setup_experiment.py -mr x --moe_flex_dispatcher_backend deep").find("hybridep") != std::string::npos);
  CHECK(said("setup_experiment.py -mr x --first_k_dense_replace 1").find("has no experts") != std::string::npos);
  const Recipe mixture(test::scenario("moe", "moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1]"));
  for (const char* wrong : {"--first_k_dense_replace 1000", "--first_k_dense_replace many", "--num_layers=1000000",
                            "--first_k_dense_replace -1"}) {
    CAPTURE(std::string(wrong));
    CHECK(said(std::string("setup_experiment.py -mr x ") + wrong, mixture.path()).find("train.sh:2: --") == 0);
  }
}

TEST_CASE("what a command says wrong is told by its line and name, also where nobody gives the recipe's settings") {
  for (const auto& recipe : {configuration, std::string()}) {
    CAPTURE(recipe);
    const std::string command = "run_recipe.py --recipe x ";
    CHECK(said(command + "--global-batchsize 3", recipe).find("train.sh:2: --global-batchsize: ") == 0);
    CHECK(said(command + "--global-batchsize 3", recipe).ends_with("did you mean \"--global-batch-size\"?"));
    CHECK(said(command + "modle.tensor_model_parallel_size=2", recipe).ends_with("did you mean \"model\"?"));
    CHECK(said(command + "model.tensor_modle_parallel_size=2", recipe).find("train.sh:2: ") == 0);
    CHECK(said(command + "tp", recipe).ends_with("expected an option, or an override SECTION.FIELD=VALUE"));
    CHECK(said(command + "-tp", recipe) == "train.sh:2: -tp: a value is missing");
    CHECK(said(command + "--use_megatron_fsdp maybe", recipe).find("expected true or false") != std::string::npos);
    CHECK(said(command + "-tp two", recipe).find("tensor_model_parallel_size") != std::string::npos);
  }
  CHECK(said("torchrun run_recipe.py --recipe x -tp 2", "").find("--bridge FILE gives its settings") !=
        std::string::npos);
  CHECK(said("torchrun pretrain_gpt.py --num-layers 2").find("trains no recipe of Megatron Bridge") !=
        std::string::npos);
}

}  // namespace recipe_command_test
