#include "state.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

#include "ends.hpp"
#include "fsdp.hpp"
#include "host_optimizer.hpp"
#include "muon.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::model {
namespace {

using scenario::Scenario;

/// Streams of a grouped GEMM, each with its workspace (gemm.py get_cublas_workspace; TE common get_num_cublas_streams).
constexpr int grouped_streams = 4;

Int type_bytes(const std::string& type) {
  if (type == "fp32") return 4;
  return type == "fp8" ? 1 : 2;
}

/// Bytes of an element of the optimizer's state; `second` 0: it has one moment only.
struct OptimizerTypes {
  Int main = 4, first = 4, second = 4;
  /// TE's FusedAdam holds the main parameters, made in its first step, reads bf16 gradients and writes the parameters
  /// itself (optimizer_config.py:404, use_precision_aware_optimizer_no_fp8_or_ds_fp8).
  bool in_adam = false;
  bool remainders = false;  ///< main parameters are the low 16 bits beside the bf16 parameter (store_param_remainders)

  /// Bytes that the optimizer's kernel moves for an element: gradient, and in and out main parameter and moments.
  Int traffic(Int gradient) const {
    const Int parameter = !in_adam ? 0 : remainders ? 2 * 2 : 2;
    return (in_adam ? gradient : 4) + 2 * (main + first + second) + parameter;
  }
};

OptimizerTypes optimizer_types(const Scenario& s) {
  const auto& o = s.settings;
  OptimizerTypes types;
  if (o.optimizer != "adam" && o.optimizer != "muon") types.second = 0;  // momentum alone (torch SGD, Lion)
  if (!o.use_precision_aware_optimizer) return types;
  types.first = type_bytes(o.exp_avg_dtype);
  if (types.second > 0) types.second = type_bytes(o.exp_avg_sq_dtype);
  const bool scaled_elsewhere = o.fp8 && o.fp8_recipe.value_or("delayed") != "delayed";
  types.in_adam = o.main_params_dtype != "fp32" || !scaled_elsewhere || o.optimizer_cpu_offload;
  types.remainders = types.in_adam && o.main_params_dtype == "fp32" && o.store_param_remainders && !o.fp16;
  types.main = types.remainders ? 2 : type_bytes(o.main_params_dtype);
  return types;
}

class StateWriter {
 public:
  StateWriter(const Scenario& scenario, const Dimensions& dimensions, Int pp_rank, Owners& owners, Rank& rank)
      : s_(scenario),
        d_(dimensions),
        pp_rank_(pp_rank),
        owners_(owners),
        rank_(rank),
        dense_{d_.dp * d_.cp, d_.dp_link, {}},
        experts_{d_.moe.edp, d_.moe.edp_link, {}},
        construction_(owners, "construction") {}

  void run(const std::vector<ChunkShape>& shapes);

 private:
  void hold(std::vector<Tensor>& list, const std::string& owner, Int bytes) {
    if (bytes > 0) list.push_back(Tensor{owners_(owner), Bytes(bytes)});
  }
  void hold_from_start(const std::string& owner, Int bytes) { construction_.allocate(owner, bytes); }
  static void launch(std::vector<Kernel>& list, const std::string& name, profile::Key key) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = std::move(key);
    list.push_back(std::move(kernel));
  }
  void collective(std::vector<Kernel>& list, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                  const Way& way, Stream stream, Purpose purpose) {
    list.push_back(collective_kernel(purpose, name, kind, ranks, bytes, way, stream));
  }
  /// Between ranks so far apart; of all GPUs with a distance of 1.
  Way way(Int stride, Int ranks) const {
    const bool leaves = stride * ranks > scenario::nvlink_domain(s_) && ranks > 1;
    return {leaves ? s_.cluster.inter_node_link : s_.cluster.link, stride, leaves};
  }
  /// One of the optimizers that ChainedOptimizer steps: parameters reduced over the same ranks.
  struct Optimizer {
    Int ranks;  ///< over which gradients are reduced and the optimizer's state is sharded
    Way link;
    struct Shard {
      Int elements;
      bool fp8;
      /// With overlap_param_gather_with_optimizer_step the first chunk has an optimizer of its own
      /// (optimizer/__init__.py, get_megatron_optimizer).
      bool first_chunk;
      Matrix matrix = {};  ///< that Muon updates; no elements: Adam does
      bool decays = true;  ///< weight decay: not of norms and biases, which are a group of their own
    };
    std::vector<std::vector<Shard>> owned;  ///< [data-parallel rank]
    Int elements() const;
    Int adam_elements() const;
    std::vector<Matrix> matrices(const Dimensions& d) const;  ///< of the rank whose matrices take longest
    int shards() const;                                       ///< of the rank that owns most
    std::vector<Int> heaviest() const;                        ///< of the rank that owns most, those that decay first
  };

