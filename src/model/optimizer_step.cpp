#include <algorithm>

#include "ends.hpp"
#include "host_optimizer.hpp"
#include "muon.hpp"
#include "pipewright/scenario/derived.hpp"
#include "state_writer.hpp"

namespace pipewright::model {

void StateWriter::add_gradient_sync(Chunk& chunk, const Buffer& buffer, const ShardedOptimizer& optimizer) {
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
    const Int gathered = d_.precision.buffered_bytes(end - start, buffer.fp8);
    auto& gather = o.overlap_param_gather ? chunk.parameter_gather : gathers_;
    collective(gather, "parameter all-gather", "all_gather", ranks, gathered, optimizer.link,
               o.overlap_param_gather ? Stream::parameter : Stream::compute, Purpose::dp);
    chunk.parameter_gather_layers.resize(chunk.parameter_gather.size(), buffer.last_layers[bucket]);
  }
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

void StateWriter::add_finalize(bool shares_embedding) {
  if (d_.sp && replicated_elements_ > 0) {
    // Norm gradients of sequence-parallel ranks are summed (finalize_model_grads.py,
    // _allreduce_non_tensor_model_parallel_grads).
    launch(rank_.finalize, "norm gradients gathered", {"small", {}});
    collective(rank_.finalize, "norm gradients all-reduce", "all_reduce", d_.t,
               replicated_elements_ * d_.gradient_bytes, d_.tp_link, Stream::compute, Purpose::tp);
    launch(rank_.finalize, "norm gradients scattered", {"small", {}});
  }
  if (d_.fsdp) add_hooks(rank_.finalize, "fsdp.gradients");
  const auto ranks = embedding_ranks(shares_embedding);
  if (!d_.frozen() && ranks.size() > 1 && ranks.contains(pp_rank_)) {
    collective(rank_.finalize, "embedding gradients all-reduce", "all_reduce", static_cast<Int>(ranks.size()),
               d_.vocab * d_.h * d_.gradient_bytes,
               way_of(s_, s_.cluster.num_gpus / static_cast<Int>(ranks.size()), static_cast<Int>(ranks.size())),
               Stream::compute, Purpose::dp);
    rank_.finalize.back().joins_pipeline = true;
  }
  if (s_.settings.calculate_per_token_loss) add_token_scaling();
}

/// finalize_model_grads.py: the last stage's number of tokens goes to all stages and is summed over copies; all
/// gradients are divided by it, each buffer whole.
void StateWriter::add_token_scaling() {
  auto& end = rank_.finalize;
  if (d_.pp > 1)  // a broadcast of some bytes; that all stages wait for it is in the norm's all-reduce behind
    collective(end, "token count to all stages", "all_reduce", d_.pp, 4, way_of(s_, s_.cluster.num_gpus / d_.pp, d_.pp),
               Stream::compute, Purpose::dp);
  if (dense_.ranks > 1)
    collective(end, "token count all-reduce", "all_reduce", dense_.ranks, 4, dense_.link, Stream::compute, Purpose::dp);
  launch(end, "1 / tokens", {"small", {}});
  end.back().launches = 2;  // clamp, division
  for (const Int elements : scaled_) launch(end, "gradient scaling", {"scale", {elements * d_.gradient_bytes / 4}});
}

std::vector<Int> StateWriter::of_optimizer(const std::map<std::pair<bool, bool>, std::vector<Int>>& lists,
                                           const ShardedOptimizer& optimizer) const {
  std::vector<Int> all;
  for (const auto& [which, sizes] : lists)
    if (which.first == (&optimizer == &experts_)) all.insert(all.end(), sizes.begin(), sizes.end());
  return all;
}

/// FP8 parameters from their main parameters (TE tensor/utils.py, cast_master_weights_to_fp8): every shard that the
/// rank owns is cast as one row; where the tensor cores take one layout only, with a transpose that nobody reads
/// (csrc/quantizer.cpp, convert_and_update_tensor: need_transpose).
void StateWriter::add_shard_casts(const ShardedOptimizer& optimizer) {
  if (d_.precision.recipe == Recipe::nvfp4) return add_casts_by_block(optimizer);
  if (!d_.precision.per_tensor()) return;
  const auto shards = of_optimizer(casts_, optimizer);
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
  // Without the transpose fp32 is read and FP8 written, 5 B an element; the family moves 3 B.
  const auto cast = [&](Int n) {
    return d_.precision.two_copies() ? profile::Key{"cast_transpose.fp8.row", {n}}
                                     : profile::Key{"cast.fp8", {5 * n / 3}};
  };
  for (const Int n : shards) launch(step, "parameter cast", cast(n));
  if (d_.precision.recipe == Recipe::delayed) amaxes_reduced();
}

/// The maximum of each, then its cast, on Hopper with its transpose. The families read bf16.
void StateWriter::quantize_dealt(std::vector<Kernel>& list, const std::string& name, Int elements, Int bytes,
                                 int count) {
  launch(list, name + "' amax", {"amax", {elements * bytes / 2}});
  list.back().launches = count;
  launch(list, name + " quantized",
         d_.precision.two_copies() ? profile::Key{"cast_transpose.fp8.row", {elements * (bytes + 2) / 4}}
                                   : profile::Key{"cast.fp8", {elements * (bytes + 1) / 3}});
  list.back().launches = count;
}

/// NVFP4 parameters (TE pytorch/tensor/utils.py, _cast_master_weights_to_nvfp4_2d; 2.14 on), each kernel one for all
/// parameters of an optimizer: maxima of what the rank owns, which all ranks share for the blocks of all parameters;
/// their scales, written for every row; the data of what the rank owns. Priced by the bytes that they move.
void StateWriter::add_casts_by_block(const ShardedOptimizer& optimizer) {
  const auto parameters = of_optimizer(kept_, optimizer);
  if (parameters.empty()) return;
  const Int owned = sum_of(of_optimizer(casts_, optimizer)), elements = sum_of(parameters);
  auto& step = rank_.optimizer;
  launch(step, "parameter amax", {"amax", {2 * owned}});  // fp32, the family reads 2 B
  if (optimizer.ranks > 1)
    for (const Int bytes : {4 * elements / nvfp4_block, 4 * static_cast<Int>(parameters.size())})
      collective(step, "parameters' amax all-reduce", "all_reduce", optimizer.ranks, bytes, optimizer.link,
                 Stream::compute, Purpose::dp);
  launch(step, "parameters' scales", {"copy.d2d", {elements / 16}});
  step.back().launches = 2;
  launch(step, "parameter cast", {"cast.fp8", {3 * owned / 2}});  // 4.5 B an element, the family 3
}

void StateWriter::add_optimizer_step() {
  const auto& o = s_.settings;
  auto& step = rank_.optimizer;
  std::vector<const ShardedOptimizer*> optimizers;
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
  const bool owns = owned > 0;  // else a stage without adapters: it joins in what all ranks do
  if (owns && d_.gradient_bytes == 2 && !types.in_adam) {
    launch(step, "gradients to fp32", {"cast.bf16_f32", {owned}});
    stands_for(shards);
  }
  const Int all_ranks = d_.pp * d_.t * (o.use_distributed_optimizer || d_.fsdp || d_.muon_dealt ? dense_.ranks : 1);
  const auto over_all_ranks = [&](const std::string& name) {
    if (all_ranks == 1) return;
    collective(step, name, "all_reduce", all_ranks, 4, way_of(s_, s_.cluster.num_gpus / all_ranks, all_ranks),
               Stream::compute, Purpose::dp);
    step.back().joins_pipeline = d_.pp > 1;
  };
  if (scenario::scales_loss(s_)) {  // the loss scale is taken out again, infinities are found (optimizer.py:713-738)
    if (owns) launch(step, "gradient unscaling", {"scale", {owned}});
    over_all_ranks("infinities all-reduce");
  }
  if (o.clip_grad > 0) {
    if (owns) {
      launch(step, "gradient norm", {"l2norm", {owned}});
      stands_for(shards);
    }
    over_all_ranks("gradient norm all-reduce");
    for (const auto* optimizer : optimizers) {
      for (int i = 0; i < 6; ++i) launch(step, "clip coefficient", {"small", {}});
      launch(step, "gradient clipping", {"scale", {optimizer->elements()}});
    }
  }
  if (o.log_num_zeros_in_grad) {
    // Compared with zero, made int64, summed; "scale" reads and writes 4 B an element.
    const Int gradient = types.in_adam ? d_.gradient_bytes : 4;
    for (const Int bytes : {gradient + 1, Int{9}, Int{8}}) {
      if (!owns) break;
      launch(step, "zeros of gradients", {"scale", {std::max<Int>(1, owned * bytes / 8)}});
      stands_for(shards);
    }
    over_all_ranks("zeros all-reduce");
  }
  if (d_.fsdp) add_hooks(step, "fsdp.step");  // some of it after Adam: nothing runs beside it there either
  for (const auto* optimizer : optimizers) {
    if (o.optimizer_cpu_offload) {
      for (auto& kernel :
           host_optimizer_step(s_, host_share(optimizer->heaviest(), o.optimizer_offload_fraction), d_.gradient_bytes))
        step.push_back(std::move(kernel));
      step.insert(step.end(), gathers_.begin(), gathers_.end());
      continue;
    }
    // The family is fp32 Adam; other optimizers are taken as moving their bytes at its rate.
    const Int traffic = types.equivalent_traffic(d_.gradient_bytes), fp32_adam = OptimizerTypes{}.traffic(4);
    const auto converted = [&](const char* name, const char* family) {
      if (types.widened() == 0) return;
      launch(step, name, {family, {types.widened() * optimizer->elements()}});
      stands_for(static_cast<int>(types.widened()) * optimizer->shards());
    };
    converted("optimizer states to fp32", "cast.bf16_f32");
    if (const Int elements = d_.muon ? optimizer->adam_elements() : optimizer->elements(); elements > 0) {
      launch(step, d_.muon ? "adam" : o.optimizer, {"adam", {std::max<Int>(1, elements * traffic / fp32_adam)}});
      stands_for(optimizer->shards());
    }
    converted("optimizer states from fp32", "cast.f32_bf16");
    for (auto& kernel : orthogonalization(d_, optimizer->matrices(d_))) step.push_back(std::move(kernel));
    // Dealt parameters in FP8 are quantized from fp32 (optimizer.py, _copy_main_params_to_model_params), others cast.
    const Int in_fp8 = d_.muon_dealt ? optimizer->fp8_elements() : 0;
    if (const Int cast = optimizer->elements() - in_fp8; !types.in_adam && (cast > 0 || in_fp8 == 0)) {
      launch(step, "parameters from main parameters", {"cast.f32_bf16", {cast}});
      stands_for(optimizer->shards());
    }
    if (in_fp8 > 0)
      quantize_dealt(step, "parameters", in_fp8, 4, optimizer->shards());
    else
      add_shard_casts(*optimizer);
    // Every optimizer gathers all buffers of the model chunks (distrib_optimizer.py, step_with_ready_grads).
    if (!d_.muon_dealt) step.insert(step.end(), gathers_.begin(), gathers_.end());
  }
  if (d_.muon_dealt) step.insert(step.end(), gathers_.begin(), gathers_.end());
  add_quantized_parameters();
  if (o.log_params_norm) {  // of the main parameters (training/utils/common_utils.py, calc_params_l2_norm)
    if (owns) launch(step, "parameter norm", {"l2norm", {owned}});
    over_all_ranks("parameter norm all-reduce");
  }
  add_zeroed_gradients();
}

/// Of Megatron-FSDP, which handles every parameter alone around the optimizer step.
void StateWriter::add_hooks(std::vector<Kernel>& list, const char* family) {
  list.push_back(host_work("FSDP hooks", family, parameters_));
}

/// What was gathered in bf16 is quantized into the parameters, and the gradients' buffer that held it is zeroed. With
/// overlap_param_gather the first microbatch does it; it takes the compute stream's time all the same.
void StateWriter::add_quantized_parameters() {
  Int bytes = 0;
  for (const auto& [rows, cols] : casts_of_chunks_) {
    launch(rank_.optimizer, "parameters quantized", {"quantize.mxfp8", {rows, cols}});
    bytes += 2 * rows * cols;  // of an fp32 gradient's buffer the first half (param_data)
  }
  if (bytes > 0) launch(rank_.optimizer, "gathered parameters zeroed", {"fill", {bytes}});
}

/// What every step begins with (training.py, train_step: zero_grad_buffer; of Megatron-FSDP the shards' buffer) stands
/// at its end here: between two steps, outside of the forward-backward function that Megatron times.
void StateWriter::add_zeroed_gradients() {
  if (gradients_ > 0) launch(rank_.optimizer, "gradients zeroed", {"fill", {gradients_}});
}

}  // namespace pipewright::model
