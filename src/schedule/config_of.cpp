// From a scenario's settings to what decides the schedule.
#include <algorithm>
#include <string>

#include "pipewright/base.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::schedule {
namespace {

int narrow(scenario::Int value, const char* key) {
  if (value > INT32_MAX || value < INT32_MIN) throw UsageError({}, key, "is out of range");
  return static_cast<int>(value);
}

/// Off in Megatron Core's class, but Megatron-LM (argument_utils.py:305) and Bridge (gpt_provider.py:162) always turn
/// it on: it is off only where a scenario says so.
bool deallocates_outputs(const scenario::Scenario& scenario) {
  return scenario.settings.deallocate_pipeline_outputs ||
         !scenario.positions.contains("settings.deallocate_pipeline_outputs");
}

std::vector<Layer> layers_of_chunk(const scenario::Scenario& scenario, int rank, int chunk) {
  const scenario::Stage stage = scenario::stage(scenario, rank, chunk);
  std::vector<Layer> layers;
  for (const auto layer : stage.layers) layers.push_back({.moe = scenario::is_moe_layer(scenario, layer)});
  const bool moe = scenario::is_moe_mtp(scenario);
  for (scenario::Int i = 0; i < stage.mtp_layers; ++i) layers.push_back({.moe = moe, .mtp = true});
  return layers;
}

}  // namespace

Config config_of(const scenario::Scenario& scenario, bool detail) {
  const scenario::Settings& s = scenario.settings;
  Config c;
  c.stages = narrow(s.pipeline_model_parallel_size, "pipeline_model_parallel_size");
  c.microbatches = narrow(scenario::num_microbatches(scenario), "number of microbatches");
  if (scenario::interleaved(scenario)) {
    c.chunks = narrow(scenario::num_chunks(scenario), "virtual_pipeline_model_parallel_size");
    c.group_size = narrow(scenario::group_size(scenario), "microbatch_group_size_per_vp_stage");
  }
  c.deferred_head_wgrads = narrow(scenario::deferred_head_wgrads(scenario), "wgrad_deferral_limit");
  constexpr std::int64_t most = 8'000'000;  // some 100 B each; published runs have 0.1 million
  if (std::int64_t{2} * c.stages * c.chunks.value_or(1) > most / c.microbatches)
    throw UsageError(scenario::position(scenario, "settings.global_batch_size"), "settings.global_batch_size",
                     "too long a schedule: " + std::to_string(c.microbatches) + " microbatches over " +
                         std::to_string(c.stages) + " stages of " + std::to_string(c.chunks.value_or(1)) +
                         " chunks, the limit is " + std::to_string(most) + " forwards and backwards in all");
  c.overlap_p2p = s.overlap_p2p_comm;
  c.warmup_flush = s.overlap_p2p_comm_warmup_flush;
  c.batched = scenario::batch_p2p_comm(scenario);
  c.varied = scenario::rows_differ(scenario);
  c.ep_overlap = s.overlap_moe_expert_parallel_comm;
  c.from_0_18 = scenario::core_version(scenario.software) >= scenario::Version::v0_18;
  c.deallocate_outputs = deallocates_outputs(scenario);
  // training.py:3532-3545
  c.overlap_grad_reduce = s.overlap_grad_reduce;
  c.align_grad_reduce = s.overlap_grad_reduce && s.align_grad_reduce;
  // arguments.py switches it off without interleaving; else it keeps DDP's hooks from gathering ahead all the same.
  c.align_param_gather =
      s.overlap_param_gather && s.align_param_gather && (c.chunks || !scenario::parsed_by_megatron(scenario));

  c.delay_wgrad_compute = s.delay_wgrad_compute;
  c.ep_overlap_early_attn_memory_release = s.ep_overlap_early_attn_memory_release;
  if (scenario::core_version(scenario.software) == scenario::Version::pr_4268) {
    c.overlap_p2p_backward_on_comm_stream = s.overlap_p2p_backward_on_comm_stream;
    c.overlap_p2p_with_transformer_layer_wgrad = s.overlap_p2p_with_transformer_layer_wgrad;
    c.overlap_p2p_wgrad_delayed_layer_number =
        narrow(s.overlap_p2p_wgrad_delayed_layer_number, "overlap_p2p_wgrad_delayed_layer_number");
  }
  if (detail && c.ep_overlap) {
    c.layers.resize(static_cast<std::size_t>(c.stages));
    for (int rank = 0; rank < c.stages; ++rank)
      for (int chunk = 0; chunk < c.chunks.value_or(1); ++chunk)
        c.layers[static_cast<std::size_t>(rank)].push_back(layers_of_chunk(scenario, rank, chunk));
  }
  return c;
}

}  // namespace pipewright::schedule
