// What is printed parses in the real versions: flags, their values and Bridge's fields against lists that were
// generated from the sources (data/), and back again as the scenario it came from, for any legal scenario.
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "../plan/bases.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

using namespace pipewright;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

std::vector<std::string> lines(const char* file) {
  const auto content = read_file(std::string(std::getenv("PIPEWRIGHT_TEST_DATA")) + "/" + file);
  auto all = split(content, '\n');
  std::erase_if(all, [](const auto& line) { return line.empty() || line[0] == '#'; });
  return all;
}

/// version -> flag -> allowed values (empty: any)
using Flags = std::map<std::string, std::map<std::string, std::set<std::string>>>;
const Flags& real_flags() {
  static const Flags all = [] {
    Flags flags;
    for (const auto& line : lines("flags.txt")) {
      const auto parts = split(line, ' ');
      for (const auto& version : split(parts[1], ',')) {
        auto& allowed = flags[version][parts[0]];
        if (parts.size() > 2)
          for (const auto& value : split(parts[2], ',')) allowed.insert(value);
      }
    }
    return flags;
  }();
  return all;
}

const std::set<std::string>& bridge_fields() {
  static const auto all = [] {
    const auto list = lines("bridge_fields.txt");
    return std::set<std::string>(list.begin(), list.end());
  }();
  return all;
}

/// What may be changed together; whatever the rules refuse is left out.
const std::vector<const char*> changes = {
    "recompute_granularity=selective; recompute_modules=[core_attn]",
    "recompute_granularity=selective; recompute_modules=[mlp]",
    "recompute_granularity=selective; recompute_modules=[moe_act, layernorm]",
    "recompute_granularity=selective; recompute_modules=[mla_up_proj]",
    "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1; recompute_modules=[]",
    "recompute_granularity=full; recompute_method=block; recompute_num_layers=1; recompute_modules=[]",
    "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules=[moe_act, expert_fc1]",
    "fine_grained_activation_offloading=true; $NVTE_CPU_OFFLOAD_V1=1; offload_modules=[core_attn, attn_proj]; "
    "min_offloaded_tensor_size=2097152; activation_offload_fraction=0.5; delta_offload_bytes_across_pp_ranks=1024",
    "cpu_offloading=true; cpu_offloading_num_layers=3",
    "optimizer_cpu_offload=true; optimizer_offload_fraction=0.5; use_precision_aware_optimizer=true",
    "fp8=hybrid; fp8_recipe=tensorwise",
    "fp8=hybrid; fp8_recipe=delayed",
    "fp8=e4m3; fp8_recipe=blockwise; first_last_layers_bf16=true",
    "fp8=hybrid; fp8_recipe=tensorwise; fp8_param=true; fp8_param_gather=true",
    "overlap_moe_expert_parallel_comm=true",
    "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true",
    "overlap_moe_expert_parallel_comm=true; ep_overlap_early_attn_memory_release=true",
    "overlap_moe_expert_parallel_comm=true; delay_wgrad_compute=true; overlap_p2p_wgrad_delayed_layer_number=2; "
    "overlap_p2p_backward_on_comm_stream=true; overlap_p2p_with_transformer_layer_wgrad=true",
    "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=deepep",
    "moe_shared_expert_intermediate_size=1024",
    "moe_shared_expert_intermediate_size=1024; moe_shared_expert_overlap=true",
    "moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1]",
    "moe_permute_fusion=true; moe_router_fusion=true; moe_router_dtype=fp32",
    "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]; use_te_rng_tracker=true",
    "cuda_graph_impl=transformer_engine; cuda_graph_modules=[moe_router, moe_preprocess]; use_te_rng_tracker=true",
    "overlap_grad_reduce=true; overlap_param_gather=true",
    "overlap_grad_reduce=true; align_grad_reduce=false; bucket_size=50000000",
    "microbatch_group_size_per_vp_stage=8",
    "overlap_p2p_comm_warmup_flush=true",
    "virtual_pipeline_model_parallel_size=none; overlap_p2p_comm=false",
    "account_for_embedding_in_pipeline_split=true; account_for_loss_in_pipeline_split=true; num_layers=6",
    "cross_entropy_loss_fusion=true",
    "grad_reduce_in_fp32=false",
    "main_grads_dtype=bf16; exp_avg_dtype=bf16; exp_avg_sq_dtype=bf16; use_precision_aware_optimizer=true",
    "micro_batch_size=2",
    "pipeline_model_parallel_layout=Et|(t|)*6,tL",
    "pipeline_model_parallel_layout=Et*3|tt|tt|tL",
    "qk_layernorm=true",
    "kv_channels=128",
    "hidden_dropout=0.1",
    "defer_embedding_wgrad_compute=true; wgrad_deferral_limit=4",
    "context_parallel_size=2",
    "mtp_num_layers=1",
    "$PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
};

