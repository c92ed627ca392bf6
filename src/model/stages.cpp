// Puts the pieces together: which chunk of which pipeline rank runs what, and what every rank holds for good.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ends.hpp"
#include "fsdp.hpp"
#include "mtp.hpp"
#include "parameters.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"
#include "state.hpp"

namespace pipewright::model {
namespace {

using scenario::Scenario;

/// How many layers the checkpoint that starts at layer `i` of a chunk of `count` covers (reference 3.1); 0: none.
int checkpointed(const Scenario& s, int i, int count) {
  const auto& o = s.settings;
  if (o.recompute_granularity.value_or("") != "full" || o.overlap_moe_expert_parallel_comm) return 0;
  const int n = static_cast<int>(o.recompute_num_layers.value_or(1));
  if (o.recompute_method.value_or("") == "block") return i < n ? 1 : 0;
  return std::min(n, count - i);
}

bool is_fp8(const Scenario& s, const Dimensions& d, Int layer) {
  if (d.precision.recipe == Recipe::bf16) return false;
  const auto& o = s.settings;
  if (!o.first_last_layers_bf16) return true;
  return layer >= o.num_layers_at_start_in_bf16 && layer < s.model.num_layers - o.num_layers_at_end_in_bf16;
}

LayerKind kind_of(const Scenario& s, const Dimensions& d, Int layer) {
  LayerKind kind;
  kind.precision.quantized = is_fp8(s, d, layer);
  kind.moe = scenario::is_moe_layer(s, layer);
  kind.window = scenario::attention_window(s, layer);
  kind.rotary = scenario::has_rotary_embedding(s, layer);
  kind.linear = scenario::is_linear_attention_layer(s, layer);
  kind.mamba = scenario::is_mamba_layer(s, layer);
  if (!scenario::has_mlp(s, layer)) kind.parts = Parts::mixer;
  if (scenario::is_hybrid(s) && !kind.mamba && !scenario::is_attention_layer(s, layer)) kind.parts = Parts::mlp;
  // Of softmax attention alone: equal layers stay one piece.
  if (kind.linear || kind.mamba || kind.parts == Parts::mlp) kind.window = 0, kind.rotary = true;
  return kind;
}

/// multi_token_prediction.py: a HybridStack of the depth's own letters, its layers counted from 1, in the global
/// precision (the context of a layer in 16 bits does not leave the one around it).
std::vector<LayerKind> hybrid_mtp_kinds(const Scenario& s, const Dimensions& d) {
  std::vector<LayerKind> kinds;
  for (const char letter : scenario::hybrid_mtp_layers(s)) {
    LayerKind& kind = kinds.emplace_back();
    kind.in_depth = true;
    kind.precision = d.precision_of_mtp();
    kind.moe = letter == 'E';
    kind.mamba = letter == 'M';
    kind.parts = kind.moe || letter == '-' ? Parts::mlp : Parts::mixer;
    if (letter != '*') continue;
    const auto layer = static_cast<Int>(kinds.size()) - 1;
    kind.window = scenario::attention_window(s, layer);
    kind.rotary = scenario::has_rotary_embedding(s, layer);
  }
  return kinds;
}

/// Layers of multi-token prediction are of the last decoder layer's kind, but for experts, and always in the global
/// precision. Method uniform checkpoints them one by one, block does not (multi_token_prediction.py,
/// _checkpointed_forward).
std::vector<LayerKind> mtp_kinds(const Scenario& s, const Dimensions& d) {
  const auto& o = s.settings;
  if (scenario::is_hybrid(s)) return hybrid_mtp_kinds(s, d);
  LayerKind kind = kind_of(s, d, 0);  // of attention: depths count from 1 like layers
  kind.linear = scenario::mtp_is_linear_attention(s);
  kind.window = kind.linear ? 0 : scenario::attention_window(s, 0);
  kind.rotary = kind.linear || scenario::has_rotary_embedding(s, 0);
  kind.precision = d.precision_of_mtp();
  kind.moe = scenario::is_moe_mtp(s);
  kind.checkpointed =
      o.recompute_granularity.value_or("") == "full" && o.recompute_method.value_or("") == "uniform" ? 1 : 0;
  return {kind};
}

LayerShape shape_of(const LayerKind& kind) { return {kind.precision, kind.moe, kind.linear, kind.mamba, kind.parts}; }

/// Of the MLP or the shared experts; 0: neither.
Int activation_width(const Dimensions& d, const LayerKind& kind) {
  if (kind.parts == Parts::mixer) return 0;
  return kind.moe ? d.moe.shared : d.f;
}

/// The width that a rank's process meets first, in forward that of its first layer, in backward of its last; 0: there
/// is one width, or no compiled activation.
struct FirstWidths {
  Int forward = 0, backward = 0;

