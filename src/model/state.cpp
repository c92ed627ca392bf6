#include "state.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>

#include "fsdp.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"
#include "state_writer.hpp"

namespace pipewright::model {
namespace {

/// Streams of a grouped GEMM, each with its workspace (gemm.py get_cublas_workspace; TE common get_num_cublas_streams).
constexpr int grouped_streams = 4;

Int bytes_of(const std::vector<Int>& list) { return std::accumulate(list.begin(), list.end(), Int{0}); }

}  // namespace

/// Modules allocate their parameters one by one; DistributedDataParallel moves them into its buffers.
void StateWriter::construct_module(const std::vector<Parameter>& parameters) {
  auto& made = modules_.emplace_back();
  for (const auto& p : parameters) {
    const auto copy = [&](bool columnwise) {
      return p.fp8 ? d_.precision.weight_bytes(p.weight_out, p.weight_in, columnwise) : 2 * p.elements;
    };
    if (p.fp8 && d_.precision.parameters_outside_buffers()) {
      hold_from_start("parameters", copy(false));
      hold_from_start("column-wise parameters", copy(true));
      if (!p.frozen) casts_of_chunks_.push_back({p.weight_out, p.weight_in});
      continue;
    }
    if (p.frozen)  // stays what the module made
      hold_from_start("frozen parameters", copy(false));
    else
      made.push_back(made_in_shards()
                         ? no_tensor
                         : construction_.allocate("parameters", d_.precision.recipe == Recipe::nvfp4 && p.fp8
                                                                    ? d_.precision.buffered_bytes(p.elements, true)
                                                                    : copy(false)));
    // NVFP4: the buffers take the row-wise data over, scales stay.
    if (p.fp8 && d_.precision.recipe == Recipe::nvfp4)
      hold_from_start("scales of parameters", copy(false) - d_.precision.buffered_bytes(p.elements, true));
    // Hopper multiplies FP8 in TN only, so FP8 parameters keep a transpose beside (TE reset_parameters,
    // post_all_gather_processing), whatever disable_parameter_transpose_cache says.
    // Megatron-FSDP drops them after each unit's forward pass.
    if (!p.fp8 || !d_.precision.two_copies()) continue;
    if (d_.fsdp && !d_.fsdp_keeps_transposes)
      hold(rank_.until_first_step, "transposed FP8 parameters", copy(true));
    else
      hold_from_start(d_.precision.recipe == Recipe::nvfp4 ? "column-wise parameters" : "transposed FP8 parameters",
                      copy(true));
  }
  // By the first linear layer's constructor.
  if (modules_.size() == 1 && !d_.local_spec) hold_from_start("workspace", d_.gpu.te_workspace.value);
  if (d_.rope && !d_.mla) hold_from_start("rotary frequencies", 4 * d_.head_dim / 2);
}

/// Megatron-FSDP makes the parameters of a unit when it shares them (init_model_with_meta_device).
bool StateWriter::made_in_shards() const { return d_.fsdp && s_.settings.init_model_with_meta_device; }

/// A group's share of parameters, its whole bucket for a moment, its main parameters; what the modules made goes
/// (param_and_grad_buffer.py, _init_each_parameter_group_buffers).
void StateWriter::share_parameters(const Buffer& buffer, const std::vector<std::uint32_t>& made, Int ranks) {
  std::size_t next = 0;
  for (const auto& [begin, end] : buffer.buckets) {
    std::vector<std::uint32_t> unit;
    for (; next < buffer.of.size() && buffer.parameters[next].first < end; ++next) {
      const auto& [from, to] = buffer.parameters[next];
      unit.push_back(made_in_shards()
                         ? construction_.allocate("parameters", d_.precision.buffered_bytes(to - from, buffer.fp8))
                         : made[buffer.of[next]]);
    }
    const Int bytes = d_.precision.buffered_bytes(end - begin, buffer.fp8);
    hold_from_start("parameters", bytes / ranks);
    const auto whole = construction_.allocate("gathered parameters", bytes);
    hold_from_start("main parameters", (end - begin) / ranks * 4);
    for (const auto tensor : unit) construction_.free(tensor);
    construction_.free(whole);
  }
}

void StateWriter::add_chunk(std::size_t index, const std::vector<Parameter>& parameters) {
  const auto& o = s_.settings;
  auto& chunk = rank_.chunks[index];
  // Buckets are split on the first pipeline rank's first chunk only, and only for overlap (reference 1.6).
  const bool disabled = index > 0 || o.overlap_param_gather_with_optimizer_step;  // disable_bucketing
  const bool splits = o.overlap_grad_reduce && pp_rank_ == 0 && !disabled;
  // training.py, resolve_ddp_bucket_size: the parameters of all of the rank's chunks, frozen ones too.
  const Int bucket = !splits ? 0 : o.num_buckets ? all_parameters_ / *o.num_buckets : scenario::bucket_size(s_);
  auto buffers = d_.fsdp ? unit_buffers(parameters, dense_.ranks, experts_.ranks)
                         : layout(parameters, bucket, dense_.ranks, experts_.ranks, o.use_distributed_optimizer,
                                  o.pad_buckets_for_high_nccl_busbw, d_.muon_whole);
  if (!d_.fsdp) group_buckets(buffers, disabled);
  Int parameter_bytes = 0;
  for (const auto& p : parameters) {
    chunk.parameters += p.elements;
    if (p.replicated && !p.frozen) replicated_elements_ += p.elements;
    const bool outside = p.fp8 && d_.precision.parameters_outside_buffers();
    if (p.frozen && !outside)
      parameter_bytes += p.fp8 ? d_.precision.weight_bytes(p.weight_out, p.weight_in, false) : 2 * p.elements;
    if (outside)
      parameter_bytes += d_.precision.weight_bytes(p.weight_out, p.weight_in, false) +
                         d_.precision.weight_bytes(p.weight_out, p.weight_in, true);
  }
  for (const auto& buffer : buffers) {
    const bool outside = buffer.fp8 && d_.precision.parameters_outside_buffers();
    auto& optimizer = buffer.expert ? experts_ : dense_;
    const Int share = d_.fsdp ? optimizer.ranks : 1;
    const Int bytes = outside ? 0 : d_.precision.buffered_bytes(buffer.elements, buffer.fp8) / share;
    parameter_bytes += bytes;
    if (d_.fsdp)
      share_parameters(buffer, modules_[index], share);
    else
      hold_from_start("parameters", bytes), hold_gradients(buffer.elements * d_.gradient_bytes);
    scaled_.push_back(buffer.elements / share);
    const bool own_optimizer = o.overlap_param_gather_with_optimizer_step && index == 0;
    if (buffer.fp8)
      for (const std::size_t p : buffer.of) kept_[{buffer.expert, own_optimizer}].push_back(parameters[p].elements);
    if (!d_.fsdp) add_gradient_sync(chunk, buffer, optimizer);
    const auto own = [&](std::size_t r, Int elements, std::size_t i) {
      const Parameter& p = parameters[buffer.of[i]];
      optimizer.owned[r].push_back({elements, buffer.fp8, own_optimizer});
      optimizer.owned[r].back().decays = p.rows > 0 || p.weight_in > 0 || p.layer < 0;
    };
    const auto own_whole = [&](std::size_t r, std::size_t i) {
      const Parameter& p = parameters[buffer.of[i]];
      own(r, p.elements, i);
      if (d_.muon) optimizer.owned[r].back().matrix = {p.rows, p.cols, p.qkv};
    };
    if (!o.use_distributed_optimizer && !d_.fsdp)
      for (std::size_t r = 0; r < optimizer.owned.size(); ++r)
        for (std::size_t i = 0; i < buffer.of.size(); ++i) own_whole(r, i);
    else if (buffer.owners.empty())
      for_shards(buffer, optimizer.ranks, own);
    else
      for (std::size_t i = 0; i < buffer.of.size(); ++i) own_whole(static_cast<std::size_t>(buffer.owners[i]), i);
  }
  if (d_.fsdp)  // one tensor of each type, behind all groups
    hold_gradients(std::accumulate(buffers.begin(), buffers.end(), Int{0}, [&](Int sum, const Buffer& b) {
      return sum + b.elements * d_.gradient_bytes / (b.expert ? experts_ : dense_).ranks;
    }));
  else
    for (auto p = modules_[index].rbegin(); p != modules_[index].rend(); ++p) construction_.free(*p);
  chunk.parameters_bytes = Bytes(parameter_bytes);
  if (d_.rope && !d_.mla) {
    for (const Int positions : rotary_positions())
      hold(rank_.since_first_step, "rotary table", 4 * positions * d_.rotated_width(d_.head_dim));
  }
}

/// Of every table that RotaryEmbedding keeps: one for each length that a row's longest sequence has had, up to 32
/// (rotary_pos_embedding.py, lru_cache). Those of a step's rows are counted.
std::vector<Int> StateWriter::rotary_positions() const {
  const auto packing = scenario::packing(s_);
  if (!packing) return {s_.model.seq_length};
  constexpr std::size_t most = 32;
  std::set<Int, std::greater<>> lengths;
  for (const auto& row : packing->boundaries) lengths.insert(row.longest);
  return {lengths.begin(), std::next(lengths.begin(), static_cast<std::ptrdiff_t>(std::min(most, lengths.size())))};
}

/// GlobalMemoryBuffer (core/utils.py): one tensor for a name and type, as large as the largest request. Linear layers
/// of Megatron Core gather their inputs into it, its attention multiplies into it.
void StateWriter::add_global_buffers(bool head, bool mtp) {
  Int largest = 0;
  const Int gathered = 2 * d_.tokens * d_.h;
  if (d_.sp && (head || d_.local_spec)) largest = gathered;
  if (d_.sp && d_.local_spec && mtp) largest = 2 * gathered;  // eh_proj reads embeddings beside hidden states
  if (d_.local_spec) largest = std::max(largest, 2 * d_.b * d_.heads * d_.s * d_.s);
  hold(rank_.since_first_step, "global memory buffer", largest);
  // Deferred weight gradients gather into two more in turn.
  for (int i = 0; head && d_.sp && d_.deferred_head_wgrads > 0 && i < 2; ++i) {
    hold(rank_.since_first_step, "global memory buffer", gathered);
  }
}

/// What YarnRotaryEmbedding and RotaryEmbedding of every layer's own attention hold: frequencies, and cos and sin in
/// fp32 from the constructor on, over the sequence for which the model was made.
void StateWriter::add_latent_rotary(Int layers) {
  constexpr Int default_positions = 4096;  // MLATransformerConfig.original_max_position_embeddings
  const auto stated = s_.model.other.find("original_max_position_embeddings");
  const Int positions = stated == s_.model.other.end() ? default_positions : std::atoll(stated->second.c_str());
  const bool yarn = s_.model.rope_type == "yarn";
  for (Int i = 0; i < layers; ++i) {
    for (int half = 0; half < (yarn ? 2 : 1); ++half) hold_from_start("rotary frequencies", 4 * d_.qk_rope / 2);
    for (int table = 0; yarn && table < 2; ++table) hold_from_start("rotary table", 4 * positions * d_.qk_rope);
    if (!d_.fused_rope) hold(rank_.since_first_step, "rotary table", 4 * s_.model.seq_length * d_.qk_rope);
  }
}

/// LayerWiseDistributedOptimizer.allgather_params: dense parameters, then experts; a rank's own flattened, one tensor
/// for each other rank's (before 0.17 for its own, too), copied into the parameters. Those in FP8 are flattened in bf16
/// (TE float8_tensor.py: what has no rule of its own is dequantized), and quantized again one by one.
std::vector<Int> StateWriter::gather_dealt() {
  std::vector<Int> largest;
  for (const auto* optimizer : {&dense_, &experts_}) {
    if (optimizer->ranks == 1 || optimizer->elements() == 0) continue;
    Int all = 0, all_fp8 = 0;
    std::size_t count = 0;
    std::vector<Int> tensors;
    for (const auto& rank : optimizer->owned) {
      all_fp8 += fp8_elements_of(rank);
      tensors.push_back(2 * elements_of(rank));
      all += elements_of(rank);
      count += rank.size();
    }
    const Int own = optimizer->elements(), own_fp8 = optimizer->fp8_elements(), others = all - own;
    const Int others_fp8 = all_fp8 - own_fp8;
    if (scenario::core_version(s_.software) < scenario::Version::v0_17) tensors.push_back(2 * own);
    if (own_fp8 > 0) launch(gathers_, "FP8 parameters in 16 bits", {"cast.fp8", {own_fp8}});
    launch(gathers_, "parameters flattened", {"copy.d2d", {2 * own}});
    collective(gathers_, "parameter all-gather", "all_gather", optimizer->ranks, 2 * all, optimizer->link,
               Stream::compute, Purpose::dp);
    const int copies = static_cast<int>(count) - optimizer->shards();
    if (others > others_fp8) {
      launch(gathers_, "parameters from gathered ones", {"copy.d2d", {2 * (others - others_fp8)}});
      gathers_.back().launches = copies;
    }
    if (others_fp8 > 0) quantize_dealt(gathers_, "gathered parameters", others_fp8, 2, copies);
    if (bytes_of(tensors) > bytes_of(largest)) largest = std::move(tensors);
  }
  return largest;
}

void StateWriter::run(const std::vector<ChunkShape>& shapes) {
  const auto& o = s_.settings;
  for (auto* optimizer : {&dense_, &experts_})
    optimizer->owned.resize(o.use_distributed_optimizer || d_.fsdp ? static_cast<std::size_t>(optimizer->ranks) : 1);
  std::set<std::pair<Int, Int>> weight_shapes;
  bool shares = false, head = false, moe = false, mtp = false;
  construction_.to_forward();
  std::vector<std::vector<Parameter>> of_chunks;
  for (const auto& shape : shapes) {
    construct_module(of_chunks.emplace_back(chunk_parameters(d_, s_, shape)));
    if (d_.mla) add_latent_rotary(static_cast<Int>(shape.layers.size()) + shape.mtp_layers);
  }
  for (const auto& chunk : of_chunks)
    for (const auto& p : chunk) all_parameters_ += p.elements;
  for (std::size_t c = 0; c < shapes.size(); ++c) {
    const auto& parameters = of_chunks[c];
    add_chunk(c, parameters);
    parameters_ += static_cast<int>(parameters.size());
    if (d_.fsdp)
      for (const auto& tensor : gathered_for_good(parameters, static_cast<int>(shapes[c].layers.size()), owners_, d_))
        rank_.since_first_step.push_back(tensor);
    for (const auto& p : parameters) {
      if (p.weight_in > 0 && !p.frozen) weight_shapes.emplace(p.weight_in, p.weight_out);
      if (!p.precision.quantized() || p.fp8) continue;
      hold(rank_.since_first_step, "quantized weights", p.precision.weight_bytes(p.weight_out, p.weight_in, false));
      if (p.precision.two_copies())
        hold(rank_.since_first_step, "quantized weights", p.precision.weight_bytes(p.weight_out, p.weight_in, true));
    }
    // An output layer without a weight of its own multiplies by the embedding's.
    if (shapes[c].head && shapes[c].shares_embedding && !d_.frozen()) weight_shapes.emplace(d_.h, d_.vocab);
    shares |= shapes[c].shares_embedding;
    head |= shapes[c].head;
    for (const auto& layer : shapes[c].layers) moe |= layer.moe;
    mtp |= shapes[c].mtp_layers > 0;
    moe |= mtp && scenario::is_moe_mtp(s_);
  }
  std::vector<Int> gathered;
  if (d_.muon_dealt) {
    for (auto* optimizer : {&dense_, &experts_}) optimizer->deal();
    gathered = gather_dealt();
  }
  std::vector<const ShardedOptimizer*> optimizers;
  for (const auto* optimizer : {&dense_, &experts_})
    if (optimizer->elements() > 0) optimizers.push_back(optimizer);
  if (o.optimizer_cpu_offload) {
    for (const auto* optimizer : optimizers) add_host_state(*optimizer);
  } else {
    std::vector<Groups> groups;
    for (const auto* optimizer : optimizers) {
      groups.push_back(groups_of(*optimizer));
      add_main_parameters(*optimizer, groups.back());
    }
    // Muon's products are the first of torch's in the main thread where there is no output layer.
    if (d_.muon && !head && !d_.unfused_attention) update_.make("workspace", d_.gpu.torch_workspace.value);
    for (std::size_t i = 0; i < optimizers.size(); ++i) add_matrices(*optimizers[i], groups[i]);
    for (const auto& of_optimizer : groups) add_adam(of_optimizer);
  }
  add_casts();
  if (s_.settings.log_num_zeros_in_grad && !s_.settings.optimizer_cpu_offload) add_zero_counts();
  for (const Int bytes : gathered) hold(rank_.after_update, "gathered parameters", bytes);
  hold_from_start("optimizer scalars", 4);
  hold_from_start("optimizer scalars", 4);
  if (d_.fused_gradients) {
    for (const auto& [in, out] : weight_shapes) rank_.since_first_step.push_back(dummy_gradient(owners_, in, out));
  }
  for (int stream = 0; moe && stream < grouped_streams; ++stream) {
    hold(rank_.since_first_step, "workspace", d_.gpu.te_workspace.value);
  }
  if (head || d_.unfused_attention) {
    // One for each thread that calls torch.matmul: the forward thread and autograd's. Megatron's output layer is the
    // only torch GEMM of a dense model.
    for (int thread = 0; thread < 2; ++thread) {
      hold(rank_.since_first_step, "workspace", d_.gpu.torch_workspace.value);
    }
  }
  add_global_buffers(head, mtp);
  if (head && d_.deferred_head_wgrads > 0) add_deferred_head();
  hold(rank_.since_first_step, "token ids", 8 * d_.tokens);
  if (d_.local_spec) hold(rank_.since_first_step, "attention mask", d_.b * d_.s * d_.s);  // of one microbatch, bool
  hold(rank_.since_first_step, "position ids", 8 * d_.tokens);
  hold(rank_.since_first_step, "rng state", 8);
  add_finalize(shares);
  add_optimizer_step();
  rank_.construction = construction_.take();
  rank_.empties_cache = d_.fsdp;  // param_and_grad_buffer.py, end of _init_each_parameter_group_buffers
}

void add_state(const scenario::Scenario& scenario, const Dimensions& dimensions, Int pp_rank,
               const std::vector<ChunkShape>& shapes, Owners& owners, Rank& rank) {
  StateWriter(scenario, dimensions, pp_rank, owners, rank).run(shapes);
}

}  // namespace pipewright::model