  void construct_module(const std::vector<Parameter>& parameters);
  void add_chunk(std::size_t chunk, const std::vector<Parameter>& parameters);
  void hold_gathered(const std::vector<Parameter>& parameters, int layers);
  void add_optimizer_state(const Optimizer& optimizer);
  void add_host_state(const Optimizer& optimizer);
  void add_gradient_sync(Chunk& chunk, const Buffer& buffer, const Optimizer& optimizer);
  void add_casts();
  void add_deferred_head();
  std::set<Int> embedding_ranks(bool shares_embedding) const;
  void add_latent_rotary(Int layers);
  void add_global_buffers(bool head, bool mtp);
  void add_finalize(bool shares_embedding);
  void add_shard_casts(const Optimizer& optimizer);
  void add_optimizer_step();
  void add_quantized_parameters();

  const Scenario& s_;
  const Dimensions& d_;
  const Int pp_rank_;
  Owners& owners_;
  Rank& rank_;
  Optimizer dense_, experts_;
  std::map<std::pair<bool, bool>, std::vector<Int>>
      casts_;  ///< FP8 shards by (experts, first chunk): an optimizer each
  PieceBuilder construction_;
  std::vector<std::vector<std::uint32_t>> modules_;  ///< by chunk: parameters as the modules made them
  std::vector<std::pair<Int, Int>>
      casts_of_chunks_;          ///< rows and columns of parameters that are quantized after a gather
  std::vector<Kernel> gathers_;  ///< of parameters, after an optimizer's step
  Int elements_ = 0, replicated_elements_ = 0;
};

int StateWriter::Optimizer::shards() const {
  std::size_t most = 0;
  for (const auto& list : owned) most = std::max(most, list.size());
  return static_cast<int>(most);
}

std::vector<Int> StateWriter::Optimizer::heaviest() const {
  std::vector<Int> most;
  for (const auto& rank : owned) {
    std::vector<Int> list;
    for (const bool decays : {true, false})
      for (const auto& shard : rank)
        if (shard.decays == decays) list.push_back(shard.elements);
    if (std::accumulate(list.begin(), list.end(), Int{0}) > std::accumulate(most.begin(), most.end(), Int{0}))
      most = std::move(list);
  }
  return most;
}

Int StateWriter::Optimizer::elements() const {
  Int sum = 0;
  if (!owned.empty()) {
    for (const auto& shard : owned.front()) sum += shard.elements;
  }
  return sum;
}

Int StateWriter::Optimizer::adam_elements() const {
  Int sum = 0;
  if (!owned.empty()) {
    for (const auto& shard : owned.front()) sum += shard.matrix.elements() > 0 ? 0 : shard.elements;
  }
  return sum;
}

std::vector<Matrix> StateWriter::Optimizer::matrices(const Dimensions& d) const {
  std::vector<Matrix> busiest;
  double most = 0;
  for (const auto& rank : owned) {
    std::vector<Matrix> list;
    double flop = 0;
    for (const auto& shard : rank) {
      if (shard.matrix.elements() == 0) continue;
      list.push_back(shard.matrix);
      flop += orthogonalization_flop(d, shard.matrix);
    }
    if (flop > most) most = flop, busiest = std::move(list);
  }
  return busiest;
}