  FirstWidths(const Scenario& s, const Dimensions& d, Int rank) {
    if (!d.fused_activation || d.activation != "swiglu" || d.moe.shared == 0 || d.moe.shared == d.f) return;
    const auto meet = [this](Int width) {
      if (width > 0 && forward == 0) forward = width;
      if (width > 0) backward = width;
    };
    for (Int chunk = 0; chunk < scenario::num_chunks(s); ++chunk) {
      const auto stage = scenario::stage(s, rank, chunk);
      for (const Int layer : stage.layers) meet(activation_width(d, kind_of(s, d, layer)));
      if (stage.mtp_layers > 0)
        for (const auto& kind : mtp_kinds(s, d)) meet(activation_width(d, kind));
    }
  }
  LayerKind operator()(const Dimensions& d, LayerKind kind) const {
    const Int width = activation_width(d, kind);
    if (forward > 0 && width > 0) kind.any_width = {width != forward, width != backward};
    return kind;
  }
};

/// Pieces that are equal are shared by all chunks.
class Pieces {
 public:
  Pieces(const Scenario& scenario, const Dimensions& dimensions, Stages& stages, Owners& owners)
      : s_(scenario), d_(dimensions), stages_(stages), owners_(owners) {}

  std::uint32_t layers(const std::vector<LayerKind>& kinds) {
    const auto [it, fresh] = layers_.try_emplace(kinds, next());
    if (fresh) {
      stages_.pieces.push_back(d_.ep_overlap ? layer_nodes(owners_, d_, kinds.front())
                                             : layer_piece(owners_, d_, kinds));
      if (d_.fsdp) shard_layer(stages_.pieces.back(), owners_, d_, kinds.front().unit);
    }
    return it->second;
  }
  std::uint32_t embedding(const ChunkShape& shape) {
    if (!embedding_) {
      embedding_ = next();
      stages_.pieces.push_back(embedding_piece(owners_, d_, s_));
      if (d_.fsdp) shard_end(stages_.pieces.back(), owners_, d_, s_, shape, true);
    }
    return *embedding_;
  }
  std::uint32_t final_norm() {
    if (!final_norm_) final_norm_ = next(), stages_.pieces.push_back(final_norm_piece(owners_, d_));
    return *final_norm_;
  }
  std::uint32_t mtp(const std::vector<LayerKind>& kinds) {
    if (!mtp_) {
      mtp_ = next();
      stages_.pieces.push_back(d_.ep_overlap ? mtp_nodes(owners_, d_, s_, kinds.front())
                                             : mtp_piece(owners_, d_, s_, kinds));
    }
    return *mtp_;
  }
  std::uint32_t head(bool normed, const ChunkShape& shape) {
    if (!head_) {
      head_ = next();
      stages_.pieces.push_back(head_piece(owners_, d_, s_, normed, shape.embedding));
      if (d_.fsdp) shard_end(stages_.pieces.back(), owners_, d_, s_, shape, false);
    }
    return *head_;
  }

 private:
  std::uint32_t next() const { return static_cast<std::uint32_t>(stages_.pieces.size()); }

