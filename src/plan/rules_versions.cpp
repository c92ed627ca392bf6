// Fields and values that a version lacks.
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {
namespace {

bool flex(const Scenario& s, std::string_view backend) {
  return s.settings.moe_token_dispatcher_type == "flex" && s.settings.moe_flex_dispatcher_backend == backend;
}

}  // namespace

std::vector<Rule> version_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"version.p2p-wgrad",
       violation,
       core,
       {"overlap_p2p_backward_on_comm_stream", "overlap_p2p_with_transformer_layer_wgrad",
        "overlap_p2p_wgrad_delayed_layer_number"},
       without("overlap_p2p_backward_on_comm_stream"),
       [](const Scenario& s) {
         return s.settings.overlap_p2p_backward_on_comm_stream || s.settings.overlap_p2p_with_transformer_layer_wgrad ||
                s.settings.overlap_p2p_wgrad_delayed_layer_number != 1;
       },
       "ModelParallelConfig of this version has none of overlap_p2p_backward_on_comm_stream, "
       "overlap_p2p_with_transformer_layer_wgrad, overlap_p2p_wgrad_delayed_layer_number: they exist only in "
       "Megatron-LM pull request 4268",
       "remove them, or run that pull request (software.megatron_core: pr-4268)"},
      {"version.op-fuser",
       violation,
       core,
       {"use_transformer_engine_op_fuser"},
       without("use_transformer_engine_op_fuser"),
       [](const Scenario& s) { return s.settings.use_transformer_engine_op_fuser; },
       "use_transformer_engine_op_fuser does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.paged-stash",
       violation,
       core,
       {"moe_paged_stash"},
       without("moe_paged_stash"),
       [](const Scenario& s) { return s.settings.moe_paged_stash; },
       "moe_paged_stash does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.dispatch-wgrad",
       violation,
       core,
       {"overlap_dispatch_backward_with_experts_wgrad"},
       without("overlap_dispatch_backward_with_experts_wgrad"),
       [](const Scenario& s) { return s.settings.overlap_dispatch_backward_with_experts_wgrad; },
       "overlap_dispatch_backward_with_experts_wgrad does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.position-embedding",
       violation,
       arguments,
       {"position_embedding_type"},
       everywhere.except(from(v0_18)),
       [](const Scenario& s) { return s.model.position_embedding_type == "yarn"; },
       "argument --position-embedding-type: invalid choice: 'yarn'",
       "use Megatron Core 0.18 or newer, or Megatron Bridge"},
      {"version.router-score",
       violation,
       core,
       {"moe_router_score_function"},
       up_to(v0_17),
       [](const Scenario& s) { return s.model.moe_router_score_function == "sqrtsoftplus"; },
       "moe_router_score_function of this version knows softmax and sigmoid only",
       "use Megatron Core 0.18 or newer"},
      {"version.load-balancing",
       violation,
       core,
       {"moe_router_load_balancing_type"},
       everywhere.except(v0_19 | Version::main),
       [](const Scenario& s) { return has(s.settings.moe_router_load_balancing_type, "quantile_balancing"); },
       "moe_router_load_balancing_type quantile_balancing does not exist in this version",
       "use Megatron Core 0.19"},
      {"version.dispatcher-backend",
       violation,
       core,
       {"moe_flex_dispatcher_backend"},
       everywhere.except(from(v0_19)),
       [](const Scenario& s) { return flex(s, "ncclep"); },
       "moe_flex_dispatcher_backend {moe_flex_dispatcher_backend} does not exist in this version",
       "ncclep needs Megatron Core 0.19; deepep and hybridep are in all"},
      {"version.dispatcher-deepepv2",
       violation,
       core,
       {"moe_flex_dispatcher_backend"},
       everywhere.except(dev),
       [](const Scenario& s) { return flex(s, "deepepv2"); },
       "moe_flex_dispatcher_backend {moe_flex_dispatcher_backend} does not exist in this version",
       "deepepv2 needs Megatron Core's branch dev; deepep and hybridep are in all"},
      {"version.optimizer",
       violation,
       core,
       {"optimizer"},
       up_to(v0_17),
       [](const Scenario& s) { return s.settings.optimizer == "soap" || s.settings.optimizer == "adaptive_muon"; },
       "optimizer {optimizer} does not exist in this version",
       "use Megatron Core 0.18 or newer"},
      {"version.optimizer-lion",
       violation,
       core,
       {"optimizer"},
       up_to(v0_16),
       [](const Scenario& s) { return s.settings.optimizer == "lion"; },
       "optimizer {optimizer} does not exist in this version",
       "use Megatron Core 0.17 or newer"},
      {"version.offload-tuning",
       violation,
       core,
       {"activation_offload_fraction", "delta_offload_bytes_across_pp_ranks", "delay_offload_until_cuda_graph"},
       without("activation_offload_fraction"),
       [](const Scenario& s) {
         return s.settings.activation_offload_fraction != 1.0 || s.settings.delta_offload_bytes_across_pp_ranks != 0 ||
                s.settings.delay_offload_until_cuda_graph;
       },
       "activation_offload_fraction, delta_offload_bytes_across_pp_ranks and delay_offload_until_cuda_graph do not "
       "exist in this version",
       "use Megatron Core 0.19 or newer"},
  };
}

}  // namespace pipewright::plan
