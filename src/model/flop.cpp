// Megatron-LM core_r0.19.0 megatron/training/training.py, num_floating_point_operations (transformer_flops, and
// hybrid_flops, whose mixers are as wide as 2 x hidden_size whatever their heads say and which leaves out eh_proj):
// model FLOPs, a fused multiply-add counted twice, forward + dgrad + wgrad, causal attention by half. Of frozen layers
// what is computed: no wgrad, and before the model's first adapter no dgrad; their adapters are left out.
#include "pipewright/model.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"

namespace pipewright::model {

double step_flop(const scenario::Scenario& s) {
  const auto& m = s.model;
  const auto as_double = [](scenario::Int value) { return static_cast<double>(value); };
  const double h = as_double(m.hidden_size), f = as_double(scenario::ffn_hidden_size(s));
  const double heads = as_double(m.num_attention_heads), mtp = as_double(m.mtp_num_layers.value_or(0));
  const bool hybrid = scenario::is_hybrid(s);
  const bool frozen = !s.settings.lora_target_modules.empty();
  const bool begins_late = frozen && s.settings.recompute_granularity.value_or("") != "full";
  const scenario::Int begins = begins_late ? scenario::first_adapted_layer(s).value_or(0) : 0;
  double moe_layers = 0, dense_layers = 0, linear_layers = 0, softmax_layers = 0, mamba_layers = 0, cores = 0;
  for (scenario::Int layer = 0; layer < m.num_layers; ++layer) {
    const bool last = layer + 1 == m.num_layers;  // multi-token prediction repeats it
    const double own = layer < begins ? 0.5 : 1, own_core = layer < begins ? 1.0 / 3 : 1;  // of its passes
    const double more = last && !hybrid ? mtp : 0;
    (scenario::is_moe_layer(s, layer) ? moe_layers : dense_layers) += scenario::has_mlp(s, layer) ? own + more : 0;
    mamba_layers += scenario::is_mamba_layer(s, layer) ? own : 0;
    const bool linear = scenario::is_linear_attention_layer(s, layer);
    linear_layers += linear ? own : 0;
    if (!scenario::is_attention_layer(s, layer)) continue;
    softmax_layers += (linear ? 0 : own) + more;
    cores += (linear ? 0 : own_core) + more;
  }
  for (const char letter : scenario::hybrid_mtp_layers(s)) {
    double& layers = letter == 'E'   ? moe_layers
                     : letter == 'M' ? mamba_layers
                     : letter == '*' ? softmax_layers
                                     : dense_layers;
    layers += mtp;
    if (letter == '*') cores += mtp;
  }
  const double gemms = m.gated_linear_unit ? 3 : 2;
  const double qk_width = as_double(m.linear_num_key_heads * m.linear_key_head_dim),
               v_heads = as_double(m.linear_num_value_heads), v_dim = as_double(m.linear_value_head_dim),
               v_width = v_heads * v_dim;
  // in_proj, convolution, the rule's four products of a state, out_proj.
  const double linear = h * (2 * qk_width + 2 * v_width + 2 * v_heads) +
                        as_double(m.linear_conv_kernel_dim) * (2 * qk_width + v_width) + 4 * v_heads * v_dim * v_dim +
                        h * v_width;
  const auto mamba_heads = scenario::mamba_num_heads(s);
  double attention = 0, core = 0;  // per layer and token; per layer and token squared
  if (m.multi_latent_attention) {
    const double qk = as_double(m.qk_head_dim), rope = as_double(m.qk_pos_emb_head_dim), v = as_double(m.v_head_dim);
    const double q_rank = as_double(m.q_lora_rank.value_or(0)), kv_rank = as_double(m.kv_lora_rank);
    const double q = m.q_lora_rank ? q_rank * (h + heads * (qk + rope) + 1) : h * heads * (qk + rope);
    attention = q + kv_rank * (h + heads * (qk + v) + 1) + h * rope + heads * v * h;
    core = heads * (qk + rope) / 2 + heads * v / 2;
  } else {
    const double q = as_double(scenario::kv_channels(s)) * heads;
    const double kv = as_double(scenario::kv_channels(s) * scenario::num_query_groups(s));
    attention = h * (q + 2 * kv + (m.attention_output_gate ? q : 0)) + q * h;
    core = q / 2 * 2;
  }
  double mlp = f * gemms * dense_layers;
  if (moe_layers > 0) {
    double routed = as_double(scenario::moe_ffn_hidden_size(s)) * as_double(m.moe_router_topk) * gemms;
    if (m.moe_latent_size) {
      const double latent = as_double(*m.moe_latent_size);
      routed = routed * latent / h + 2 * latent;
    }
    mlp += (routed + as_double(m.moe_shared_expert_intermediate_size.value_or(0)) * gemms) * moe_layers;
  }
  const double state = as_double(m.mamba_state_dim);
  const double mamba =
      h * (4 * h + 2 * as_double(m.mamba_num_groups) * state + as_double(mamba_heads)) + 7 * h * state + 2 * h * h;
  const double per_token = h * mlp + attention * softmax_layers + linear * linear_layers + mamba * mamba_layers +
                           (hybrid ? 0 : mtp * (3 * h + 2 * h * h)) +
                           h * as_double(scenario::padded_vocab_size(s)) * (mtp + 1);
  const double sequence = as_double(m.seq_length), sequences = as_double(s.settings.global_batch_size);
  const auto rows = scenario::packing(s);  // training.py: seqlen_squared_sum of what is packed, from 0.18 on
  const double seen = rows ? rows->mean_length : sequence;
  const double passes = frozen ? 2 : 3;  // frozen weights: forward and dgrad
  return 2 * sequences * sequence * (passes * per_token + 3 * seen * core * cores);
}

}  // namespace pipewright::model