  const Scenario& s_;
  const Dimensions& d_;
  Stages& stages_;
  Owners& owners_;
  std::map<std::vector<LayerKind>, std::uint32_t> layers_;
  std::optional<std::uint32_t> embedding_, final_norm_, mtp_, head_;
};

/// What names a microbatch's attention mask after the forward pass: checkpoints that took it as an argument (layers;
/// attention alone, attention.py, _checkpointed_attention_forward) and the plan of an overlapped microbatch.
bool keeps_mask(const Scenario& s, const Dimensions& d) {
  return d.ep_overlap || s.settings.recompute_granularity.value_or("") == "full" || d.recomputes(Recompute::core_attn);
}

/// Of a frozen model's first stage: nothing before its first adapter has a gradient.
void begin_training(const Scenario& s, Int layer, Int first, bool embedded, LayerKind& kind) {
  kind.still = layer < first, kind.ends = layer == first;
  kind.ends_in_mlp = kind.ends && !scenario::adapted_linears(s, layer).mixer();
  kind.embedded = embedded && (kind.still || kind.ends);
}

Chunk build_chunk(const Scenario& s, const Dimensions& d, Pieces& pieces, const scenario::Stage& stage,
                  const FirstWidths& first, ChunkShape& shape) {
  Chunk chunk;
  const auto add = [&](std::uint32_t piece, int layer) {
    chunk.pieces.push_back(piece);
    chunk.layers.push_back(layer);
  };
  const int count = static_cast<int>(stage.layers.size());
  // With multi-token prediction the final norm stands beside the last decoder layer (transformer_block.py,
  // has_final_layernorm_in_this_stage), wherever the loss is.
  const bool ends_decoder = d.mtp_layers > 0 && count > 0 && stage.layers.back() + 1 == s.model.num_layers;
  for (const Int layer : stage.layers) {
    shape.layers.push_back(shape_of(s, d, layer));
  }
  shape.embedding = stage.embedding;
  shape.head = stage.loss;
  shape.final_norm = d.mtp_layers > 0 ? ends_decoder : stage.loss;
  shape.mtp_layers = stage.mtp_layers;
  shape.shares_embedding = !s.model.untie_embeddings_and_output_weights;
  std::vector<LayerKind> all;
  for (const Int layer : stage.layers) all.push_back(first(d, kind_of(s, d, layer)));
  if (d.fsdp) place_units(d, s, shape, all);
  if (stage.embedding) add(pieces.embedding(shape), -1);
  // Checkpoints of whole layers ask for an input with a gradient (Bridge's peft/recompute.py).
  std::optional<Int> trains_from;
  if (d.frozen() && stage.embedding && s.settings.recompute_granularity.value_or("") != "full")
    trains_from = scenario::first_adapted_layer(s).value_or(s.model.num_layers);
  bool normed = false;
  for (int i = 0; i < count;) {
    const int group = checkpointed(s, i, count), covers = std::max(1, group);
    const auto own = stage.layers.begin() + i;
    std::vector<LayerKind> kinds(all.begin() + i, all.begin() + i + covers);
    for (LayerKind& kind : kinds) kind.checkpointed = group;
    kinds.front().angles = d.mrope && i == 0;
    if (d.graphs.own) {
      const auto graphed = [&](int layer) {
        return layer >= 0 && layer < count && graphed_parts(d, all[static_cast<std::size_t>(layer)]).any();
      };
      kinds.front().given_input = graphed(i - 1);
      kinds.front().given_gradient = graphed(i + covers);
    }
    if (trains_from && group == 0) begin_training(s, *own, *trains_from, i == 0, kinds.front());
    LayerKind& last = kinds.back();
    // What a graph returns is not added to in place, either.
    const bool before_graph = i + covers < count && !graphed_parts(d, last).any() &&
                              graphed_parts(d, all[static_cast<std::size_t>(i + covers)]).begins;
    last.last = group == 0 && (i + covers == count || before_graph);
    const bool ends = i + covers == count && (d.mtp_layers > 0 ? *own + 1 == s.model.num_layers : stage.loss);
    normed = last.final_norm = d.ep_overlap && last.moe && ends;
    add(pieces.layers(kinds), static_cast<int>(*own));
    i += covers;
  }
  if (ends_decoder && !normed) add(pieces.final_norm(), -1);
  if (stage.mtp_layers > 0) {
    auto kinds = mtp_kinds(s, d);
    for (LayerKind& kind : kinds) kind = first(d, kind);
    add(pieces.mtp(kinds), -1);
  }
  if (stage.loss) add(pieces.head(normed || d.mtp_layers > 0, shape), -1);
  if (stage.embedding || stage.loss) {
    chunk.batch = Bytes(d.mask_bytes), chunk.own_batch = Bytes(d.mask_bytes / d.cp);
    chunk.keeps_batch = keeps_mask(s, d);
  }
  return chunk;
}

void add_offload_notes(const Scenario& s, const Dimensions& d, Stages& stages) {
  if (d.offloaded.empty()) return;
  const auto note = [&](const std::string& text) { stages.notes.push_back(text); };
  if (d.precision.recipe != Recipe::bf16 && d.offloads(Offload::expert_fc1))
    note("offload of expert_fc1 in FP8 is approximated: the cast moves, where TE keeps and moves the bf16 rows");
  if (!s.settings.cuda_graph_modules.empty())
    note("offload of modules inside CUDA graphs is modelled as without graphs");
}

void add_packing_notes(const Scenario& s, const scenario::Packing& packing, Stages& stages) {
  const auto [least, most] = std::ranges::minmax(packing.lengths);
  const Int dp = scenario::data_parallel_size(s);
  std::string text = fmt::format(
      "packed sequences: {} of them fill {} rows of {} tokens to {:.1f} %; attention of a row is that of sequences of "
      "{:.0f} "
      "to {:.0f} tokens, mean {:.0f}",
      packing.sequences, packing.rows, s.model.seq_length, 100 * packing.fill, least, most, packing.mean_length);
  if (packing.too_long > 0)
    text += fmt::format("; {} do not fit a row and are {}", packing.too_long,
                        s.software.megatron_bridge ? "left out" : "cut");
  if (dp > 1)
    text += fmt::format("; simulated is the busiest of {} data-parallel ranks, with {:.3f} times the mean attention",
                        dp, packing.busiest);
  stages.notes.push_back(text);
}

void add_notes(const Scenario& s, const Dimensions& d, Stages& stages) {
  const auto note = [&](const std::string& text) { stages.notes.push_back(text); };
  for (const auto& text : s.notes) note("hf_config: " + text);
  if (!s.settings.bf16 && !s.settings.fp16) {
    note("neither bf16 nor fp16 is set: tensors are taken as two bytes an element all the same");
  }
  if (d.unfused_attention) {
    note(
        "unfused attention is derived: its batched products are priced as one product of the same work and output, its "
        "softmax as streaming kernels of the same traffic");
  }
  if (d.mla) {
    note("latent attention: its memory is that of measured runs; its kernels are measured alone");
  }
  if (d.mla && s.settings.tp_comm_overlap) {
    note("tp_comm_overlap: MLA's down projections switch it off for every layer made after them");
  }
  if (d.mtp_layers > 0) note("multi-token prediction follows the code of Megatron Core, not measured runs");
  if (d.muon)
    note("Muon follows the code of Megatron and of Emerging-Optimizers (bf16 products of every matrix" +
         std::string(d.muon_whole   ? ", each on one data-parallel rank); no measured run has it laid out over ranks"
                     : d.muon_dealt ? ", each on one data-parallel rank)"
                                    : ", on every data-parallel rank)"));
  else if (s.settings.optimizer != "adam") {
    note("optimizer " + s.settings.optimizer +
         " is taken as one fp32 moment moved at Adam's rate; its own kernels are not "
         "modelled");
  }
  if (const auto packing = scenario::packing(s)) add_packing_notes(s, *packing, stages);
  if (d.fsdp)
    note("Megatron-FSDP: a unit is gathered one unit ahead in time, as many as Megatron prefetches in memory");
  if (d.frozen() && (d.t > 1 || d.cp > 1 || d.mla || d.moe.experts > 0 || d.mamba.heads > 0))
    note(
        "LoRA beside experts, Mamba-2 mixers or latent attention, with tensor or context parallelism follows the code "
        "of Bridge, not "
        "measured runs");
  add_offload_notes(s, d, stages);
  if (d.context.gathers)
    note(
        "context parallelism by all_gather follows the code of Transformer Engine, as rank 0 runs it, with both chunks "
        "on one stream");
  if (d.mamba.heads > 0 && d.cp > 1)
    note("Mamba-2 with context parallelism follows the code of Megatron, not measured runs");
  if (d.context.ring > 1)
    note("context parallelism is approximated: a ring of equal causal attention steps, exchanges overlapped");
  if (d.precision.quantized() && !d.precision.per_tensor() && d.sp && !d.tp_overlap)
    note(
        "gathers of FP8 scaled by blocks are coalesced: c10d holds what is gathered in 100 ms (the NCCL watchdog's "
        "sleep) and what the host has launched ahead of its GPU");
  if (d.precision.scaled_by_block())
    note(std::string(d.precision.recipe == Recipe::mxfp8 ? "MXFP8" : "NVFP4") +
         " follows the code of Transformer Engine; no measured run has it");
  else if (d.precision.quantized() && !d.precision.two_copies())
    note("FP8 on tensor cores that take every layout keeps no transposed copies: by the code of Transformer Engine");
  if (d.fp8_parameters) {
    if (d.precision.parameters_outside_buffers())
      note("MXFP8 parameters: row-wise and column-wise copies, gathered in bf16 in the gradients' buffer");
    else if (d.fsdp && d.precision.two_copies())
      note("FP8 parameters of Megatron-FSDP: gathered in FP8, transposed anew " +
           std::string(d.transposing_forwards > 1 ? "in every forward and backward pass" : "in every backward pass") +
           "; the host's time for a unit's second bucket (norms, biases) is left out");
    else if (d.precision.two_copies())
      note("FP8 parameters: a transposed copy of each is kept on Hopper" +
           std::string(d.fp8_cached_weights ? "" : ", disable_parameter_transpose_cache does not change that"));
  }
  if (d.graphs.own) {
    note(
        "CUDA graphs of whole layers follow Megatron's code; memory is the most that the first step, which is recorded "
        "as it runs without them, or one that replays needs");
  } else if (d.graphs.any()) {
    note(
        "CUDA graphs follow the code of TE; memory is the most that any step needs, of those before the capture too: "
        "the "
        "first " +
        std::to_string(s.settings.cuda_graph_warmup_steps) + " run without graphs");
  }
  if (d.tp_overlap) {
    note("tp_comm_overlap is derived from the code of TE: qkv, fc1 forward and proj, fc2 dgrad run in " +
         std::to_string(d.t) + " parts as their input arrives, proj and fc2 forward in 4 parts");
  }
  const bool full_iteration = s.settings.cuda_graph_impl == "full_iteration";
  if (full_iteration) {
    note("one CUDA graph replays forward and backward: the host launches nothing there; memory is that of " +
         std::to_string(s.settings.cuda_graph_warmup_steps) +
         " steps before the capture and of a step that replays; gaps between kernels stay those of launches");
  }
  const bool other_attention = d.mla || d.sinks || d.caps_scores || !s.model.window_size.empty();
  if (d.attention_dropout > 0 && !d.unfused_attention && (other_attention || d.flash2))
    note("attention_dropout: these attention kernels were measured without it");
  if (scenario::recomputes(s, Recompute::layernorm) && scenario::row(Recompute::layernorm).idle.when(s)) {
    note("recompute of layernorm changes nothing: dense layers fuse their norms into the linear layers");
  }
  if (d.moe.experts == 0) return;
  if (s.settings.moe_load_imbalance == 1) {
    note("tokens are spread evenly over experts: moe_load_imbalance states by how much the busiest rank has more");
  } else {
    note("every expert-parallel rank is taken as the busiest one (moe_load_imbalance)");
  }
  if (d.moe.dispatch == Dispatch::flex) {
    note("dispatcher flex (" + s.settings.moe_flex_dispatcher_backend +
         ") takes the time of its published benchmarks: a token goes once to each node and from there to each GPU");
  }
  if (d.moe.dispatch == Dispatch::allgather) note("dispatcher allgather follows its code, not measurements");
  if (!d.moe.permute_fusion) note("permutation is taken as fused (moe_permute_fusion)");
  if (d.precision.recipe != Recipe::bf16) note("experts in FP8 follow the code of TE, not measurements");
  if (d.moe.fused)
    note(
        "experts are TE's fused grouped MLP, by its code: a product with activation and casts in its epilogue takes "
        "the "
        "time of the product; recompute of moe_act changes nothing there");
  if (d.moe.budget)
    note("buffers of experts have " + std::to_string(d.moe.held) + " rows a layer, of which " +
         std::to_string(d.moe.padded) + " are used: no step is taken to run out of them and run again");
  if (d.moe.stashes)
    note(
        "paged stash by its code: copies into pages and back take the time of copies on the device, beside computation "
        "that they do not slow");
  if (d.moe.drops) {
    note(d.moe.fixed_rows ? "token drop: every expert gets its capacity of rows; choosing them is taken as free"
                          : "token drop: rows are cut at the experts' capacity; choosing them is taken as free");
  }
}

}  // namespace

Bytes Stages::carried(int rank, int chunk, bool to_next) const {
  const auto& held = ranks.at(static_cast<std::size_t>(rank)).chunks.at(static_cast<std::size_t>(chunk)).pieces;
  if (held.empty()) return boundary_bytes;
  const Bytes bytes =
      pieces[to_next ? held.back() : held.front()].tensors[to_next ? Piece::output : Piece::input].bytes;
  return bytes.value > 0 ? bytes : boundary_bytes;
}

namespace {

/// Ranks between the first and the last with neither embedding nor head hold the same for good if their layers are
/// alike.
bool has_ends(const std::vector<ChunkShape>& shapes) {
  return std::any_of(shapes.begin(), shapes.end(), [](const ChunkShape& shape) {
    return shape.embedding || shape.head || shape.final_norm || shape.mtp_layers > 0;
  });
}

void copy_state(const Rank& from, Rank& to) {
  auto chunks = std::move(to.chunks);
  to = from;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    to.chunks[c].pieces = std::move(chunks[c].pieces);
    to.chunks[c].layers = std::move(chunks[c].layers);
  }
}

}  // namespace

