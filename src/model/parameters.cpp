#include "parameters.hpp"

#include <algorithm>
#include <numeric>

#include "muon.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::model {
namespace {

Int padded(Int value, Int divisor) { return (value + divisor - 1) / divisor * divisor; }

/// Collects the parameters of modules in the order in which Megatron Core's constructors register them.
class Modules {
 public:
  Modules(const Dimensions& dimensions, const scenario::Scenario& scenario) : d_(dimensions), s_(scenario) {}

  void embedding(bool shared) {
    vector(d_.vocab * d_.h);
    list_.back().shared_embedding = shared;
    if (s_.model.position_embedding_type == "learned_absolute") {
      const Int positions = s_.model.max_position_embeddings.value_or(s_.model.seq_length);
      vector(positions * d_.h);
      matrix(positions, d_.h);  // is_embedding_or_output_parameter marks the words' alone
    }
  }
  void head(bool shared) {
    list_.push_back({d_.vocab * d_.h, false, d_.h, d_.vocab, d_.fp8_head ? d_.precision : Precision{}});
    list_.back().shared_embedding = shared;
  }
  void norm(Int width) {
    replicated(width);
    if (!d_.rms_norm) replicated(width);
  }
  void layer(const LayerShape& shape) {
    if (shape.parts != Parts::mlp) mixer(shape);
    if (shape.parts == Parts::mixer) return;
    if (d_.pre_norms) norm(d_.h);
    if (shape.moe) {
      experts(shape.precision);
    } else {
      mlp(shape.precision);
    }
  }
  /// multi_token_prediction.py, MultiTokenPredictionLayer: enorm, hnorm, eh_proj, the layer (of hybrids several), its
  /// own norm.
  void mtp_layer(const std::vector<LayerShape>& layers) {
    norm(d_.h);
    norm(d_.h);
    weight(2 * d_.h, d_.h / d_.t, d_.precision_of(d_.precision_of_mtp(), "eh_proj"));
    for (const auto& each : layers) layer(each);
    norm(d_.h);
  }
  /// What is made from now on belongs to the next layer (or comes after the layers).
  void next_layer() {
    set_layers();
    ++layer_;
  }
  std::vector<Parameter> take() {
    set_layers();
    if (d_.frozen())
      for (auto& p : list_) p.frozen = !p.adapter;
    return std::move(list_);
  }

 private:
  void weight(Int in, Int out, const Precision& precision, bool replicated = false) {
    list_.push_back({in * out, precision.quantized() && d_.fp8_parameters, in, out, precision, replicated});
    matrix(out, in);
  }
  /// The last parameter is one.
  void matrix(Int rows, Int cols) { list_.back().rows = rows, list_.back().cols = cols; }
  void vector(Int elements) { list_.push_back({elements}); }
  /// The two weights of an adapter beside a linear layer; `row`: beside a row-parallel one.
  void adapter(Int rank, Int in, Int out, bool row) {
    if (rank == 0) return;
    for (const Int elements : {row ? rank * in : rank / d_.t * in, row ? rank * (out / d_.t) : rank * out}) {
      vector(elements);
      list_.back().adapter = true;
    }
  }
  /// One beside all experts of a rank.
  void expert_adapter(Int rank, Int in, Int out) {
    if (rank == 0) return;
    for (const Int elements : {rank * in, rank * out}) {
      vector(elements);
      list_.back().adapter = true;
      list_.back().expert = d_.moe.own_group;
    }
  }
  void replicated(Int elements) { list_.push_back({elements, false, 0, 0, {}, true}); }

