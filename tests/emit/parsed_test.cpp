// Emitted command lines are those that Megatron's own parsers took. data/parsed.txt holds them: for every version a
// line for each base and, for each change of a setting, the flags that come and go. parsers.py writes the file, and
// writes it only if parse_args, validate_args and the config class of that version took every line of it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "../predict/moves.hpp"
#include "changes.hpp"
#include "pipewright/emit.hpp"

namespace parsed_test {

using namespace pipewright;

namespace {

const std::vector<std::string> bases = {"dense", "tensor", "single", "moe", "mla", "combined"};

/// What neither moves() nor changes reach: settings without effect on time and memory, and those that are emitted after
/// --ignore. With the base.
const std::vector<std::pair<const char*, const char*>> others = {
    {"dense",
     "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]; use_te_rng_tracker=true; "
     "cuda_graph_warmup_steps=2"},
    {"dense", "cuda_graph_impl=local; optimizer_cuda_graph=true; use_te_rng_tracker=true"},
    {"moe", "moe_router_pre_softmax=true"},
    {"moe", "moe_expert_capacity_factor=1.0; moe_pad_expert_input_to_capacity=true; moe_token_drop_policy=position"},
    {"moe", "moe_router_topk=1; moe_router_pre_softmax=true; moe_apply_probs_on_input=true"},
    {"moe", "moe_router_load_balancing_type=sinkhorn"},
    {"moe", "moe_layer_recompute=true"},
    {"moe", "moe_token_dispatcher_type=flex; moe_enable_deepep=true; moe_router_dtype=fp32"},
    {"moe", "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep; moe_router_dtype=fp32"},
    {"moe",
     "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep; moe_permute_fusion_into_hybridep=true"},
    {"moe",
     "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep; moe_router_dtype=fp32; "
     "moe_hybridep_pad_uneven_dispatch_inputs=true"},
    {"dense", "rope_scaling=true; rope_scaling_factor=4"},
    {"mla", "original_max_position_embeddings=8192; mscale=0.7; mscale_all_dim=0.7; rotary_scaling_factor=16"},
    {"single",
     "hybrid_layer_pattern=M-M-M-M*; cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn, mamba]; "
     "use_te_rng_tracker=true; bias_activation_fusion=false; position_embedding_type=none"},
    {"combined", "high_priority_a2a_comm_stream=true"},
    {"moe", "overlap_dispatch_backward_with_experts_wgrad=true"},
    {"moe", "mtp_num_layers=1; mtp_loss_scaling_factor=0.3"},
    {"moe", "mtp_num_layers=1; mtp_detach_heads=true"},
    {"single",
     "bias_activation_fusion=false; hybrid_layer_pattern=M-M-M-*-/*-/*-; mtp_num_layers=2; "
     "position_embedding_type=none"},
    {"single", "use_ring_exchange_p2p=true"},
    {"single",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; gradient_accumulation_fusion=false; "
     "fsdp_double_buffer=true"},
    {"single",
     "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params; gradient_accumulation_fusion=false; "
     "use_nccl_ub=true; fsdp_double_buffer=true"},
    {"tensor",
     "tp_comm_overlap=true; tp_comm_bootstrap_backend=mpi; tp_comm_overlap_rs_dgrad=true; tp_comm_bulk_wgrad=false; "
     "tp_comm_bulk_dgrad=false"},
    {"tensor",
     "tp_comm_overlap=true; tp_comm_overlap_ag=false; tp_comm_overlap_rs=false; tp_comm_split_ag=false; "
     "tp_comm_split_rs=false"},
    {"dense", "rotary_percent=0.5; rotary_base=500000"},
    {"dense", "rotary_interleaved=true; apply_rope_fusion=false"},
    {"dense", "qk_l2_norm=true"},
    {"dense",
     "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5; use_precision_aware_optimizer=true; "
     "overlap_cpu_optimizer_d2h_h2d=true; pin_cpu_grads=false; pin_cpu_params=false"},
    {"dense",
     "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5; use_precision_aware_optimizer=true; "
     "use_torch_optimizer_for_cpu_offload=true"},
    {"single", "num_distributed_optimizer_instances=2; overlap_grad_reduce=true"},
    {"dense", "no_rope_freq=[0, 0, 0, 1, 0, 0, 0, 1]"},
    {"dense",
     "fp8=hybrid; fp8_recipe=delayed; fp8_wgrad=false; fp8_margin=1; fp8_interval=2; fp8_amax_history_len=16; "
     "fp8_amax_compute_algo=max"},
    {"dense", "fp8=e4m3; fp8_recipe=blockwise; keep_fp8_transpose_cache=true"},
    {"dense",
     "fp8=e4m3; fp8_recipe=mxfp8; fp8_param=true; fp8_param_gather=true; overlap_grad_reduce=true; "
     "overlap_param_gather=true; reuse_grad_buf_for_mxfp8_param_ag=true"},
    {"dense", "fp8=hybrid; fp8_recipe=tensorwise; fp8_output_proj=true"},
    {"dense", "fp4=e2m1; fp4_recipe=nvfp4"},
    {"dense", "fp32_residual_connection=true"},
    {"dense", "deterministic_mode=true; $NVTE_ALLOW_NONDETERMINISTIC_ALGO=0; $NCCL_ALGO=Ring"},
    {"dense", "attention_output_gate=true"},
    {"dense",
     "experimental_attention_variant=gated_delta_net; linear_attention_freq=4; linear_num_key_heads=8; "
     "linear_num_value_heads=16; linear_conv_kernel_dim=3; linear_key_head_dim=64; linear_value_head_dim=64"},
    {"dense",
     "experimental_attention_variant=gated_delta_net; linear_attention_freq=[1, 0, 0, 1, 1, 1, 0, 1]; "
     "recompute_granularity=selective; recompute_modules=[gdn_norm_out]"},
    {"single",
     "hybrid_layer_pattern=M-M-M-M*; mamba_state_dim=64; mamba_head_dim=32; mamba_num_heads=64; mamba_num_groups=4"},
    {"single",
     "hybrid_layer_pattern=M-M-M-M*; gated_linear_unit=false; activation_func=squared_relu; "
     "bias_activation_fusion=false; position_embedding_type=none"},
    {"dense", "hybrid_layer_pattern=M|-|M|*|M|-|M|-"},
    {"moe", "hybrid_layer_pattern=ME|*E|ME|ME"},
    {"dense", "layernorm_zero_centered_gamma=true"},
    {"dense", "apply_residual_connection_post_layernorm=true"},
    {"dense", "window_size=[128, 0]; window_attn_skip_freq=2"},
    {"dense", "softmax_type=learnable"},
    {"dense", "optimizer=sgd; use_distributed_optimizer=true"},
    {"dense", "optimizer=muon; use_distributed_optimizer=false"},
    {"dense", "optimizer=dist_muon; use_distributed_optimizer=false; overlap_param_gather=false"},
    {"dense", "norm_epsilon=1e-6; layernorm_epsilon=1e-6"},
    {"dense", "gradient_reduce_div_fusion=false"},
    {"dense", "bias_dropout_fusion=false"},
    {"dense", "fused_residual_rmsnorm=true"},
    {"dense", "context_parallel_size=2; cp_comm_type=[a2a]"},
    {"dense", "context_parallel_size=2; cp_comm_type=[p2p]"},
    {"single", "context_parallel_size=4; cp_comm_type=[a2a+p2p]; hierarchical_context_parallel_sizes=[2, 2]"},
    {"single", "context_parallel_size=2; hybrid_context_parallel=true"},
    {"tensor",
     "distribute_saved_activations=true; sequence_parallel=false; recompute_granularity=full; "
     "recompute_method=uniform; recompute_num_layers=1"},
    {"dense", "cpu_offloading=true; cpu_offloading_num_layers=3; cpu_offloading_retain_pinned_cpu_buffers=true"},
    {"single", "cpu_offloading=true; cpu_offloading_num_layers=3; cpu_offloading_retain_pinned_cpu_buffers=true"},
    {"dense",
     "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules=[attn_norm]; "
     "delay_offload_until_cuda_graph=true"},
    {"dense", "use_transformer_engine_op_fuser=true"},
    {"dense", "mlp_chunks_for_training=2"},
};

/// Each flag with its values, each variable, the number of GPUs.
std::set<std::string> items(const scenario::Scenario& s) {
  std::set<std::string> all = {"gpus=" + std::to_string(s.cluster.num_gpus)};
  for (const auto& [name, value] : emit::variables(s)) all.insert(name + "=" + value);
  for (const auto& group : emit::megatron(s))
    for (const auto& line : group.lines) {
      std::string text;
      for (const auto& word : line.words) text += (text.empty() ? "" : " ") + emit::quoted(word);
      if (!text.empty()) all.insert(text);
    }
  return all;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += "\t" + word;
  return text;
}

struct Emitted {
  std::set<std::string> lines;
  std::map<std::string, std::set<std::string>> flags;  ///< by version
};

/// A scenario of each base, and each change to it that is legal in the version.
Emitted emit_all() {
  Emitted result;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> rows;  // base and delta -> versions
  for (const auto& version : scenario::stated_names(scenario::all_versions)) {
    const std::string core = "megatron_core=" + version;
    std::map<std::string, std::set<std::string>> of_base;
    const auto keep = [&](const std::set<std::string>& all) {
      for (const auto& item : all)
        if (item.starts_with("--")) result.flags[version].insert(item.substr(0, item.find(' ')));
    };
    for (const auto& base : bases) {
      auto s = test::base_of(base);
      scenario::set(s, core);
      of_base[base] = items(s);
      keep(of_base[base]);
      result.lines.insert("base\t" + base + "\t" + version + joined(of_base[base]));
    }
    const auto add = [&](const std::string& base, const scenario::Scenario& s) {
      if (s.software.megatron_core != version || !test::legal(s)) return;
      const auto now = items(s);
      const auto delta = test::difference(of_base[base], now);
      if (delta.empty()) return;
      keep(now);
      auto& versions = rows[{base, delta}];
      if (versions.empty() || versions.back() != version) versions.push_back(version);
    };
    const auto tried = [&](const std::string& base, auto&& changed) {
      auto s = test::base_of(base);
      scenario::set(s, core);
      try {
        changed(s);
      } catch (const UsageError&) {  // not in this version
        return;
      }
      add(base, s);
    };
    for (const scenario::Move& move : scenario::moves())
      for (const char* value : {move.from, move.to})
        tried(move.base, [&](scenario::Scenario& s) {
          test::change(s, move.setup);
          test::assign(s, move.name, value);
        });
    for (const auto& [base, changes] : others)
      tried(base, [changes = changes](scenario::Scenario& s) {
        std::string_view rest = changes;
        while (!rest.empty()) {  // what this version lacks is left out
          const auto end = rest.find("; ");
          try {
            test::change(s, rest.substr(0, end));
          } catch (const UsageError&) {
          }
          rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
        }
      });
    for (const char* changes : test::changes)
      for (const auto& base : bases) tried(base, [&](scenario::Scenario& s) { test::change(s, changes); });
  }
  for (const auto& [row, versions] : rows) {
    std::string list;
    for (const auto& version : versions) list += (list.empty() ? "" : ",") + version;
    result.lines.insert("change\t" + row.first + "\t" + list + row.second);
  }
  return result;
}

const Emitted& emitted() {
  static const Emitted all = emit_all();
  return all;
}

}  // namespace

TEST_CASE("every emitted command line is one that Megatron's own parser took") {
  const auto& now = emitted();
  if (const char* to = std::getenv("PIPEWRIGHT_EMITTED")) {  // parsers.py asks
    std::ofstream out(to);
    for (const auto& line : now.lines) out << line << "\n";
    return;
  }
  std::set<std::string> taken;
  std::istringstream in(read_file(std::string(std::getenv("PIPEWRIGHT_TEST_DATA")) + "/parsed.txt"));
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with('#')) taken.insert(line);
  CHECK(taken.size() > 300);
  for (const auto& line : now.lines) {
    INFO("no parser has seen this line yet: run tests/emit/parsers.py");
    CAPTURE(line);
    CHECK(taken.contains(line));
  }
  for (const auto& line : taken) {
    INFO("no longer emitted: run tests/emit/parsers.py");
    CAPTURE(line);
    CHECK(now.lines.contains(line));
  }
}