constexpr const char* mla =
    "multi_latent_attention=true; q_lora_rank=512; kv_lora_rank=256; qk_head_dim=64; qk_pos_emb_head_dim=32; "
    "v_head_dim=64; num_query_groups=none";

scenario::Scenario random_scenario() {
  const auto base = *rc::gen::elementOf(std::vector<std::string>{"dense", "tensor", "single", "moe", "moe", "mla"});
  std::string chosen = base == "mla" ? mla : "";
  const int count = *rc::gen::inRange(0, 6);
  for (int i = 0; i < count; ++i) chosen += (chosen.empty() ? "" : "; ") + std::string(*rc::gen::elementOf(changes));
  auto s = test::scenario(base == "mla" ? "moe" : base, chosen);
  scenario::set(s, "megatron_core=" + *rc::gen::elementOf(scenario::stated_names(scenario::all_versions)));
  return s;
}

bool legal(const scenario::Scenario& s) {
  const auto findings = plan::check(s);
  if (std::ranges::any_of(findings, [](const auto& f) { return f.severity == plan::Severity::violation; }))
    return false;
  try {
    scenario::check(s);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

int megatron_checked = 0;

void flags_parse(const scenario::Scenario& s) {
  const auto& real = real_flags().at(s.software.megatron_core);
  const std::set<std::string>* allowed = nullptr;
  for (const auto& word : emit::words(emit::megatron(s))) {
    if (word.starts_with("--")) {
      const auto known = real.find(word);
      RC_LOG() << word << " in " << s.software.megatron_core << "\n";
      RC_ASSERT(known != real.end());
      allowed = &known->second;
    } else if (allowed != nullptr && !allowed->empty()) {
      RC_LOG() << word << "\n";
      RC_ASSERT(allowed->contains(word));
    }
  }
}

}  // namespace

int main() {
  bool ok = rc::check("Megatron flags exist in their version, take those values, and read back as the scenario", [] {
    const auto s = random_scenario();
    RC_PRE(legal(s));
    ++megatron_checked;
    RC_LOG() << scenario::write(s) << "\n";
    flags_parse(s);
    std::string line;
    for (const auto& word : emit::words(emit::megatron(s))) line += emit::quoted(word) + " ";
    const auto back = emit::from_megatron(line, machine_of(s));
    RC_ASSERT(back.findings.empty());
    RC_ASSERT(unsaid_differences(s, back.scenario, emit::megatron(s)) == std::string());
  });
  ok &= rc::check("Bridge overrides name real fields and read back as the scenario", [] {
    const auto s = random_scenario();
    RC_PRE(legal(s));
    RC_LOG() << scenario::write(s) << "\n";
    std::string text;
    for (const auto& word : emit::words(emit::bridge(s))) {
      text += word + "\n";
      if (!word.starts_with("cfg.") || word.find(" = ") == std::string::npos) continue;
      const auto name = word.substr(4, word.find(" = ") - 4);
      RC_LOG() << name << "\n";
      // The pull request's own fields are there once Bridge's Megatron Core is that ref.
      const bool pull_request = s.software.megatron_core == "pr-4268" && name.starts_with("model.overlap_p2p_");
      RC_ASSERT(bridge_fields().contains(name) || name.find('.') == std::string::npos || pull_request);
    }
    const auto back = emit::from_bridge_text(text, "overrides", machine_of(s));
    RC_ASSERT(unsaid_differences(s, back.scenario, emit::bridge(s)) == std::string());
  });
  ok &= rc::check("harness options exist", [] {
    const auto s = random_scenario();
    RC_PRE(legal(s));
    const auto& real = real_flags().at("harness");
    for (const auto& word : emit::words(emit::harness(s)))
      if (word.starts_with("-") && word.size() > 1 && (word[1] < '0' || word[1] > '9')) {
        RC_LOG() << word << "\n";
        RC_ASSERT(real.contains(word));
      }
  });
  return ok && megatron_checked >= 50 ? 0 : 1;
}