  void mixer(const LayerShape& shape) {
    if (shape.mamba) return mamba_mixer(shape.precision);
    if (shape.linear) return gated_delta_net(shape.precision);
    d_.mla ? latent_attention(shape.precision) : attention(shape.precision);
  }
  void attention(LayerPrecision layer) {
    if (d_.separate_norms && d_.pre_norms) norm(d_.h);
    if (d_.sinks && s_.model.softmax_type == "learnable") vector(d_.heads);
    weight(d_.q, d_.h, d_.precision_of(layer, "self_attention.linear_proj"));
    adapter(d_.lora.proj, d_.q, d_.h, true);
    if (d_.bias) replicated(d_.h);
    if (d_.post_norms) norm(d_.h);
    if (!d_.separate_norms) norm(d_.h);
    weight(d_.h, d_.qkv_part(), d_.precision_of(layer, "self_attention.linear_qkv"));
    list_.back().qkv = true;
    adapter(d_.lora.qkv, d_.h, d_.qkv_part(), false);
    if (d_.qkv_bias) vector(d_.qkv_part());
    if (d_.qk_norm_eager) {
      vector(d_.q);
      vector(d_.kv);
    } else if (d_.qk_norm) {
      norm(d_.qk_norm_whole ? d_.q : d_.head_dim);
      norm(d_.qk_norm_whole ? d_.kv : d_.head_dim);
    }
  }
  /// The module's own parameters come before those of its parts.
  void gated_delta_net(LayerPrecision layer) {
    const auto& l = d_.linear;
    vector(l.value_heads);  // dt_bias
    vector(l.value_heads);  // A_log
    norm(d_.h);
    weight(d_.h, l.projected(), d_.precision_of(layer, "self_attention.in_proj"));
    adapter(d_.lora.in_proj, d_.h, l.projected(), false);
    vector(l.convolved() * l.conv);
    norm(l.head_dim);
    weight(l.values(), d_.h, d_.precision_of(layer, "self_attention.out_proj"));
    adapter(d_.lora.out_proj, l.values(), d_.h, true);
  }
  /// Float16Module makes A_log and D 16-bit like the rest (Module.bfloat16).
  void mamba_mixer(LayerPrecision layer) {
    const auto& m = d_.mamba;
    vector(m.convolved() * Mamba::conv);
    vector(m.convolved());  // its bias
    vector(m.heads);        // dt_bias
    vector(m.heads);        // A_log
    vector(m.heads);        // D
    norm(d_.h);
    weight(d_.h, m.projected(), d_.precision_of(layer, "mixer.in_proj"));
    adapter(d_.lora.in_proj, d_.h, m.projected(), false);
    vector(m.inner());
    weight(m.inner(), d_.h, d_.precision_of(layer, "mixer.out_proj"));
    adapter(d_.lora.out_proj, m.inner(), d_.h, true);
  }
  void latent_attention(LayerPrecision layer) {
    const auto of = [&](const std::string& name) { return d_.precision_of(layer, "self_attention." + name); };
    const auto up = [&](Int rank, Int out, const char* name) {
      if (d_.qk_norm && !d_.separate_norms) norm(rank);
      weight(rank, out, of(name));
      adapter(name == std::string_view("linear_q_up_proj") ? d_.lora.q_up : d_.lora.kv_up, rank, out, false);
    };
    if (!d_.fused_down) norm(d_.h);
    weight(d_.v_width(), d_.h, of("linear_proj"));
    adapter(d_.lora.proj, d_.v_width(), d_.h, true);
    if (d_.bias) replicated(d_.h);
    const auto down = [&](Int out, const char* name) {
      weight(d_.h, d_.splits_down ? out / d_.t : out, of(name), !d_.splits_down);
      adapter(name == std::string_view("linear_q_down_proj") ? d_.lora.q_down : d_.lora.kv_down, d_.h, out, false);
    };
    if (d_.q_rank == 0) {
      if (d_.norms_q && !d_.separate_norms) norm(d_.h);
      weight(d_.h, d_.q, of("linear_q_proj"));
      adapter(d_.lora.q, d_.h, d_.q, false);
    } else if (d_.fused_down) {
      norm(d_.h);
      down(d_.q_rank + d_.kv_rank + d_.qk_rope, "linear_qkv_down_proj");
      up(d_.q_rank, d_.q, "linear_q_up_proj");
    } else {
      down(d_.q_rank, "linear_q_down_proj");
      up(d_.q_rank, d_.q, "linear_q_up_proj");
    }
    if (!d_.fused_down) down(d_.kv_rank + d_.qk_rope, "linear_kv_down_proj");
    up(d_.kv_rank, d_.kv_up(), "linear_kv_up_proj");
    if (d_.qk_norm && d_.separate_norms) {
      if (d_.q_rank > 0) norm(d_.q_rank);
      norm(d_.kv_rank);
    }
  }
  void experts(LayerPrecision layer) {
    const auto& m = d_.moe;
    replicated(m.experts * d_.h);  // the router's weight is marked sequence_parallel
    matrix(m.experts, d_.h);
    if (d_.bias) replicated(m.experts);
    const auto each = [&](Int in, Int out) {
      for (Int i = 0; i < m.local; ++i) {
        weight(in, out, d_.precision_of(layer, "mlp.experts.linear_fc1"));
        if (m.fused) list_.back().precision = {};  // casts of its own, no module's
        list_.back().expert = m.own_group;
        if (!d_.bias) continue;
        vector(out);
        list_.back().expert = m.own_group;
      }
    };
    if (m.latent) {
      weight(d_.h, m.width, d_.precision_of(layer, "mlp.fc1_latent_proj"), true);
      weight(m.width, d_.h, d_.precision_of(layer, "mlp.fc2_latent_proj"), true);
    }
    each(m.width, m.fc1_out(d_.gated));
    expert_adapter(d_.lora.fc1, m.width, m.fc1_out(d_.gated));
    each(m.f, m.width);
    expert_adapter(d_.lora.fc2, m.f, m.width);
    if (m.shared == 0) return;
    if (m.shared_gate) {
      replicated(d_.h);
      matrix(1, d_.h);
    }
    weight(d_.h, m.shared * (d_.gated ? 2 : 1), d_.precision_of(layer, "mlp.shared_experts.linear_fc1"));
    adapter(d_.lora.fc1, d_.h, m.shared * (d_.gated ? 2 : 1), false);
    weight(m.shared, d_.h, d_.precision_of(layer, "mlp.shared_experts.linear_fc2"));
    adapter(d_.lora.fc2, m.shared, d_.h, true);
  }
  void mlp(LayerPrecision layer) {
    weight(d_.h, d_.ffn_in(), d_.precision_of(layer, "mlp.linear_fc1"));
    adapter(d_.lora.fc1, d_.h, d_.ffn_in(), false);
    if (d_.bias) vector(d_.ffn_in());
    weight(d_.f, d_.h, d_.precision_of(layer, "mlp.linear_fc2"));
    adapter(d_.lora.fc2, d_.f, d_.h, true);
    if (d_.bias) replicated(d_.h);
    if (d_.post_norms) norm(d_.h);
  }

