#include "dimensions.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "packed_rows.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/norms.hpp"
#include "pipewright/scenario/quant_recipe.hpp"
#include "routing.hpp"
#include "sdpa_figures.hpp"

namespace pipewright::model {
namespace {

using scenario::Scenario;

[[noreturn]] void refuse(const Scenario& s, const std::string& key, const std::string& message) {
  throw UsageError(scenario::position(s, key), key, message);
}

/// Transformer Engine 2.20.2 on one H100 (2026-11-27), cold, forward and backward within 3 %: 4096 to 16384 tokens, 2
/// to 96 heads of 64 and 128, 1.19 to 1.34 where whole heads rotate by neighbours; half of each head 1.08 to 1.14 by
/// halves and 1.19 to 1.27 by neighbours (what does not rotate is copied).
double rotation_of(bool interleaved, bool partial) {
  if (interleaved) return partial ? 1.24 : 1.26;
  return partial ? 1.11 : 1;
}

Int divided(const Scenario& s, const std::string& key, Int value, Int by) {
  if (value % by) {
    refuse(s, key, std::to_string(value) + " is not a multiple of the tensor parallel size " + std::to_string(by));
  }
  return value / by;
}

/// Of the gate alone, where the activation is not fused: quick and tanh GELU are torch.compile's functions, silu and
/// GELU ATen's, which run over the strides of a half unless clamping has copied it (mlp.py, glu).
std::string gate_family(const Scenario& s) {
  const std::string name = scenario::activation_func(s);
  if (name == "fast_gelu") return name;
  const bool strided = s.model.gated_linear_unit && !s.model.activation_func_clamp_value;
  return strided && (name == "silu" || name == "gelu") ? "glu.gate" : "gelu";
}

std::string activation_family(const Scenario& s) {
  const std::string name = scenario::activation_func(s);
  if (s.model.gated_linear_unit) return "swiglu";  // the other gated ones move the same bytes
  if (name == "squared_relu") return "squared_relu";
  return gate_family(s);
}

void refuse_multi_token_prediction(const Scenario& s) {
  const auto& o = s.settings;
  if (s.model.mtp_num_layers.value_or(0) == 0) return;
  if (o.mtp_detach_heads)
    refuse(s, "settings.mtp_detach_heads", "is not modelled: its backward pass stops at the depths");
  if (o.overlap_moe_expert_parallel_comm && s.model.mtp_num_layers > 1) {
    refuse(s, "model.mtp_num_layers", "MTP supports at most one layer when enabling overlap_moe_expert_parallel_comm.");
  }
  if (o.overlap_moe_expert_parallel_comm && !scenario::is_moe_mtp(s)) {
    refuse(s, "model.mtp_num_layers", "MTP layer in a2a overlap only supports MoE layer for now");
  }
  if (o.recompute_granularity.value_or("") == "full" && o.recompute_method.value_or("") == "uniform" &&
      o.recompute_num_layers.value_or(1) != 1) {
    refuse(s, "settings.recompute_num_layers", "recompute_num_layers must be 1 for MTP recompute");
  }
}

/// What runs a layer: Transformer Engine's modules, or Megatron Core's own ("local").
void refuse_implementation(const Scenario& s) {
  const auto& o = s.settings;
  const std::string key = "settings.transformer_impl";
  if (o.transformer_impl != "transformer_engine" && o.transformer_impl != "local") {
    refuse(s, key, "\"" + o.transformer_impl + "\" does not train; allowed: transformer_engine, local");
  }
  if (o.attention_backend == "local" && o.transformer_impl != "local") {
    refuse(s, "settings.attention_backend",
           "\"local\" turns off every implementation that transformer_impl transformer_engine has");
  }
  if (o.transformer_impl == "transformer_engine") return;
  if (s.model.num_moe_experts) refuse(s, key, "experts of the local implementation are not modelled");
  if (o.fp8) refuse(s, "settings.fp8", "needs transformer_impl transformer_engine");
  if (o.context_parallel_size > 1) {
    refuse(s, "settings.context_parallel_size", "Context parallelism is only supported by TEDotProductAttention");
  }
  if (o.delay_wgrad_compute) refuse(s, "settings.delay_wgrad_compute", "needs transformer_impl transformer_engine");
}

/// What Megatron Core cannot run: mlp.py:283-300, moe/experts.py:829-847.
void refuse_activation(const Scenario& s) {
  const std::string name = scenario::activation_func(s), key = "settings.bias_activation_fusion";
  if (!s.settings.bias_activation_fusion || !s.model.gated_linear_unit) return;
  if ((name == "quick_gelu" || name == "fast_gelu") && scenario::has_dense_layer(s))
    refuse(s, key, "Only support fusion of gelu and swiglu: a dense MLP has no fused " + name);
  if ((name == "gelu" || name == "fast_gelu") && scenario::has_moe_layer(s))
    refuse(s, key, "Only support fusion of swiglu and quick_gelu in TEGroupedMLP.");
}

void refuse_what_is_not_modelled(const Scenario& s) {
  const auto& m = s.model;
  const auto& o = s.settings;
  if (m.num_moe_experts && o.tensor_model_parallel_size > 1 && !o.sequence_parallel) {
    refuse(s, "settings.sequence_parallel", "experts together with tensor parallelism need it (moe_layer.py, forward)");
  }
  refuse_multi_token_prediction(s);
  refuse_implementation(s);
  refuse_activation(s);
  if (o.fp32_residual_connection) {
    refuse(s, "settings.fp32_residual_connection", "a residual stream in fp32 is not modelled");
  }
}

bool has(const scenario::Strings& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// Megatron's own graphs (transformer/cuda_graphs.py, CudaGraphManager) hold a whole layer, whichever of its modules is
/// named; a Mamba layer asks for its own (transformer_layer.py and mamba_layer.py, create_mcore_cudagraph_manager).
/// Where what is not modelled beside them is ignored, all is launched one by one.
Graphs own_graphs(const Scenario& s) {
  Graphs g;
  if (s.settings.use_megatron_fsdp || scenario::ignores(s, "cuda_graph_impl")) return g;
  const auto& modules = s.settings.cuda_graph_modules;
  const auto holds = [&](const char* name) { return modules.empty() || has(modules, name); };
  g.own = g.clones_gradients = true;
  g.attention = holds("attn");
  g.mlp = holds("mlp");
  g.mamba = scenario::is_hybrid(s) && holds("mamba");
  if (!scenario::is_hybrid(s)) g.attention = g.mlp = g.attention || g.mlp;
  return g;
}

Graphs graphs_of(const Scenario& s) {
  if (s.settings.cuda_graph_impl == "local") return own_graphs(s);
  const auto& modules = s.settings.cuda_graph_modules;
  const auto holds = [&](const char* name) { return modules.empty() || has(modules, name); };
  Graphs g;
  // transformer_layer.py, can_recompute_pre_mlp_layernorm_for_cudagraph: it asks for the modules, not whether there are
  // graphs.
  const bool recomputable = has(modules, "moe_preprocess") &&
                            (s.settings.moe_token_dispatcher_type == "alltoall" || s.model.moe_latent_size) &&
                            !(s.settings.moe_shared_expert_overlap && s.model.moe_shared_expert_intermediate_size);
  g.keeps_moe_norm = has(modules, "moe_router") && !recomputable;
  if (s.settings.cuda_graph_impl != "transformer_engine") return g;
  g.clones_gradients = scenario::te_version(s.software).at_least(2, 19);
  // Refused (effects_refused.cpp, effects_families.cpp); where that is ignored, everything is launched one by one ...
  const auto& o = s.settings;
  const auto& adapted = o.lora_target_modules;
  if (o.use_megatron_fsdp || has(adapted, "linear_fc1") || has(adapted, "linear_fc2")) return g;
  g.mlp = holds("mlp");
  // ... or all but MLPs.
  const bool repeats =
      s.model.mtp_use_repeated_layer && !scenario::is_hybrid(s) && s.model.mtp_num_layers.value_or(0) > 1;
  const bool overlapped_mlps =
      o.overlap_moe_expert_parallel_comm && (modules.empty() || has(modules, "mlp") || has(modules, "moe"));
  const bool adds_outside = o.delay_wgrad_compute && !o.gradient_accumulation_fusion;
  if (overlapped_mlps || adds_outside || repeats || o.fine_grained_activation_offloading || !adapted.empty() ||
      !o.sequence_lengths.empty())
    return g;
  g.attention = holds("attn");
  g.mamba = scenario::is_hybrid(s) && holds("mamba");
  g.experts = holds("moe") && o.moe_pad_expert_input_to_capacity;
  g.router = !g.experts && has(modules, "moe_router");
  g.preprocess = g.router && has(modules, "moe_preprocess");
  return g;
}

/// Token drop (moe_utils.py get_capacity): every rank sends an expert at most, or padded exactly, `capacity` rows.
void set_capacity(const Scenario& s, const Dimensions& d, MoeDimensions& e) {
  const auto& o = s.settings;
  if (!o.moe_expert_capacity_factor || *o.moe_expert_capacity_factor <= 0) return;
  e.drops = true;
  const auto capacity = static_cast<Int>(
      std::ceil(static_cast<double>(e.routed) / static_cast<double>(e.experts) * *o.moe_expert_capacity_factor));
  const Int most = capacity * e.experts;
  e.fixed_rows = o.moe_pad_expert_input_to_capacity;
  e.kept = std::min(1.0, static_cast<double>(most) / static_cast<double>(e.routed));
  e.routed = e.fixed_rows ? most : std::min(e.routed, most);
  e.arrived = e.fixed_rows ? most : std::min(e.arrived, most);
  e.received = e.arrived * e.etp;
  e.padded = e.received;
  if (!d.precision.quantized()) return;
  const Int align = row_alignment(s, d.precision.recipe), rows = capacity * e.ep * e.etp;  // of an expert
  const Int aligned = (rows + align - 1) / align * align;
  e.padded += e.fixed_rows ? e.local * (aligned - rows) : e.local * align / 2;
  if (e.fixed_rows) e.off_tiles = aligned % tile_of_casts != 0 ? e.local : 0;
}

/// Choices that token drop masks are not sent (router.py, apply_router_token_dropping): each is kept by itself.
double units_of_what_is_kept(const Routing& routing, double kept, Int units) {
  if (kept >= 1) return units_of_a_token(routing, units);
  double mean = 0, chance = std::pow(1 - kept, static_cast<double>(routing.topk));
  for (Int choices = 1; choices <= routing.topk; ++choices) {
    chance *= static_cast<double>(routing.topk - choices + 1) / static_cast<double>(choices) * kept / (1 - kept);
    Routing fewer = routing;
    fewer.topk = choices;
    mean += chance * units_of_a_token(fewer, units);
  }
  return mean;
}

/// Which library a flex dispatcher calls, and how far its tokens go (network.md, 1 and 2: token_dispatcher.py:1278,
/// fused_a2a.py; DeepEP csrc/hybrid_ep/config.cuh:366 for multiprocessors that nobody states).
void set_dispatcher(const Scenario& s, const Dimensions& d, MoeDimensions& e) {
  const auto& o = s.settings;
  if (e.dispatch != Dispatch::flex) return;
  using Library = profile::Exchange::Library;
  if (o.moe_flex_dispatcher_backend == "ncclep") {
    refuse(s, "settings.moe_flex_dispatcher_backend",
           "\"ncclep\" is not modelled: nobody has published its rates; allowed: deepep, hybridep");
  }
  const bool hybrid = o.moe_flex_dispatcher_backend == "hybridep";
  e.library = hybrid ? Library::hybridep : Library::deepep;
  const bool several = e.group_link.leaves;
  constexpr Int deepep_sms = 20, older_hybridep_sms = 16, several_nodes_sms = 8, one_node_sms = 24;
  Int sms = deepep_sms;
  if (hybrid) {
    sms = several ? several_nodes_sms : one_node_sms;
    if (scenario::core_version(s.software) < scenario::Version::v0_17) sms = older_hybridep_sms;
  }
  const auto older = hybrid ? o.moe_hybridep_num_sms : o.moe_deepep_num_sms;
  e.multiprocessors = o.moe_flex_dispatcher_num_sms.value_or(older.value_or(sms));
  e.agrees_on_tokens = hybrid && o.moe_hybridep_pad_uneven_dispatch_inputs;
  Routing routing{e.experts, e.topk, s.model.moe_router_num_groups.value_or(1),
                  s.model.moe_router_group_topk.value_or(0)};
  if (s.model.moe_router_topk_limited_devices) {  // transformer_config.py: the older name, groups are devices
    routing.groups = e.ep;
    routing.group_topk = *s.model.moe_router_topk_limited_devices;
  }
  const Int domains = profile::domains(topology(s), exchange_among(e.etp * e.ep, e.group_link));
  e.gpus_a_token = units_of_what_is_kept(routing, e.kept, e.ep) * static_cast<double>(e.etp);
  e.domains_a_token = units_of_what_is_kept(routing, e.kept, std::min(domains, e.experts));
  const auto rows = static_cast<double>(d.local) * e.gpus_a_token, all = static_cast<double>(d.local * e.ep * e.etp);
  e.busiest = std::max(1.0, std::min(o.moe_load_imbalance, all / rows));  // no rank receives more than all tokens
  e.copies = std::llround(rows * std::min(o.moe_load_imbalance, all / rows));
}

/// token_dispatcher.py, _HybridEPManager.setup_metadata: rows that exceed the budget of a rank are dropped, and then
/// PagedStashRunner runs the step once more without it.
void set_budget(const Scenario& s, const Dimensions& d, MoeDimensions& e) {
  const auto& o = s.settings;
  e.held = d.precision.quantized() ? std::max(e.received, e.padded) : e.received;
  if (!o.moe_expert_rank_capacity_factor) return;
  const Int align = row_alignment(s, d.precision.recipe);
  const double factor = *o.moe_expert_rank_capacity_factor;
  const auto budget = static_cast<Int>(static_cast<double>(d.local * e.topk) * factor);
  const Int needed = e.held;
  e.held = (budget + align - 1) / align * align;
  e.expected = static_cast<Int>(std::floor(static_cast<double>(e.held) / factor));
  e.budget = true;
  if (needed > e.held)
    refuse(s, "settings.moe_expert_rank_capacity_factor",
           "a rank receives " + std::to_string(needed) + " rows and has room for " + std::to_string(e.held) +
               ": every step would run twice");
}

MoeDimensions moe_dimensions(const Scenario& s, const Dimensions& d) {
  const auto& m = s.model;
  const auto& o = s.settings;
  MoeDimensions e;
  if (!m.num_moe_experts) return e;
  e.experts = *m.num_moe_experts;
  e.topk = m.moe_router_topk;
  e.ep = o.expert_model_parallel_size;
  e.etp = scenario::expert_tensor_parallel_size(s);
  e.edp = scenario::expert_data_parallel_size(s);
  e.own_group = scenario::experts_have_own_group(s);
  e.local = e.experts / e.ep;
  e.f = scenario::moe_ffn_hidden_size(s) / e.etp;
  e.latent = m.moe_latent_size.has_value();
  e.width = scenario::moe_hidden_size(s);
  e.routed = d.local * e.topk;
  // No rank can receive more than all that is sent.
  e.arrived = std::min(e.ep * e.routed, static_cast<Int>(static_cast<double>(e.routed) * o.moe_load_imbalance + 0.5));
  e.received = e.arrived * e.etp;
  e.padded = e.received;
  const bool router_pads = scenario::pads_for_quantization(s);
  // Half of what an expert's rows are padded to, in the mean. Router padding does it before the rows are counted.
  if (d.precision.quantized()) {
    const Int align = row_alignment(s, d.precision.recipe);
    e.padded += e.local * align / 2;
    // Of numbers of tokens that nobody chose: one multiple of `align` in tile / align is one of the tile.
    if (align < tile_of_casts) e.off_tiles = e.local - e.local * align / tile_of_casts;
  }
  // HybridEP pads while it sorts, in every version that has it (token_dispatcher.py, pad_multiple; 0.16.0:1036 to
  // 0.19.0:1135); Transformer Engine's Fp8Padding then finds aligned rows and does nothing.
  const bool sorts_padded = o.moe_token_dispatcher_type == "flex" && o.moe_flex_dispatcher_backend == "hybridep";
  if (router_pads || sorts_padded) e.received = e.padded;
  // A token chooses topk of all experts, each as likely: of its choices a hypergeometric number is this rank's. FP8
  // pads every expert by 0 to align - 1 rows.
  const double here = 1.0 / static_cast<double>(e.ep), all = static_cast<double>(e.experts);
  double variance = static_cast<double>(e.ep * e.etp * e.routed) * here * (1 - here) *
                    (all - static_cast<double>(e.topk)) / std::max(1.0, all - 1);
  const auto spread = [&] { return std::sqrt(variance) / static_cast<double>(e.received); };
  e.arrival_spread = spread();
  if (d.precision.quantized()) {
    const double align = static_cast<double>(row_alignment(s, d.precision.recipe));
    variance += static_cast<double>(e.local) * (align * align - 1) / 12;
  }
  e.row_spread = spread();
  if (router_pads || sorts_padded) e.arrival_spread = e.row_spread;
  set_capacity(s, d, e);
  set_budget(s, d, e);
  if (e.fixed_rows || e.drops || e.budget) e.row_spread = e.arrival_spread = 0;
  e.fused = scenario::fuses_grouped_mlp(s) && d.gpu.compute_capability >= 100 && d.gpu.compute_capability < 110;
  e.stashes = o.moe_paged_stash && e.budget && e.fused;
  if (m.moe_shared_expert_intermediate_size) {
    e.shared = divided(s, "model.moe_shared_expert_intermediate_size", *m.moe_shared_expert_intermediate_size, d.t);
  }
  if (!o.moe_router_dtype) e.router_bytes = 2;
  if (o.moe_router_dtype == "fp64") e.router_bytes = 8;
  if (o.moe_token_dispatcher_type == "allgather") e.dispatch = Dispatch::allgather;
  if (o.moe_token_dispatcher_type == "flex") e.dispatch = Dispatch::flex;
  e.etp_link = way_of(s, 1, e.etp);
  e.ep_link = way_of(s, e.etp, e.ep);
  e.group_link = way_of(s, 1, e.etp * e.ep);
  e.edp_link = way_of(s, e.etp * e.ep, e.edp);
  set_dispatcher(s, d, e);
  e.shared_gate = m.moe_shared_expert_gate;
  e.shared_overlap = o.moe_shared_expert_overlap && e.shared > 0;
  e.permute_fusion = o.moe_permute_fusion;
  e.router_fusion = o.moe_router_fusion;
  e.sigmoid = m.moe_router_score_function != "softmax";
  e.softplus = m.moe_router_score_function == "sqrtsoftplus";
  e.pre_softmax = !e.sigmoid && m.moe_router_pre_softmax;
  e.grouped_topk = m.moe_router_group_topk.has_value();
  e.scaled = m.moe_router_topk_scaling_factor.has_value();
  e.expert_bias = m.moe_router_enable_expert_bias;
  const bool balanced = std::any_of(o.moe_router_load_balancing_type.begin(), o.moe_router_load_balancing_type.end(),
                                    [](const std::string& type) { return type.ends_with("aux_loss"); });
  e.aux_loss = balanced && std::any_of(o.moe_aux_loss_coeff.begin(), o.moe_aux_loss_coeff.end(),
                                       [](double coefficient) { return coefficient > 0; });
  e.z_loss = o.moe_z_loss_coeff.has_value();
  e.random_logits = o.moe_router_force_load_balancing;
  e.probs_on_input = o.moe_apply_probs_on_input;
  return e;
}

}  // namespace

std::int64_t dispatcher_multiprocessors(const Scenario& s, const profile::Device& gpu) {
  const bool flex = s.model.num_moe_experts && s.settings.moe_token_dispatcher_type == "flex";
  return flex ? Dimensions(s, gpu).moe.multiprocessors : 0;
}

void Dimensions::set_latent(const Scenario& sc) {
  const auto& m = sc.model;
  if (sc.settings.apply_rope_fusion && m.rope_type != "yarn") {
    refuse(sc, "model.rope_type", "apply_rope_fusion for MLA only works with YARN RoPE");
  }
  mla = true;
  q_rank = m.q_lora_rank.value_or(0);
  kv_rank = m.kv_lora_rank;
  qk_nope = m.qk_head_dim;
  qk_rope = m.qk_pos_emb_head_dim;
  v_dim = m.v_head_dim;
  head_dim = qk_nope + qk_rope;
  groups = heads;
  fused_down = m.mla_down_proj_fusion && q_rank > 0;
  splits_down = t > 1 && (fused_down || sc.settings.transformer_impl == "local");
  if (splits_down && (q_rank % t != 0 || (kv_rank + qk_rope) % t != 0)) {
    refuse(sc, "model.mla_down_proj_fusion",
           "q_lora_rank and kv_lora_rank + qk_pos_emb_head_dim must be divisible by tensor_model_parallel_size");
  }
}

void Dimensions::set_linear_attention(const Scenario& sc) {
  const auto& m = sc.model;
  linear = {divided(sc, "model.linear_num_key_heads", m.linear_num_key_heads, t),
            divided(sc, "model.linear_num_value_heads", m.linear_num_value_heads, t), m.linear_key_head_dim,
            m.linear_conv_kernel_dim};
}

/// Which attention and softmax run: transformer/dot_product_attention.py and fusions/fused_softmax.py
/// (is_kernel_available), TE pytorch/attention/dot_product_attention/softmax.py.
void Dimensions::set_implementation(const Scenario& sc) {
  const auto& o = sc.settings;
  local_spec = o.transformer_impl == "local";
  pre_norms = sc.model.pre_layernorm;
  separate_norms = local_spec || !pre_norms;
  unfused_attention = local_spec || o.attention_backend == "unfused";
  const bool rows_fit = s % 4 == 0 && b * heads % 4 == 0 && s > 16;
  const bool fused =
      local_spec ? o.masked_softmax_fusion && rows_fit && s <= 4096 : rows_fit && s % 8 == 0 && s < 16384;
  // TE's own never asks attention_softmax_in_fp32 (backends.py, UnfusedDotProductAttention).
  softmax = fused ? Softmax::fused : local_spec && !o.attention_softmax_in_fp32 ? Softmax::half : Softmax::fp32;
}

/// PyTorch's parseChosenWorkspaceSize: pairs of KiB and counts.
void Dimensions::set_workspace(const Scenario& sc) {
  std::istringstream words(scenario::variable(sc, "CUBLAS_WORKSPACE_CONFIG"));
  char colon = 0;
  Int bytes = 0;
  for (Int size = 0, count = 0; words >> colon >> size >> colon >> count;) bytes += 1024 * size * count;
  if (bytes > 0) gpu.torch_workspace = Bytes(bytes);
}

Dimensions::Dimensions(const Scenario& sc, const profile::Device& device) : gpu(device) {
  refuse_what_is_not_modelled(sc);
  set_workspace(sc);
  const auto& m = sc.model;
  const auto& o = sc.settings;
  t = o.tensor_model_parallel_size;
  cp = o.context_parallel_size;
  pp = o.pipeline_model_parallel_size;
  dp = scenario::data_parallel_size(sc);
  sp = o.sequence_parallel && t > 1;
  b = o.micro_batch_size;
  s = m.seq_length / cp;
  tokens = b * s;
  local = sp ? divided(sc, "model.seq_length", tokens, t) : tokens;
  h = m.hidden_size;
  f = divided(sc, "model.ffn_hidden_size", scenario::ffn_hidden_size(sc), t);
  heads = divided(sc, "model.num_attention_heads", m.num_attention_heads, t);
  if (m.multi_latent_attention) {
    set_latent(sc);
  } else {
    head_dim = scenario::kv_channels(sc);
    const Int all = scenario::num_query_groups(sc);
    groups = std::max<Int>(1, all / t);
    group_ranks = std::max<Int>(1, t / all);
  }
  q = heads * head_dim;
  kv = groups * head_dim;
  vocab = divided(sc, "model.vocab_size", scenario::padded_vocab_size(sc), t);
  gated = m.gated_linear_unit;
  mtp_layers = m.mtp_num_layers.value_or(0);
  if (mtp_layers > 0) divided(sc, "model.hidden_size", h, t);  // eh_proj
  fp16 = o.fp16;
  one_table = pp == 1 && !m.untie_embeddings_and_output_weights;
  set_implementation(sc);
  rms_norm = m.normalization == "RMSNorm";
  cudnn_norm_forward = scenario::variable(sc, "NVTE_NORM_FWD_USE_CUDNN", "0") != "0";
  cudnn_norm_backward = scenario::variable(sc, "NVTE_NORM_BWD_USE_CUDNN", "0") != "0";
  bias = m.add_bias_linear;
  qkv_bias = m.add_bias_linear || m.add_qkv_bias;
  qk_l2_norm = m.qk_l2_norm;
  qk_norm = m.qk_layernorm && !qk_l2_norm;  // attention.py: the L2 norm comes first
  qk_norm_whole = qk_norm && m.qk_layernorm_whole;
  qk_norm_eager = qk_norm_whole && scenario::norms_in_eager_operations(sc);
  norms_q = qk_norm && scenario::from(scenario::Version::v0_19)
                           .except(scenario::Version::dev)
                           .has(scenario::core_version(sc.software));  // mla_qk_norm_config.py
  output_gate = m.attention_output_gate;
  post_norms = m.post_layernorm;
  scales_queries = m.scale_queries_by_position;
  scales_embeddings = m.apply_embedding_scaling;
  caps_scores = m.attn_logit_softcapping.value_or(0) > 0;
  caps_logits = m.final_logit_softcapping.value_or(0) > 0;
  rope = scenario::has_rotary_embedding(sc);
  mrope = m.position_embedding_type == "mrope";
  fused_rope = scenario::fuses_rotary_embedding(sc);
  rotation = rotation_of(m.rotary_interleaved, m.rotary_percent < 1);
  const auto version = scenario::core_version(sc.software);
  packed_rope = version >= scenario::Version::dev     ? PackedRope::indexed
                : version >= scenario::Version::v0_19 ? PackedRope::by_sequence
                                                      : PackedRope::gathered;
  rotary_interleaved = m.rotary_interleaved;
  rotary_percent = m.rotary_percent;
  fused_gradients = o.gradient_accumulation_fusion;
  fsdp = o.use_megatron_fsdp && o.data_parallel_sharding_strategy == "optim_grads_params" &&
         !scenario::ignores(sc, "use_megatron_fsdp");
  fsdp_buffers = fsdp && (o.fsdp_double_buffer || o.nccl_ub);
  // From 0.17 on Megatron-FSDP reads --megatron-fsdp-main-grads-dtype alone, by default the parameters' type.
  const bool by_parameters = fsdp && scenario::core_version(sc.software) >= scenario::Version::v0_17;
  gradient_bytes = o.grad_reduce_in_fp32 && !by_parameters ? 4 : 2;
  fsdp_scales = fsdp && gradient_bytes == 2 && !o.average_in_collective && !o.calculate_per_token_loss;
  hidden_dropout = o.hidden_dropout;
  attention_dropout = o.attention_dropout;
  checks_for_nan = scenario::checks_for_nan(sc);
  if (scenario::creates_attention_mask(sc)) mask_bytes = b * s * cp * s * cp;
  activation = activation_family(sc);
  gate = gate_family(sc);
  fused_activation = o.bias_activation_fusion;
  fused_relu =
      o.use_fused_weighted_squared_relu && !fused_activation && scenario::activation_func(sc) == "squared_relu";
  // The fused SwiGLU and GeGLU read no clamp (fused_bias_swiglu.py, fused_bias_geglu.py).
  clamped = gated && m.activation_func_clamp_value.has_value() &&
            (!fused_activation || scenario::activation_func(sc) == "quick_gelu");
  fused_residual = o.bias_dropout_fusion;
  sinks = scenario::has_sinks(sc);
  flash2 = gpu.compute_capability >= 100 && !unfused_attention && !mla && attention_dropout > 0 &&
           scenario::variable(sc, "NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0";
  context = scenario::context_sharing(sc).value_or(scenario::ContextSharing{1, cp, false});  // others are refused
  packed = packed_rows(sc, tokens * context.heads, context.ring);
  if (heads % context.heads != 0 || groups % context.heads != 0)
    refuse(
        sc, "settings.cp_comm_type",
        context.ring == 1
            ? "a2a: attention heads and query groups of a tensor-parallel rank must be divisible by "
              "context_parallel_size"
            : "a2a+p2p: attention heads and query groups of a tensor-parallel rank must be divisible by the first of "
              "hierarchical_context_parallel_sizes");
  tp_link = way_of(sc, 1, t);
  cp_link = way_of(sc, t, cp);
  heads_link = way_of(sc, t, context.heads);
  ring_link = way_of(sc, t * context.heads, context.ring);
  dp_link = way_of(sc, t, cp * dp);
  const Recipe own = recipe_of(sc, gpu);
  fp8_parameters =
      own != Recipe::bf16 && (o.fp4 ? o.fp4_param || o.fp4_param_gather : o.fp8_param || o.fp8_param_gather);
  const auto te = scenario::te_version(sc.software);
  const auto precision_in = [&](Recipe recipe) {
    return Precision{recipe, gpu.fp8_layouts == std::vector{profile::Layout::tn},
                     recipe == Recipe::nvfp4 ? te.at_least(2, 17) : te.at_least(2, 12),
                     te.at_least(2, 18) && !fp8_parameters};
  };
  precision = precision_in(own);
  if (precision.quantized() && !scenario::ignores(sc, "quant_recipe"))
    for (const auto& [module, mtp, recipe] : scenario::module_recipes(sc))
      by_module[{mtp, module}] = precision_in(recipe_named(sc, gpu, recipe, "settings.quant_recipe"));
  fp8_attention = scenario::attends_in_fp8(sc);
  if (fp8_attention && !times_fp8_attention(device, mla, precision.recipe == Recipe::mxfp8))
    throw UsageError(scenario::position(sc, "settings.fp8_dot_product_attention"), "settings.fp8_dot_product_attention",
                     "there are no figures of attention in FP8 with this recipe on " + device.name);
  fp8_head = o.fp8_output_proj && precision.recipe == Recipe::mxfp8 && !scenario::ignores(sc, "fp8_output_proj");
  fused_qkv_rope = o.fused_single_qkv_rope && !scenario::ignores(sc, "fused_single_qkv_rope");
  deterministic_attention = scenario::attends_deterministically(sc) && times_deterministic_attention(device, mla) &&
                            !scenario::ignores(sc, "NVTE_ALLOW_NONDETERMINISTIC_ALGO");
  fp8_cached_weights = !o.disable_parameter_transpose_cache;
  if (fsdp && fp8_parameters) {
    // Released after each pass of a unit (release_module_parameters). Kept, those of the last backward serve: from 0.17
    // and TE 2.10 on nothing tells TE that an optimizer step made them stale (manual_post_all_gather_processing).
    fsdp_keeps_transposes = o.keep_fp8_transpose_cache;
    const bool told = scenario::core_version(sc.software) < scenario::Version::v0_17 ||
                      !scenario::te_version(sc.software).at_least(2, 10);
    transposing_forwards = fsdp_keeps_transposes ? (told ? 1 : 0) : INT32_MAX;
  }
  graphs = graphs_of(sc);
  // Linear layers whose names userbuffers do not know switch tp_comm_overlap off for all that are made after them
  // (extensions/transformer_engine.py:922-932): MLA's down projections.
  tp_overlap = o.tp_comm_overlap && sp && !mla && !local_spec;
  if (tp_overlap) overlap_multiprocessors = model::overlap_multiprocessors(sc, gpu);
  left = model::left_free(sc);
  ep_overlap = o.overlap_moe_expert_parallel_comm;
  delayed_wgrad = o.delay_wgrad_compute;
  moe = moe_dimensions(sc, *this);
  if (scenario::has_linear_attention(sc)) set_linear_attention(sc);
  if (scenario::has_mamba_layer(sc))
    mamba = {divided(sc, "model.mamba_num_heads", scenario::mamba_num_heads(sc), t),
             divided(sc, "model.mamba_num_groups", m.mamba_num_groups, t), m.mamba_head_dim, m.mamba_state_dim};
  for (const auto& [name, rank] :
       {std::pair("linear_qkv", &lora.qkv), std::pair("linear_proj", &lora.proj), std::pair("linear_fc1", &lora.fc1),
        std::pair("linear_fc2", &lora.fc2), std::pair("in_proj", &lora.in_proj), std::pair("out_proj", &lora.out_proj),
        std::pair("linear_q_proj", &lora.q), std::pair("linear_q_down_proj", &lora.q_down),
        std::pair("linear_q_up_proj", &lora.q_up), std::pair("linear_kv_down_proj", &lora.kv_down),
        std::pair("linear_kv_up_proj", &lora.kv_up)})
    if (has(o.lora_target_modules, name)) {
      divided(sc, "settings.lora_dim", o.lora_dim, t);
      const std::string_view module = name;
      if (module == "linear_proj" || module == "linear_fc2" || module == "out_proj")  // beside row-parallel layers
        divided(sc, "model.hidden_size", h, t);
      *rank = o.lora_dim;
    }
  // peft/utils.py, _register_shared_expert_grad_sync_hooks (pull request 5396)
  lora.syncs_experts = moe.ep > 1 && scenario::bridge_at_least(sc.software, 0, 7);
  deferred_head_wgrads = static_cast<std::int32_t>(std::min<Int>(scenario::deferred_head_wgrads(sc), INT32_MAX));
  computes_head_wgrads = deferred_head_wgrads < scenario::num_microbatches(sc);
  muon_dealt = o.optimizer == "dist_muon";
  if (muon_dealt && fp8_parameters) transposing_forwards = 0;  // what is gathered is quantized with its transpose
  muon = o.optimizer == "muon" || muon_dealt;
  muon_whole = muon && o.use_distributed_optimizer;
  muon_splits_qkv = o.muon_split_qkv;
  muon_nesterov = o.muon_nesterov;
  muon_steps = o.muon_num_ns_steps;
  whole_layer_offload = o.cpu_offloading && o.cpu_offloading_activations && o.cpu_offloading_num_layers > 0;
  for (const auto& row : scenario::recompute_catalogue())
    if (scenario::recomputes(sc, row.module)) recomputed.push_back(row.module);
  for (const auto& row : scenario::offload_catalogue())
    if (scenario::offloads(sc, row.module)) offloaded.push_back(row.module);
  smallest_offload = o.min_offloaded_tensor_size;
  if (scenario::te_version(sc.software).per_op_offload) op_offload = o.te_op_offload;
}

}  // namespace pipewright::model