namespace {

Stages build(const Scenario& s, const profile::Device& gpu, Owners& owners, bool with_state) {
  const Dimensions d(s, gpu);
  Stages stages;
  Pieces pieces(s, d, stages, owners);
  const Int chunks = scenario::num_chunks(s);
  std::vector<ChunkShape> before;  // of the rank before, where it is one of those between
  for (Int rank = 0; rank < d.pp; ++rank) {
    Rank result;
    std::vector<ChunkShape> shapes;
    const FirstWidths first(s, d, rank);
    for (Int c = 0; c < chunks; ++c) {
      shapes.emplace_back();
      result.chunks.push_back(build_chunk(s, d, pieces, scenario::stage(s, rank, c), first, shapes.back()));
    }
    const bool between = rank > 0 && rank + 1 < d.pp && !has_ends(shapes);
    if (!with_state) {
      stages.ranks.push_back(std::move(result));
      continue;
    }
    if (between && !before.empty() && shapes == before)
      copy_state(stages.ranks.back(), result);
    else
      add_state(s, d, rank, shapes, owners, result);
    before = between ? std::move(shapes) : std::vector<ChunkShape>();
    stages.ranks.push_back(std::move(result));
  }
  stages.boundary_bytes = Bytes(d.boundary_bytes());
  // Bridge wraps its models on the default stream, and so do programs of one's own: stock Megatron gives no device id.
  stages.gradients_elsewhere = scenario::parsed_by_megatron(s);
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
    stages.capture_reuses |=
        scenario::variable(s, name).find("graph_capture_record_stream_reuse:True") != std::string::npos;
  stages.paged_stash = d.moe.stashes;
  stages.full_iteration_graph = s.settings.cuda_graph_impl == "full_iteration";
  add_notes(s, d, stages);
  return stages;
}

}  // namespace