  void set_layers() {
    for (; labelled_ < list_.size(); ++labelled_) list_[labelled_].layer = layer_;
  }

  const Dimensions& d_;
  const scenario::Scenario& s_;
  std::vector<Parameter> list_;
  std::size_t labelled_ = 0;
  int layer_ = -1;
};

}  // namespace

std::vector<Parameter> chunk_parameters(const Dimensions& d, const scenario::Scenario& s, const ChunkShape& shape) {
  Modules modules(d, s);
  // language_module.py, setup_embeddings_and_output_layer: the first stage's, and the copies of output layer and MTP.
  const bool copied = d.pp > 1 && (shape.shares_embedding || d.mtp_layers > 0);
  if (shape.embedding || shape.mtp_layers > 0) modules.embedding(copied && !(shape.embedding && shape.head));
  for (const LayerShape& layer : shape.layers) {
    modules.next_layer();
    modules.layer(layer);
  }
  modules.next_layer();
  if (shape.final_norm) modules.norm(d.h);
  // mtp_use_repeated_layer: one layer serves every depth.
  const Int depths = s.model.mtp_use_repeated_layer ? std::min<Int>(shape.mtp_layers, 1) : shape.mtp_layers;
  for (Int i = 0; i < depths; ++i) modules.mtp_layer(mtp_shapes(s, d));
  // gpt_model.py, skip_weight_param_allocation: only the stage that also holds the first embedding has no copy.
  if (shape.head && !(shape.shares_embedding && shape.embedding))
    modules.head(copied && shape.shares_embedding && shape.mtp_layers == 0);
  return modules.take();
}