void StateWriter::add_gradient_sync(Chunk& chunk, const Buffer& buffer, const Optimizer& optimizer) {
  const auto& o = s_.settings;
  const Int ranks = optimizer.ranks;
  for (std::size_t bucket = 0; bucket < buffer.buckets.size(); ++bucket) {
    const auto& [start, end] = buffer.buckets[bucket];
    const Int bytes = (end - start) * d_.gradient_bytes;
    auto& list = o.overlap_grad_reduce ? chunk.gradient_sync : rank_.finalize;
    const Stream stream = o.overlap_grad_reduce ? Stream::gradient : Stream::compute;
    // _ParamAndGradBucketGroup.check_grads: its norm, asked whether it is NaN, then whether it is infinite.
    if (d_.checks_for_nan) {
      launch(list, "gradient norm of a bucket", {"l2norm", {bytes / 4}});
      list.back().read_by_host = true;
      launch(list, "gradient norm is infinite", {"small", {}});
      list.back().host_family = "check";
      list.back().read_by_host = true;
    }
    // Gradients of experts are divided by the data-parallel size too (distributed_data_parallel.py:212).
    if (dense_.ranks > 1 && !o.average_in_collective && !o.calculate_per_token_loss) {
      launch(list, "gradient scaling", {"scale", {(end - start) * d_.gradient_bytes / 4}});
    }
    if (ranks > 1) {
      collective(list, "gradient reduction", o.use_distributed_optimizer ? "reduce_scatter" : "all_reduce", ranks,
                 bytes, optimizer.link, stream, Purpose::dp);
    }
    chunk.gradient_sync_layers.resize(chunk.gradient_sync.size(), buffer.last_layers[bucket]);
    if (ranks == 1 || !o.use_distributed_optimizer) continue;
    const Int gathered = (end - start) * d_.precision.gathered_parameter_bytes(buffer.fp8);
    auto& gather = o.overlap_param_gather ? chunk.parameter_gather : gathers_;
    collective(gather, "parameter all-gather", "all_gather", ranks, gathered, optimizer.link,
               o.overlap_param_gather ? Stream::parameter : Stream::compute, Purpose::dp);
  }
}

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
      casts_of_chunks_.push_back({p.weight_out, p.weight_in});
      continue;
    }
    if (p.frozen)  // stays what the module made
      hold_from_start("frozen parameters", copy(false));
    else
      made.push_back(construction_.allocate("parameters", copy(false)));
    // Hopper multiplies FP8 in TN only, so FP8 parameters keep a transpose beside (TE reset_parameters,
    // post_all_gather_processing), whatever disable_parameter_transpose_cache says.
    if (p.fp8 && d_.precision.two_copies()) hold_from_start("transposed FP8 parameters", copy(true));
  }
  // By the first linear layer's constructor.
  if (modules_.size() == 1 && !d_.local_spec) hold_from_start("workspace", d_.gpu.te_workspace.value);
  if (d_.rope && !d_.mla) hold_from_start("rotary frequencies", 4 * d_.head_dim / 2);
}

