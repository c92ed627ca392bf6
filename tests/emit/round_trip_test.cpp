// What is printed reads back as the scenario it came from, in every notation; what cannot be said is said in a
// comment that names the field. Argument: folders with scenarios.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "../plan/bases.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace round_trip_test {

using namespace pipewright;

namespace {

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  for (const auto* folder : {"tests/measured", "scenarios"})
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(SOURCE_ROOT) / folder))
      if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

std::string command_line(const scenario::Scenario& s) {
  std::string line;
  for (const auto& word : emit::words(emit::megatron(s))) line += emit::quoted(word) + " ";
  return line;
}

std::string override_text(const scenario::Scenario& s) { return emit::text(emit::bridge(s), false); }

}  // namespace

TEST_CASE("Megatron command lines read back as the scenario") {
  for (const auto& file : scenario_files()) {
    CAPTURE(file);
    const auto s = scenario::read(file);
    const auto back = emit::from_megatron(command_line(s), machine_of(s));
    CHECK(unsaid_differences(s, back.scenario, emit::megatron(s)) == "");
    CHECK(back.findings.empty());
    auto notes = back.notes;
    std::erase(notes, "without effect on time and memory: --ckpt-format");  // stands beside a flag that needs it
    CHECK_MESSAGE(notes.empty(), (notes.empty() ? std::string() : notes.front()));
    // Once through, nothing changes any more.
    CHECK(command_line(back.scenario) == command_line(s));
  }
}

TEST_CASE("a base of the rotary frequencies is said as the integer that the parser takes, and what is lost is named") {
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama3-8b-pretrain-8xh100.yaml");
  s.model.rotary_base = 999999.4420358813;  // StarCoder2 3B
  CHECK(command_line(s).find("--rotary-base 999999 ") != std::string::npos);
  bool named = false;
  for (const auto& group : emit::megatron(s))
    for (const auto& line : group.lines) named |= line.comment.starts_with("rotary_base: 999999.44");
  CHECK(named);
  s.model.rotary_base = 1e8;
  CHECK(command_line(s).find("--rotary-base 100000000 ") != std::string::npos);
}

TEST_CASE("a parser's default that changed between versions is stated where it is another") {
  for (const char* version : {"0.16.0", "0.17.0", "0.18.0", "0.19.0", "dev", "main"}) {
    CAPTURE(version);
    auto s = scenario::read(SOURCE_ROOT "/scenarios/llama3-8b-pretrain-8xh100.yaml");
    s.software.megatron_core = version;
    s.settings.use_megatron_fsdp = true;
    s.settings.data_parallel_sharding_strategy = "optim_grads_params";
    const auto back = emit::from_megatron(command_line(s), machine_of(s));
    CHECK(back.scenario.settings.data_parallel_sharding_strategy == "optim_grads_params");
  }
}

/// Which variables are required depends on the GPU; commands ask the profile, here its name says it.
scenario::Scenario on_its_gpu(scenario::Scenario s) {
  if (s.cluster.profile.starts_with("gb")) s.cluster.compute_capability = 100;
  return s;
}

TEST_CASE("Bridge overrides read back as the scenario") {
  for (const auto& file : scenario_files()) {
    CAPTURE(file);
    const auto s = on_its_gpu(scenario::read(file));
    auto back = emit::from_bridge_text(override_text(s), "overrides", machine_of(s));
    back.scenario = on_its_gpu(std::move(back.scenario));
    CHECK(unsaid_differences(s, back.scenario, emit::bridge(s)) == "");
    CHECK(back.findings.empty());
    CHECK(emit::words(emit::bridge(back.scenario)) == emit::words(emit::bridge(s)));
    CHECK(back.scenario.environment == s.environment);
  }
}

