// What a scenario's settings and software version mean for the schedule.
#include <doctest/doctest.h>

#include <string>

#include "pipewright/base.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/schedule.hpp"

namespace config_test {

using namespace pipewright;

namespace {

schedule::Config config(const std::string& settings, const std::string& software, bool detail = false) {
  const std::string yaml =
      "scenario: 1\n"
      "model: {num_layers: 16, hidden_size: 1024, num_attention_heads: 8, seq_length: 2048, vocab_size: 32000,\n"
      "        num_moe_experts: 8, moe_layer_freq: [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}\n"
      "settings: {bf16: true, micro_batch_size: 1, global_batch_size: 16, " +
      settings +
      "}\n"
      "cluster: {profile: h200-sxm, num_gpus: 8}\n"
      "software: {megatron_core: " +
      software + "}\n";
  return schedule::config_of(scenario::parse(yaml, "test.yaml"), detail);
}

const std::string interleaved =
    "pipeline_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 2, overlap_p2p_comm: true, ";

}  // namespace

TEST_CASE("1F1B") {
  const auto c = config("pipeline_model_parallel_size: 4", "0.19.0");
  CHECK(c.stages == 4);
  CHECK(!c.chunks);
  CHECK(c.microbatches == 8);  // 16 over DP 2
  CHECK(c.batched);
  CHECK(!c.overlap_p2p);
}

TEST_CASE("interleaved, hooks as training.py sets them") {
  auto c = config(interleaved +
                      "overlap_grad_reduce: true, overlap_param_gather: true, "
                      "use_distributed_optimizer: true, microbatch_group_size_per_vp_stage: 8",
                  "0.19.0");
  CHECK(c.chunks == 2);
  CHECK(c.group_size == 8);
  CHECK(c.overlap_p2p);
  CHECK(!c.batched);
  CHECK(c.deallocate_outputs);
  CHECK(c.overlap_grad_reduce);
  CHECK(c.align_grad_reduce);    // the default
  CHECK(!c.align_param_gather);  // the default
  c = config(interleaved + "align_grad_reduce: true", "0.19.0");
  CHECK(!c.align_grad_reduce);  // nothing to align without overlap_grad_reduce
  CHECK(c.group_size == 4);
}

TEST_CASE("align_param_gather without chunks: the parser of Megatron-LM switches it off, Bridge does not") {
  const std::string aligned =
      "pipeline_model_parallel_size: 4, use_distributed_optimizer: true, overlap_param_gather: true, "
      "align_param_gather: true";
  CHECK(!config(aligned, "0.19.0").align_param_gather);
  CHECK(config(aligned, "0.19.0, megatron_bridge: 0.6.0").align_param_gather);
  CHECK(config(aligned + ", virtual_pipeline_model_parallel_size: 2", "0.19.0").align_param_gather);
}

TEST_CASE("one chunk a rank") {
  // The parser of Megatron-LM makes it none; without the parser the interleaved schedule runs, where it can.
  const std::string one = "pipeline_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 1, ";
  const std::string bridge = "0.19.0, megatron_bridge: 0.6.0";
  CHECK(!config(one, "0.19.0").chunks);
  CHECK(schedule::build(config(one, bridge)).ranks[0].warmup == 6);
  const auto refused = [&](const std::string& more) {
    try {
      schedule::check(config(one + more, bridge));
      return std::string();
    } catch (const UsageError& error) {
      return error.message().substr(0, error.message().find(':'));
    }
  };
  CHECK(refused("overlap_p2p_comm: false") == "");
  CHECK(refused("overlap_p2p_comm: true") == "NameError");
  CHECK(refused("overlap_p2p_comm: true, overlap_moe_expert_parallel_comm: true") == "");
  CHECK(refused("use_distributed_optimizer: true, overlap_param_gather: true, align_param_gather: true") ==
        "IndexError");
}

TEST_CASE("outputs are deallocated unless the scenario says no, as training code sets it") {
  CHECK(config(interleaved, "0.19.0").deallocate_outputs);
  CHECK(!config(interleaved + "deallocate_pipeline_outputs: false", "0.19.0").deallocate_outputs);
}

TEST_CASE("versions") {
  CHECK(config(interleaved, "0.19.0").from_0_18);
  CHECK(config(interleaved, "0.18.0").from_0_18);
  CHECK(config(interleaved, "dev").from_0_18);
  CHECK(!config(interleaved, "0.17.0").from_0_18);
  CHECK(!config(interleaved, "pr-4268").from_0_18);
}

TEST_CASE("expert-parallel overlap in detail") {
  const auto c = config(interleaved +
                            "expert_model_parallel_size: 2, overlap_moe_expert_parallel_comm: true, "
                            "moe_token_dispatcher_type: alltoall, delay_wgrad_compute: true, "
                            "overlap_p2p_backward_on_comm_stream: true, overlap_p2p_wgrad_delayed_layer_number: 2",
                        "pr-4268", true);
  CHECK(c.ep_overlap);
  CHECK(c.delay_wgrad_compute);
  CHECK(c.overlap_p2p_backward_on_comm_stream);
  CHECK(c.overlap_p2p_wgrad_delayed_layer_number == 2);
  REQUIRE(c.layers.size() == 4);
  REQUIRE(c.layers[0].size() == 2);
  REQUIRE(c.layers[0][0].size() == 2);
  CHECK(!c.layers[0][0][0].moe);  // the model's first layer is dense
  CHECK(c.layers[0][0][1].moe);
  CHECK(schedule::build(c).ranks.size() == 4);
}

}  // namespace config_test