void StateWriter::add_chunk(std::size_t index, const std::vector<Parameter>& parameters) {
  const auto& o = s_.settings;
  auto& chunk = rank_.chunks[index];
  // Buckets are split on the first pipeline rank's first chunk only, and only for overlap (reference 1.6).
  const bool splits =
      o.overlap_grad_reduce && pp_rank_ == 0 && index == 0 && !o.overlap_param_gather_with_optimizer_step;
  const Int bucket = splits ? o.bucket_size.value_or(std::max<Int>(40000000, 1000000 * dense_.ranks)) : 0;
  const auto buffers = d_.fsdp ? unit_buffers(parameters, dense_.ranks, experts_.ranks)
                               : layout(parameters, bucket, dense_.ranks, experts_.ranks, o.use_distributed_optimizer,
                                        o.pad_buckets_for_high_nccl_busbw, d_.muon_whole);
  Int parameter_bytes = 0;
  for (const auto& p : parameters) {
    chunk.parameters += p.elements;
    if (p.replicated && !p.frozen) replicated_elements_ += p.elements;
    if (p.frozen)
      parameter_bytes += p.fp8 ? d_.precision.weight_bytes(p.weight_out, p.weight_in, false) : 2 * p.elements;
    if (p.fp8 && d_.precision.parameters_outside_buffers())
      parameter_bytes += d_.precision.weight_bytes(p.weight_out, p.weight_in, false) +
                         d_.precision.weight_bytes(p.weight_out, p.weight_in, true);
  }
  for (const auto& buffer : buffers) {
    const bool outside = buffer.fp8 && d_.precision.parameters_outside_buffers();
    auto& optimizer = buffer.expert ? experts_ : dense_;
    const Int share = d_.fsdp ? optimizer.ranks : 1;
    const Int bytes = outside ? 0 : buffer.elements * (buffer.fp8 ? 1 : 2) / share;
    parameter_bytes += bytes;
    hold_from_start("parameters", bytes);
    hold_from_start("gradients", buffer.elements * d_.gradient_bytes / share);
    const bool own_optimizer = o.overlap_param_gather_with_optimizer_step && index == 0;
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
  for (auto p = modules_[index].rbegin(); p != modules_[index].rend(); ++p) construction_.free(*p);
  chunk.parameters_bytes = Bytes(parameter_bytes);
  elements_ += chunk.parameters;
  if (d_.rope && !d_.mla) hold(rank_.since_first_step, "rotary table", 4 * s_.model.seq_length * d_.head_dim);
}

/// Of Megatron-FSDP: embedding and output layer, gathered once a step; fsdp_double_buffer's buffers of the largest
/// unit.
void StateWriter::hold_gathered(const std::vector<Parameter>& parameters, int layers) {
  Int ends[2] = {0, 0};
  std::vector<Int> units(static_cast<std::size_t>(layers));
  for (const auto& p : parameters) {
    if (p.layer >= 0 && p.layer < layers)
      units[static_cast<std::size_t>(p.layer)] += p.elements;
    else
      ends[p.layer < 0 ? 0 : 1] += p.elements;
  }
  for (const Int elements : ends) hold(rank_.since_first_step, "gathered parameters", 2 * elements);
  const Int largest = units.empty() ? 0 : *std::ranges::max_element(units);
  for (int buffer = 0; d_.fsdp_buffers && buffer < 2; ++buffer) {
    hold(rank_.since_first_step, "gathered parameters", 2 * largest);
    hold(rank_.since_first_step, "gradient bucket", d_.gradient_bytes * largest);
  }
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

/// Main parameters become FP8 through 16 bits: first all of an optimizer's, then one after the other
/// (TE pytorch/tensor/utils.py, cast_master_weights_to_fp8). Optimizers step in turn: the one with the most counts.
void StateWriter::add_casts() {
  const auto sum = [](const auto& list) { return std::accumulate(list.begin(), list.end(), Int{0}); };
  const auto most = std::max_element(casts_.begin(), casts_.end(),
                                     [&](const auto& a, const auto& b) { return sum(a.second) < sum(b.second); });
  if (most == casts_.end()) return;
  for (const Int n : most->second) hold(rank_.after_update, "main parameters in 16 bits", 2 * n);
  if (d_.precision.recipe != Recipe::tensorwise) return;
  hold(rank_.after_update, "parameters cast to FP8", *std::max_element(most->second.begin(), most->second.end()));
}

/// The state of the data-parallel rank that owns most.
void StateWriter::add_optimizer_state(const Optimizer& optimizer) {
  const auto sum = [](const std::vector<Optimizer::Shard>& list) {
    Int total = 0;
    for (const auto& shard : list)  // main parameter and moments, of which Muon's matrices have one less
      total += (4 * shard.elements + 511) / 512 * 512 * (shard.matrix.elements() > 0 ? 2 : 3);
    return total;
  };
  const auto& owned = optimizer.owned;
  const auto heaviest =
      std::max_element(owned.begin(), owned.end(), [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
  const auto types = optimizer_types(s_);
  for (const auto& [n, fp8, first_chunk, matrix, decays] : *heaviest) {
    if (types.in_adam) {
      hold(rank_.optimizer_state, "main parameters", n * types.main);
    } else {
      const auto copy = construction_.allocate("parameters", 2 * n);  // shard_model_param.clone().float()
      hold_from_start("main parameters", n * types.main);
      construction_.free(copy);
    }
    hold(rank_.optimizer_state, "optimizer moments", n * types.first);
    if (matrix.elements() == 0)
      hold(rank_.optimizer_state, "optimizer moments", n * types.second);  // none of zero bytes
    // bf16 gradients become fp32 ones for the step (distrib_optimizer.py, _copy_model_grads_to_main_grads).
    if (d_.gradient_bytes == 2 && !types.in_adam) {
      hold(rank_.during_optimizer, "fp32 gradients", 4 * n);
    }
    if (fp8 && !d_.precision.parameters_outside_buffers()) casts_[{&optimizer == &experts_, first_chunk}].push_back(n);
  }
}

/// HybridDeviceOptimizer: the host's shards leave the casts of the copies' way; the GPU's have fp32 parameters from the
/// constructor on, moments and fp32 gradients that stay from one step to the next (zero_grad reaches the bf16 ones).
void StateWriter::add_host_state(const Optimizer& optimizer) {
  const HostShare share = host_share(optimizer.heaviest(), s_.settings.optimizer_offload_fraction);
  const auto largest = [](const std::vector<Int>& shards) {
    return shards.empty() ? Int{0} : *std::max_element(shards.begin(), shards.end());
  };
  const bool overlaps = s_.settings.overlap_cpu_optimizer_d2h_h2d;
  const auto in_passing = [&](const std::string& owner, Int bytes, Stream stream) {
    if (bytes > 0)
      rank_.during_optimizer.push_back(Tensor{owners_(owner), Bytes(bytes), overlaps ? stream : Stream::compute});
  };
  const HostBytes host = host_bytes(s_, share);
  rank_.pinned += host.pinned;
  rank_.pageable += host.pageable;
  for (const Int n : share.gpu) {
    hold_from_start("main parameters", 4 * n);
    for (int moment = 0; moment < 2; ++moment) hold(rank_.optimizer_state, "optimizer moments", 4 * n);
    hold(rank_.optimizer_state, "fp32 gradients", 4 * n);
  }
  if (d_.gradient_bytes == 2)
    in_passing("fp32 gradients", 4 * std::max(largest(share.host), largest(share.gpu)), Stream::d2h);
  if (overlaps || d_.gradient_bytes == 4) in_passing("parameters in fp32", 4 * largest(share.host), Stream::h2d);
}

/// drain_embedding_wgrad_compute: a GEMM for each microbatch, its input gathered while the one before runs.
void StateWriter::add_deferred_head() {
  std::vector<Kernel> drain;
  for (Int i = 0; i < d_.deferred_head_wgrads * (1 + d_.mtp_layers); ++i) {
    if (d_.sp) {
      collective(drain, "head all-gather, deferred", "all_gather", d_.t, 2 * d_.tokens * d_.h, d_.tp_link,
                 i == 0 ? Stream::compute : Stream::communication, Purpose::tp);
    }
    launch(drain, "head wgrad, deferred", head_wgrad(d_));
  }
  rank_.finalize.insert(rank_.finalize.begin(), drain.begin(), drain.end());
}

/// Pipeline ranks that hold a copy of the word embedding (parallel_state.py, the embedding group): the first; the last
/// where the output layer shares it; those of multi-token prediction.
std::set<Int> StateWriter::embedding_ranks(bool shares_embedding) const {
  std::set<Int> ranks = {0};
  if (shares_embedding) ranks.insert(d_.pp - 1);
  for (Int rank = 0; rank < d_.pp; ++rank) {
    if (scenario::stage(s_, rank, scenario::num_chunks(s_) - 1).mtp_layers > 0) ranks.insert(rank);
  }
  return ranks;
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

void StateWriter::add_finalize(bool shares_embedding) {
  if (d_.sp && replicated_elements_ > 0) {
    // Norm gradients of sequence-parallel ranks are summed (finalize_model_grads.py,
    // _allreduce_non_tensor_model_parallel_grads).
    launch(rank_.finalize, "norm gradients gathered", {"small", {}});
    collective(rank_.finalize, "norm gradients all-reduce", "all_reduce", d_.t,
               replicated_elements_ * d_.gradient_bytes, d_.tp_link, Stream::compute, Purpose::tp);
    launch(rank_.finalize, "norm gradients scattered", {"small", {}});
  }
  const auto ranks = embedding_ranks(shares_embedding);
  if (d_.frozen()) return;
  if (ranks.size() > 1 && ranks.contains(pp_rank_)) {
    collective(rank_.finalize, "embedding gradients all-reduce", "all_reduce", static_cast<Int>(ranks.size()),
               d_.vocab * d_.h * d_.gradient_bytes,
               way(s_.cluster.num_gpus / static_cast<Int>(ranks.size()), static_cast<Int>(ranks.size())),
               Stream::compute, Purpose::dp);
    rank_.finalize.back().joins_pipeline = true;
  }
}

/// FP8 parameters from their main parameters (TE tensor/utils.py, cast_master_weights_to_fp8): every shard that the
/// rank owns is cast as one row, with a transpose that nobody reads.
void StateWriter::add_shard_casts(const Optimizer& optimizer) {
  if (!d_.precision.per_tensor()) return;
  std::vector<Int> shards;
  for (const auto& [which, sizes] : casts_)
    if (which.first == (&optimizer == &experts_)) shards.insert(shards.end(), sizes.begin(), sizes.end());
  if (shards.empty()) return;
  auto& step = rank_.optimizer;
  const auto amaxes_reduced = [&] {
    if (optimizer.ranks > 1)
      collective(step, "parameters' amax all-reduce", "all_reduce", optimizer.ranks,
                 4 * static_cast<Int>(shards.size()), optimizer.link, Stream::compute, Purpose::dp);
    launch(step, "parameters' scales", {"small", {}});
  };
  if (d_.precision.recipe == Recipe::tensorwise) {
    for (const Int n : shards) launch(step, "parameter amax", {"amax", {n}});
    amaxes_reduced();
  }
  for (const Int n : shards) launch(step, "parameter cast", {"cast_transpose.fp8.row", {n}});
  if (d_.precision.recipe == Recipe::delayed) amaxes_reduced();
}

void StateWriter::add_optimizer_step() {
  const auto& o = s_.settings;
  auto& step = rank_.optimizer;
  std::vector<const Optimizer*> optimizers;
  Int owned = 0;
  int shards = 0;
  for (const auto* optimizer : {&dense_, &experts_}) {
    if (optimizer->elements() == 0) continue;
    optimizers.push_back(optimizer);
    owned += optimizer->elements();
    shards += optimizer->shards();
  }
  // One kernel here is one for each shard, or lists of all of them that Python makes.
  const auto stands_for = [&](int launches) { step.back().launches = launches; };
  const auto types = optimizer_types(s_);
  if (d_.gradient_bytes == 2 && !types.in_adam) {
    launch(step, "gradients to fp32", {"cast.bf16_f32", {owned}});
    stands_for(shards);
  }
  const Int all_ranks = d_.pp * d_.t * (o.use_distributed_optimizer || d_.fsdp ? dense_.ranks : 1);
  const auto over_all_ranks = [&](const std::string& name) {
    if (all_ranks == 1) return;
    collective(step, name, "all_reduce", all_ranks, 4, way(s_.cluster.num_gpus / all_ranks, all_ranks), Stream::compute,
               Purpose::dp);
    step.back().joins_pipeline = d_.pp > 1;
  };
  if (o.fp16) {  // the loss scale is taken out again, infinities are found (optimizer.py:713-738)
    launch(step, "gradient unscaling", {"scale", {owned}});
    over_all_ranks("infinities all-reduce");
  }
  if (o.clip_grad > 0) {
    launch(step, "gradient norm", {"l2norm", {owned}});
    stands_for(shards);
    over_all_ranks("gradient norm all-reduce");
    for (const auto* optimizer : optimizers) {
      for (int i = 0; i < 6; ++i) launch(step, "clip coefficient", {"small", {}});
      launch(step, "gradient clipping", {"scale", {optimizer->elements()}});
    }
  }
  for (const auto* optimizer : optimizers) {
    if (o.optimizer_cpu_offload) {
      for (auto& kernel :
           host_optimizer_step(s_, host_share(optimizer->heaviest(), o.optimizer_offload_fraction), d_.gradient_bytes))
        step.push_back(std::move(kernel));
      step.insert(step.end(), gathers_.begin(), gathers_.end());
      continue;
    }
    // The family is fp32 Adam; other types and optimizers are taken as moving their bytes at its rate.
    const Int traffic = types.traffic(d_.gradient_bytes), fp32_adam = OptimizerTypes{}.traffic(4);
    if (const Int elements = d_.muon ? optimizer->adam_elements() : optimizer->elements(); elements > 0) {
      launch(step, d_.muon ? "adam" : o.optimizer, {"adam", {std::max<Int>(1, elements * traffic / fp32_adam)}});
      stands_for(optimizer->shards());
    }
    for (auto& kernel : orthogonalization(d_, optimizer->matrices(d_))) step.push_back(std::move(kernel));
    if (!types.in_adam) {
      launch(step, "parameters from main parameters", {"cast.f32_bf16", {optimizer->elements()}});
      stands_for(optimizer->shards());
    }
    add_shard_casts(*optimizer);
    // Every optimizer gathers all buffers of the model chunks (distrib_optimizer.py, step_with_ready_grads).
    step.insert(step.end(), gathers_.begin(), gathers_.end());
  }
  add_quantized_parameters();
}

/// What was gathered in bf16 is quantized into the parameters, and the gradients' buffer that held it is zeroed. With
/// overlap_param_gather the first microbatch does it; it takes the compute stream's time all the same.
void StateWriter::add_quantized_parameters() {
  Int bytes = 0;
  for (const auto& [rows, cols] : casts_of_chunks_) {
    launch(rank_.optimizer, "parameters quantized", {"quantize.mxfp8", {rows, cols}});
    bytes += d_.gradient_bytes * rows * cols;
  }
  if (bytes > 0) launch(rank_.optimizer, "gathered parameters zeroed", {"fill", {bytes}});
}

void StateWriter::run(const std::vector<ChunkShape>& shapes) {
  const auto& o = s_.settings;
  for (auto* optimizer : {&dense_, &experts_})
    optimizer->owned.resize(o.use_distributed_optimizer || d_.fsdp ? static_cast<std::size_t>(optimizer->ranks) : 1);
  std::set<std::pair<Int, Int>> weight_shapes;
  bool shares = false, head = false, moe = false, mtp = false;
  construction_.to_forward();
  for (const auto& shape : shapes) {
    construct_module(chunk_parameters(d_, s_, shape));
    if (d_.mla) add_latent_rotary(static_cast<Int>(shape.layers.size()) + shape.mtp_layers);
  }
  for (std::size_t c = 0; c < shapes.size(); ++c) {
    const auto parameters = chunk_parameters(d_, s_, shapes[c]);
    add_chunk(c, parameters);
    if (d_.fsdp) hold_gathered(parameters, static_cast<int>(shapes[c].layers.size()));
    for (const auto& p : parameters) {
      if (p.weight_in > 0 && !p.frozen) weight_shapes.emplace(p.weight_in, p.weight_out);
      if (!p.quantized || p.fp8) continue;
      hold(rank_.since_first_step, "quantized weights", d_.precision.weight_bytes(p.weight_out, p.weight_in, false));
      if (d_.precision.two_copies())
        hold(rank_.since_first_step, "quantized weights", d_.precision.weight_bytes(p.weight_out, p.weight_in, true));
    }
    // An output layer without a weight of its own multiplies by the embedding's.
    if (shapes[c].head && shapes[c].shares_embedding && !d_.frozen()) weight_shapes.emplace(d_.h, d_.vocab);
    shares |= shapes[c].shares_embedding;
    head |= shapes[c].head;
    for (const auto& layer : shapes[c].layers) moe |= layer.moe;
    mtp |= shapes[c].mtp_layers > 0;
    moe |= mtp && scenario::is_moe_layer(s_, s_.model.num_layers - 1);
  }
  for (const auto* optimizer : {&dense_, &experts_}) {
    if (optimizer == &experts_ && experts_.elements() == 0) continue;
    s_.settings.optimizer_cpu_offload ? add_host_state(*optimizer) : add_optimizer_state(*optimizer);
  }
  add_casts();
  // Their matrices are updated one after the other.
  if (d_.muon)
    hold(rank_.during_optimizer, "orthogonalization",
         std::max(orthogonalization_bytes(dense_.matrices(d_)), orthogonalization_bytes(experts_.matrices(d_))));
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
}

}  // namespace

void add_state(const Scenario& scenario, const Dimensions& dimensions, Int pp_rank,
               const std::vector<ChunkShape>& shapes, Owners& owners, Rank& rank) {
  StateWriter(scenario, dimensions, pp_rank, owners, rank).run(shapes);
}

}  // namespace pipewright::model