TEST_CASE("every flag that can be emitted was tried in every version that has it") {
  // Of settings that pipewright refuses to predict, or whose only other value needs a file or a function of the user's,
  // or another setting changed with it (--glu-linear-offset: --quick-geglu).
  const std::set<std::string> untried = {
      "--cp-comm-type",     "--hierarchical-context-parallel-sizes", "--hybrid-context-parallel",
      "--fp8-output-proj",  "--cross-entropy-fusion-impl",           "--ddp-reduce-scatter-with-fp32-accumulation",
      "--fp4-recipe",       "--data-parallel-sharding-strategy",     "--use-nccl-ub",
      "--glu-linear-offset"};
  std::set<std::string> never = untried;
  const auto& now = emitted();
  for (const auto& version : scenario::stated_names(scenario::all_versions)) {
    scenario::Software software;
    software.megatron_core = version;
    for (const auto& flag : emit::flags()) {
      if (emit::is_special(flag) || !emit::has(flag, software)) continue;
      if (emit::flag_of_field(flag.field, software) != &flag) continue;  // another spelling is emitted
      CAPTURE(version);
      CAPTURE(flag.name);
      const bool tried = now.flags.at(version).contains(std::string(flag.name));
      CHECK((tried || untried.contains(std::string(flag.name))));
      if (!tried) never.erase(std::string(flag.name));
    }
  }
  for (const auto& flag : never) FAIL_CHECK(flag);  // tried everywhere: it leaves the list
}

}  // namespace parsed_test
