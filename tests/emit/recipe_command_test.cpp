// Command lines of Megatron Bridge's runners over what their recipe sets.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
  const auto base = test::scenario("dense", "");
  const auto path = std::filesystem::temp_directory_path() / ("pipewright_recipe_" + std::to_string(getpid()) + ".txt");
  std::string text;
  for (const auto& line : emit::words(emit::bridge(base))) text += line + "\n";
  std::ofstream(path) << text;
  for (const char* changes : {"tensor_model_parallel_size=1; sequence_parallel=false; micro_batch_size=2",
                              "recompute_granularity=selective; recompute_modules=[mlp, core_attn]",
                              "recompute_granularity=full; recompute_method=block; recompute_num_layers=2",
                              "global_batch_size=256; context_parallel_size=2"}) {
    CAPTURE(std::string(changes));
    const auto s = test::scenario("dense", changes);
    std::string command = "python scripts/performance/setup_experiment.py -m llama -mr llama3_8b";
    for (const auto& word : emit::words(emit::harness(s))) command += ' ' + emit::quoted(word);
    const auto back = run(command, path.string()).scenario;
    CHECK(back.cluster.num_gpus == s.cluster.num_gpus);
    for (const char* field : {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
                              "micro_batch_size", "global_batch_size", "seq_length", "recompute_granularity",
                              "recompute_modules", "recompute_method", "recompute_num_layers"}) {
      CAPTURE(std::string(field));
      CHECK(scenario::get(back, field) == scenario::get(s, field));
    }
  }
  std::filesystem::remove(path);
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