std::vector<Buffer> layout(const std::vector<Parameter>& parameters, Int bucket_size, Int dense_ranks, Int expert_ranks,
                           bool distributed, bool pad_for_bus_bandwidth, bool whole) {
  std::vector<Buffer> buffers;
  struct Kind {
    bool fp8, expert, matrices;
  };
  for (const auto& [fp8, expert, matrices] : {Kind{false, false, false},
                                              {true, false, false},
                                              {false, true, false},
                                              {true, true, false},
                                              {false, false, true},
                                              {true, false, true},
                                              {false, true, true},
                                              {true, true, true}}) {
    if (matrices && !whole) break;
    Buffer buffer;
    buffer.fp8 = fp8;
    buffer.expert = expert;
    const Int ranks = expert ? expert_ranks : dense_ranks;
    Int end = 0, bucket_start = 0;
    int layer = -1;
    const Int divisor = std::lcm(std::lcm(ranks, Int{128}), pad_for_bus_bandwidth ? Int{1} << 16 : Int{1});
    std::vector<std::size_t> which;
    for (std::size_t p = parameters.size(); p-- > 0;)
      if (parameters[p].fp8 == fp8 && parameters[p].expert == expert && !parameters[p].frozen &&
          (!whole || (parameters[p].rows > 0) == matrices))
        which.push_back(p);
    if (matrices) {
      lay_out_whole(buffer, parameters, which, bucket_size, ranks, divisor);
      if (buffer.elements > 0) buffers.push_back(std::move(buffer));
      continue;
    }
    const auto close = [&] {
      if (distributed) end = padded(end, divisor);
      buffer.buckets.emplace_back(bucket_start, end);
      buffer.last_layers.push_back(layer);
      bucket_start = end;
    };
    for (const std::size_t p : which) {
      const bool alone = distributed && parameters[p].shared_embedding;
      if (alone && end > bucket_start) close();
      const Int start = distributed ? padded(end, 64) : end;
      end = start + parameters[p].elements;
      layer = parameters[p].layer;
      buffer.parameters.emplace_back(start, end);
      buffer.of.push_back(p);
      if (alone || (bucket_size > 0 && end - bucket_start >= bucket_size)) close();
    }
    if (end > bucket_start) close();
    buffer.elements = end;
    if (end > 0) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

void group_buckets(std::vector<Buffer>& buffers, bool one_group) {
  for (const bool expert : {false, true}) {
    std::vector<int*> group;
    const bool fp8 = std::ranges::any_of(buffers, [&](const Buffer& b) { return b.expert == expert && b.fp8; });
    if (!fp8 && !one_group) continue;
    for (Buffer& buffer : buffers) {
      if (buffer.expert != expert) continue;
      const std::size_t first = buffer.fp8 && !one_group ? buffer.last_layers.size() - 1 : 0;
      for (std::size_t i = first; i < buffer.last_layers.size(); ++i) group.push_back(&buffer.last_layers[i]);
    }
    if (group.empty()) continue;
    const int last = **std::ranges::min_element(group, {}, [](const int* layer) { return *layer; });
    for (int* layer : group) *layer = last;
  }
}

}  // namespace pipewright::model
