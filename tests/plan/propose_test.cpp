// From a bare architecture to a run worth planning: what is proposed, what is opened, what stays as it is stated.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "bases.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/derived.hpp"

namespace propose_test {

using namespace pipewright;

TEST_CASE("a bare architecture becomes a run worth planning; what is stated stays") {
  auto s = test::scenario("single", "");
  s.settings = {};
  s.positions.clear();
  scenario::set(s, "bf16=false");
  scenario::set(s, "search.layout=keep");
  const auto p = plan::proposed(s);
  CHECK_FALSE(p.settings.bf16);
  CHECK(p.settings.use_distributed_optimizer);
  CHECK(p.search.parallelism == "auto");
  CHECK(p.search.layout == "keep");
}

TEST_CASE("what is proposed for a bare architecture breaks no rule and idles nowhere, in any family") {
  std::size_t families = 0;
  for (const auto& file : std::filesystem::directory_iterator(SOURCE_ROOT "/tests/scenario/data"))
    for (const char* size : {"tp=1", "tp=2", "cp=2", "pp=2", "vpp=2"}) {
      if (file.path().extension() != ".json") continue;
      CAPTURE(file.path().string());
      CAPTURE(size);
      scenario::Scenario s;
      try {
        s = scenario::from_hf(file.path().string());
      } catch (const UsageError&) {
        continue;  // what is read and refused: tests/scenario
      }
      ++families;
      for (const char* said : {"cluster.num_gpus=8", "seq_length=2048", "global_batch_size=32", size})
        scenario::set(s, said);
      if (s.settings.virtual_pipeline_model_parallel_size) {  // a chunk of one layer at least, all alike
        if (s.model.num_layers % 4 != 0 || scenario::is_hybrid(s)) continue;
        scenario::set(s, "pp=2");
        CHECK(plan::proposed(s).settings.overlap_p2p_comm);
      }
      for (const auto& finding : plan::check(plan::proposed(s))) {
        // Layers that the model has are for the user to leave out: of Qwen3.5 pretrain_gpt.py cannot build them all.
        const bool own = finding.rule == "layers.pipeline" || finding.rule == "model.mtp-attention-variant";
        CHECK_MESSAGE((finding.severity == plan::Severity::trap || own), finding.rule);
        if (finding.rule != "model.mtp-attention-variant") continue;
        auto without = s;
        scenario::set(without, "mtp_num_layers=none");
        const auto left = plan::check(plan::proposed(without));
        CHECK(std::ranges::find(left, finding.rule, &plan::Finding::rule) == left.end());
      }
    }
  CHECK(families > 100);
  // What is stated stays, and is refused.
  auto stated = scenario::from_hf(SOURCE_ROOT "/tests/scenario/data/gpt-oss-20b.json");
  scenario::set(stated, "bias_dropout_fusion=true");
  scenario::set_env(stated, "CUDA_DEVICE_MAX_CONNECTIONS=32");
  scenario::set(stated, "tp=2");
  const auto kept = plan::proposed(stated);
  CHECK(kept.settings.bias_dropout_fusion);
  CHECK(kept.environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "32");
}

TEST_CASE("a bare architecture: a written search is exact, stated sizes stay until they are opened") {
  using Values = std::map<std::string, std::vector<std::string>>;
  auto bare = test::scenario("single", "");
  bare.positions.clear();
  auto exact = bare, sized = bare;
  scenario::set(exact, "search.recompute=auto");
  CHECK(plan::proposed(exact).search == exact.search);
  CHECK(plan::proposed(exact).settings.overlap_grad_reduce);
  scenario::set(sized, "tp=2");
  scenario::set(sized, "mbs=1");
  const auto p = plan::proposed(sized);
  CHECK(p.search.parallelism == "auto");
  CHECK(p.search.microbatch != "auto");
  CHECK(p.search.values == Values{{"tensor_model_parallel_size", {"2"}}});
  CHECK(plan::opened(p, {"parallelism"}).search.values.empty());
  CHECK(plan::opened(p, {"all"}).search.values.empty());
  CHECK(plan::opened(p, {"tensor_model_parallel_size"}).search.values.empty());
  CHECK(plan::opened(p, {"recompute"}).search.values == p.search.values);
  // One size of a scenario of its own: the others stay.
  CHECK(plan::opened(bare, {"context_parallel_size"}).search.values == Values{{"tensor_model_parallel_size", {"1"}},
                                                                              {"pipeline_model_parallel_size", {"1"}},
                                                                              {"expert_model_parallel_size", {"1"}}});
}

}  // namespace propose_test