TEST_CASE("every flag printed exists in the version it is printed for") {
  for (const auto& version : scenario::stated_names(scenario::all_versions)) {
    auto s = test::scenario("moe",
                            "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true; "
                            "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn, moe_router]; "
                            "recompute_granularity=selective; recompute_modules=[moe_act, layernorm]; "
                            "moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1]; overlap_p2p_wgrad_delayed_layer_number=2");
    scenario::set(s, "megatron_core=" + version);
    CAPTURE(version);
    const auto words = emit::words(emit::megatron(s));
    for (const auto& word : words) {
      if (!word.starts_with("--")) continue;
      const auto* flag = emit::find_flag(word);
      CAPTURE(word);
      REQUIRE(flag != nullptr);
      CHECK(emit::has(*flag, s.software));
    }
    const bool pull_request = version == "pr-4268";
    CHECK(std::ranges::count(words, "--overlap-p2p-wgrad-delayed-layer-number") == (pull_request ? 1 : 0));
    const bool modules = s.software.megatron_core != "0.16.0" && s.software.megatron_core != "0.17.0" && !pull_request;
    CHECK(std::ranges::count(words, modules ? "--cuda-graph-modules" : "--cuda-graph-scope") == 1);
    CHECK(unsaid_differences(s, emit::from_megatron(command_line(s), machine_of(s)).scenario, emit::megatron(s)) == "");
  }
}

TEST_CASE("what a version lacks is a comment") {
  const auto s = test::scenario("dense",
                                "overlap_p2p_wgrad_delayed_layer_number=3; "
                                "fp8=hybrid; fp8_recipe=tensorwise; disable_parameter_transpose_cache=true");
  const auto remarks = emit::comments(emit::megatron(s));
  const auto names = [&](const char* text) {
    return std::ranges::any_of(remarks, [&](const std::string& r) { return r.find(text) != std::string::npos; });
  };
  CHECK(names("has no --overlap-p2p-wgrad-delayed-layer-number (versions with it: pr-4268)"));
  CHECK(names("disable_parameter_transpose_cache: true has no flag"));
  const auto te = test::scenario("dense", "cross_entropy_loss_fusion=true; cross_entropy_fusion_impl=te");
  CHECK(
      emit::text(emit::megatron(te), false).find("refused: Transformer Engine cross entropy loss fusion is disabled") !=
      std::string::npos);
}

TEST_CASE("Bridge fields stand where they take effect") {
  const auto s = test::scenario("moe", "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true");
  const auto words = emit::words(emit::bridge(s));
  CHECK(std::ranges::count(words, "cfg.comm_overlap.overlap_moe_expert_parallel_comm = True") == 1);
  CHECK(std::ranges::count(words, "cfg.comm_overlap.delay_wgrad_compute = True") == 1);
  CHECK(std::ranges::count(words, "cfg.train.global_batch_size = 16") == 1);
  CHECK(std::ranges::count(words, "cfg.mixed_precision = get_mixed_precision_config(\"bf16_mixed\")") == 1);
}

TEST_CASE("harness options") {
  const auto words = [](const char* changes) { return emit::words(emit::harness(test::scenario("dense", changes))); };
  const auto has = [](const std::vector<std::string>& list, std::vector<std::string> run) {
    return std::ranges::search(list, run).begin() != list.end();
  };
  CHECK(has(words(""), {"-pp", "4"}));
  CHECK(has(words(""), {"-vp", "2"}));
  CHECK(has(words("recompute_granularity=full; recompute_method=block; recompute_num_layers=1"), {"-rl", "1"}));
  CHECK(has(words("recompute_granularity=selective; recompute_modules=[mlp, core_attn]"),
            {"--recompute_modules", "mlp,core_attn"}));
  CHECK(has(words("recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"),
            {"model.recompute_method=uniform"}));
  CHECK(has(words("fp8=hybrid; fp8_recipe=tensorwise"), {"-c", "fp8_cs"}));
}

TEST_CASE("the environment holds what Megatron insists on") {
  auto s = test::scenario("tensor", "");
  s.environment.clear();
  const auto groups = emit::environment(s);
  CHECK(emit::words(groups) == std::vector<std::string>{"CUDA_DEVICE_MAX_CONNECTIONS=1"});
  CHECK_FALSE(emit::comments(groups).empty());
}

}  // namespace round_trip_test