LayerShape shape_of(const Scenario& s, const Dimensions& d, Int layer) { return shape_of(kind_of(s, d, layer)); }

std::vector<LayerShape> mtp_shapes(const Scenario& s, const Dimensions& d) {
  std::vector<LayerShape> shapes;
  for (const LayerKind& kind : mtp_kinds(s, d)) shapes.push_back(shape_of(kind));
  return shapes;
}

Stages build_pieces(const Scenario& s, const profile::Device& gpu) {
  Owners owners;
  return build(s, gpu, owners, false);
}

Stages build(const Scenario& s, const profile::Device& gpu) {
  Owners owners;
  std::shared_ptr<Stages> eager;
  // Megatron's own graphs are captured at the end of the first step, which they record.
  const bool own = s.settings.cuda_graph_impl == "local";
  if (s.settings.cuda_graph_impl != "none" && (own || s.settings.cuda_graph_warmup_steps > 0)) {
    Scenario before = s;
    before.settings.cuda_graph_impl = "none";
    // The modules stay: whether a norm is recomputed was decided by them when the model was made.
    if (own) before.settings.cuda_graph_modules.clear();
    eager = std::make_shared<Stages>(build(before, gpu, owners, true));
  }
  Stages stages = build(s, gpu, owners, true);
  stages.owners = owners.take();
  if (eager) eager->owners = stages.owners;
  stages.eager = std::move(eager);
  return stages;
}

}  // namespace pipewright::model
