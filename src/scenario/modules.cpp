// The rows of the catalogue, in the order in which allowed values are listed.
#include "pipewright/modules.hpp"

#include <algorithm>
#include <array>

#include "pipewright/scenario/derived.hpp"

namespace pipewright::scenario {
namespace {

bool no_dense_layer(const Scenario& s) { return !has_dense_layer(s); }
bool no_moe_layer(const Scenario& s) { return !has_moe_layer(s); }
bool no_shared_experts(const Scenario& s) { return no_moe_layer(s) || !s.model.moe_shared_expert_intermediate_size; }
bool no_norm(const Scenario& s) { return norms_fused(s) && no_moe_layer(s); }
/// Latent attention separates the norm before attention, not the one before a dense MLP.
bool pairs_no_layers(const Scenario& s) { return !s.settings.overlap_moe_expert_parallel_comm; }
bool no_mlp_norm(const Scenario& s) { return te_layers(s) && no_moe_layer(s); }
/// Without grouped GEMM moe_act is refused, not idle.
bool no_grouped_experts(const Scenario& s) { return s.settings.moe_grouped_gemm && no_moe_layer(s); }
bool fuses_experts(const Scenario& s) { return s.settings.use_transformer_engine_op_fuser; }

std::vector<RecomputeRow> recompute_rows() {
  using enum Version;
  using enum Recompute;
  constexpr Versions all = all_versions;
  // Versions: allowed_modules of TransformerConfig.__post_init__ in each of them.
  return {
      {{.module = core_attn,
        .name = "core_attn",
        .versions = all,
        .what = "the attention kernel's forward",
        .quoted = 1,
        .searched = 1}},
      {{.module = moe_act,
        .name = "moe_act",
        .versions = all,
        .what = "the experts' activation",
        .quoted = 2,
        .searched = 5,
        .idle = {no_grouped_experts, "no-effect.moe-act", "the model has no MoE layer", "take moe_act out",
                 "num_moe_experts"}}},
      {{.module = layernorm,
        .name = "layernorm",
        .versions = all,
        .what = "the norms",
        .quoted = 3,
        .searched = 2,
        .idle = {no_norm, "no-effect.layernorm",
                 "with the Transformer Engine layer of a dense GQA model both norms live in the linears that follow "
                 "them (TELayerNormColumnParallelLinear), and there is no separate norm to recompute",
                 "take layernorm out; it acts on the pre-MLP norm of MoE layers and the input norm of MLA"}}},
      {{.module = mla_up_proj,
        .name = "mla_up_proj",
        .versions = all,
        .what = "the up-projections and the rotary embedding",
        .quoted = 4,
        .searched = 3}},
      {{.module = mlp,
        .name = "mlp",
        .versions = all,
        .what = "norm, fc1, activation and fc2 of every dense layer",
        .quoted = 5,
        .searched = 4,
        .idle = {no_dense_layer, "no-effect.mlp", "it acts on dense layers, and every layer of this model is MoE",
                 "use moe_act, shared_experts or moe"}}},
      {{.module = moe,
        .name = "moe",
        .versions = all,
        .what = "router, both all-to-alls, the experts and the shared experts",
        .quoted = 6,
        .searched = 7,
        .idle = {no_moe_layer, "no-effect.moe", "the model has no MoE layer", "take moe out"}},
       {moe_act, shared_experts}},
      {{.module = shared_experts,
        .name = "shared_experts",
        .versions = all,
        .what = "the shared experts",
        .quoted = 7,
        .searched = 6,
        .idle = {no_shared_experts, "no-effect.shared-experts", "the model has no shared experts",
                 "take shared_experts out", "moe_shared_expert_intermediate_size"}}},
      // Layers of these are not modelled: the names are known, so that scenarios with them can be read and refused.
      {{.module = gdn, .name = "gdn", .versions = dev}},
      {{.module = gdn_norm_out,
        .name = "gdn_norm_out",
        .versions = from(v0_19),
        .what = "the gated norm of linear attention",
        .quoted = 8,
        .searched = 8}},
      {{.module = gdp_in_proj, .name = "gdp_in_proj", .versions = main}},
      {{.module = gdp_qkv, .name = "gdp_qkv", .versions = main}},
      {{.module = mhc, .name = "mhc", .versions = pr_4268 | from(dev)}},
  };
}

std::vector<OffloadRow> offload_rows() {
  using enum Version;
  using enum Offload;
  using enum OffloadRow::Part;
  constexpr Versions all = all_versions;
  return {
      {{.module = attn_norm,
        .name = "attn_norm",
        .versions = all,
        .what = "the input of the norm before attention",
        .quoted = 6,
        .searched = 1,
        .offered = pairs_no_layers,
        .idle = {norms_fused, "no-effect.offload-norm",
                 "the norm is fused into the qkv projection (IdentityOp in its place)",
                 "take attn_norm out, or offload qkv_linear, whose region holds the norm's tensors"}},
       norms},
      {{.module = qkv_linear,
        .name = "qkv_linear",
        .versions = all,
        .what = "the input of the qkv projection",
        .quoted = 8,
        .searched = 2},
       attention},
      {{.module = core_attn,
        .name = "core_attn",
        .versions = all,
        .what = "q, k, v, the output and what the attention kernel saves",
        .quoted = 1,
        .searched = 3},
       attention},
      {{.module = attn_proj,
        .name = "attn_proj",
        .versions = all,
        .what = "the input of attention's output projection",
        .quoted = 2,
        .searched = 4},
       attention,
       core_attn},
      {{.module = mlp_norm,
        .name = "mlp_norm",
        .versions = all,
        .what = "the input of the norm before the MLP or the experts",
        .quoted = 7,
        .searched = 5,
        .offered = pairs_no_layers,
        .idle = {no_mlp_norm, "no-effect.offload-mlp-norm",
                 "the norm is fused into the MLP's first linear (IdentityOp in its place)",
                 "take mlp_norm out; the dense MLP has no offload module"}},
       norms},
      {{.module = expert_fc1,
        .name = "expert_fc1",
        .versions = all,
        .what = "the rows that the experts received",
        .quoted = 3,
        .searched = 6},
       experts},
      {{.module = moe_act,
        .name = "moe_act",
        .versions = all,
        .what = "the input of the experts' activation",
        .quoted = 5,
        .searched = 7},
       experts},
      {{.module = fused_group_mlp,
        .name = "fused_group_mlp",
        .versions = from(v0_19),
        .what = "the rows, the activation's input and fc2's input of the fused grouped MLP",
        .quoted = 4,
        .searched = 8,
        .offered = fuses_experts},
       experts,
       {},
       {expert_fc1, moe_act}},
      {{.module = gdp_qkv, .name = "gdp_qkv", .versions = main}},  // layers of it are not modelled
  };
}

template <typename Rows>
Rows in_order(Rows rows, std::size_t known) {
  if (rows.size() != known) throw InternalError("catalogue and enum differ in length");
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (static_cast<std::size_t>(rows[i].module) != i) throw InternalError("catalogue out of the order of its enum");
  return rows;
}

const std::vector<RecomputeRow>& recomputed() {
  static const auto rows = in_order(recompute_rows(), recompute_modules_known);
  return rows;
}
const std::vector<OffloadRow>& offloaded() {
  static const auto rows = in_order(offload_rows(), offload_modules_known);
  return rows;
}

template <typename Rows>
auto find_in(const Rows& rows, std::string_view name) -> decltype(rows.data()) {
  const auto at = std::ranges::find_if(rows, [&](const auto& row) { return row.name == name; });
  return at == rows.end() ? nullptr : &*at;
}

Strings names_in(const auto& rows) {
  Strings names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

}  // namespace

std::span<const RecomputeRow> recompute_catalogue() { return recomputed(); }
std::span<const OffloadRow> offload_catalogue() { return offloaded(); }
const RecomputeRow& row(Recompute module) { return recomputed()[static_cast<std::size_t>(module)]; }
const OffloadRow& row(Offload module) { return offloaded()[static_cast<std::size_t>(module)]; }
const RecomputeRow* find_recompute(std::string_view name) { return find_in(recomputed(), name); }
const OffloadRow* find_offload(std::string_view name) { return find_in(offloaded(), name); }
Strings recompute_names() { return names_in(recomputed()); }
Strings offload_names() { return names_in(offloaded()); }

bool lists(const Strings& names, Recompute module) { return std::ranges::find(names, name(module)) != names.end(); }
bool lists(const Strings& names, Offload module) { return std::ranges::find(names, name(module)) != names.end(); }

bool recomputes(const Scenario& s, Recompute module) { return lists(recompute_modules(s), module); }
bool offloads(const Scenario& s, Offload module) {
  return s.settings.fine_grained_activation_offloading && lists(s.settings.offload_modules, module);
}

}  // namespace pipewright::scenario
