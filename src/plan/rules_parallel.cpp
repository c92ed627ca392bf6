// Parallelism, layer split, pipeline schedule and batch.
#include <algorithm>

#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

std::int64_t pp(const Scenario& s) { return s.settings.pipeline_model_parallel_size; }
std::int64_t tp(const Scenario& s) { return s.settings.tensor_model_parallel_size; }
std::int64_t vpp(const Scenario& s) { return s.settings.virtual_pipeline_model_parallel_size.value_or(1); }
bool positive_sizes(const Scenario& s) {
  return tp(s) > 0 && pp(s) > 0 && vpp(s) > 0 && s.settings.context_parallel_size > 0 && s.cluster.num_gpus > 0 &&
         s.settings.expert_model_parallel_size > 0 && s.settings.micro_batch_size > 0;
}
bool uneven(const Scenario& s) {
  return s.settings.num_layers_in_first_pipeline_stage || s.settings.num_layers_in_last_pipeline_stage;
}
bool counted(const Scenario& s) {
  return s.settings.account_for_embedding_in_pipeline_split || s.settings.account_for_loss_in_pipeline_split;
}
bool layout(const Scenario& s) { return s.settings.pipeline_model_parallel_layout.has_value(); }
/// Layers that an even split distributes: embedding and loss count where they are accounted for.
std::int64_t split_layers(const Scenario& s) {
  return s.model.num_layers + (s.settings.account_for_embedding_in_pipeline_split ? 1 : 0) +
         (s.settings.account_for_loss_in_pipeline_split ? 1 : 0);
}
/// Pipes of a hybrid's pattern are asked for no number of layers (hybrid_layer_allocation.py, select_pipeline_segment).
bool even(const Scenario& s) {
  return positive_sizes(s) && !uneven(s) && !layout(s) && scenario::hybrid_segments(s).size() <= 1;
}
bool world_splits(const Scenario& s) {
  return positive_sizes(s) && s.cluster.num_gpus % scenario::model_parallel_size(s) == 0;
}
bool batch_splits(const Scenario& s) {
  return world_splits(s) &&
         s.settings.global_batch_size % (s.settings.micro_batch_size * scenario::data_parallel_size(s)) == 0;
}
/// The interleaved schedule with a single chunk a rank.
bool one_chunk(const Scenario& s) { return scenario::interleaved(s) && scenario::num_chunks(s) == 1; }
constexpr const char* more_than_one_chunk = "set virtual_pipeline_model_parallel_size: none (1F1B), or at least 2";
/// Layers left for the middle stages and how many middle stages there are.
std::pair<std::int64_t, std::int64_t> middle(const Scenario& s) {
  std::int64_t layers = s.model.num_layers, stages = pp(s);
  if (const auto first = s.settings.num_layers_in_first_pipeline_stage) layers -= *first, --stages;
  if (const auto last = s.settings.num_layers_in_last_pipeline_stage) layers -= *last, --stages;
  return {layers, stages};
}
std::int64_t layout_stages(const Scenario& s);

/// Stages in a layout string, counting what `(..)*n` repeats (PipelineParallelLayerLayout.get_num_stages_from_str).
std::int64_t layout_stages(const Scenario& s) {
  const std::string& text = *s.settings.pipeline_model_parallel_layout;
  std::int64_t bars = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '|') ++bars;
    if (text[at] != '(') continue;
    const auto close = text.find(')', at);
    if (close == std::string::npos) return 0;
    std::int64_t inside = 0;
    for (auto i = at; i < close; ++i) inside += text[i] == '|';
    std::int64_t times = 1;
    std::size_t digit = close + 2;
    if (close + 1 < text.size() && text[close + 1] == '*')
      for (times = 0; digit < text.size() && text[digit] >= '0' && text[digit] <= '9' && times < 100000; ++digit)
        times = times * 10 + (text[digit] - '0');
    bars += inside * times;
    at = close;
  }
  return bars + 1;
}

}  // namespace

std::vector<Rule> parallel_rules() {
  using enum Severity;
  using enum Speaker;
  using enum Version;
  return {
      {"parallel.world",
       violation,
       core,
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "num_gpus"},
       everywhere,
       [](const Scenario& s) { return positive_sizes(s) && !world_splits(s); },
       "world_size ({num_gpus}) is not divisible by {$model_parallel_size}",
       "choose sizes whose product divides num_gpus"},
      {"parallel.expert-world",
       violation,
       core,
       {"expert_model_parallel_size", "expert_tensor_parallel_size", "pipeline_model_parallel_size", "num_gpus"},
       everywhere,
       [](const Scenario& s) {
         return positive_sizes(s) && s.cluster.num_gpus % (scenario::expert_tensor_parallel_size(s) *
                                                           s.settings.expert_model_parallel_size * pp(s)) !=
                                         0;
       },
       "world_size ({num_gpus}) is not divisible by expert_tensor_model_pipeline_parallel size "
       "({$expert_parallel_size})",
       "choose expert_model_parallel_size and expert_tensor_parallel_size whose product with the pipeline divides "
       "num_gpus"},
      {"parallel.heads",
       violation,
       core,
       {"num_attention_heads", "tensor_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return tp(s) > 0 && s.model.num_attention_heads % tp(s) != 0; },
       "num_attention_heads ({num_attention_heads}) must be a multiple of tensor_model_parallel_size "
       "({tensor_model_parallel_size}).",
       "choose a tensor_model_parallel_size that divides num_attention_heads"},
      {"parallel.query-groups",
       violation,
       core,
       {"num_query_groups", "tensor_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         const auto groups = scenario::num_query_groups(s);
         return tp(s) > 0 && groups > 0 && groups % tp(s) != 0 && tp(s) % groups != 0;
       },
       "num_query_groups ({$num_query_groups}) must be a multiple or divisor of tensor_model_parallel_size "
       "({tensor_model_parallel_size}).",
       "choose a tensor_model_parallel_size that divides num_query_groups"},
      {"parallel.sequence-needs-tensor",
       violation,
       core,
       {"sequence_parallel", "tensor_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.sequence_parallel && tp(s) <= 1; },
       "Cannot use sequence parallelism without tensor parallelism",
       "set sequence_parallel: false (the argument parser and Bridge do so silently)"},
      {"parallel.experts-with-tensor-need-sequence",
       violation,
       core,
       {"expert_model_parallel_size", "tensor_model_parallel_size", "sequence_parallel"},
       everywhere,
       [](const Scenario& s) { return moe_model(s) && tp(s) > 1 && !s.settings.sequence_parallel; },
       "During training, performance may degrade if MoE and tensor parallelism are enabled without also enabling "
       "sequence parallelism.",
       "set sequence_parallel: true"},
      {"parallel.expert-needs-moe",
       violation,
       core,
       {"expert_model_parallel_size", "num_moe_experts"},
       everywhere,
       [](const Scenario& s) { return s.settings.expert_model_parallel_size > 1 && !moe_model(s); },
       "num_moe_experts must be non None to use expert-parallel.",
       "set expert_model_parallel_size: 1"},
      {"parallel.experts-divide",
       violation,
       arguments,
       {"num_moe_experts", "expert_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return moe_model(s) && s.settings.expert_model_parallel_size > 0 &&
                *s.model.num_moe_experts % s.settings.expert_model_parallel_size != 0;
       },
       "Number of experts should be a multiple of expert model parallel_size.",
       "choose an expert_model_parallel_size that divides num_moe_experts"},
      {"parallel.context-sequence",
       violation,
       arguments,
       {"seq_length", "context_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.context_parallel_size > 1 &&
                s.model.seq_length % (2 * s.settings.context_parallel_size) != 0;
       },
       "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1.",
       "choose a context_parallel_size whose double divides seq_length"},
      {"parallel.hybrid-context-pipeline",
       violation,
       arguments,
       {"hybrid_context_parallel", "pipeline_model_parallel_size"},
       everywhere.except(pr_4268 | dev),
       [](const Scenario& s) { return s.settings.hybrid_context_parallel && pp(s) > 1; },
       "Hybrid context parallelism not supported with pipeline parallelism",
       "set hybrid_context_parallel: false"},
      {"parallel.context-comm-length",
       violation,
       core,
       {"cp_comm_type", "num_layers"},
       everywhere,
       [](const Scenario& s) {
         const auto count = static_cast<std::int64_t>(s.settings.cp_comm_type.size());
         return s.settings.context_parallel_size > 1 && count > 1 && count != s.model.num_layers;
       },
       "Length of cp_comm_type should equal to the total number of transformer layers ({num_layers})!",
       "give one value for all layers, or one a layer"},
      {"parallel.context-levels",
       violation,
       arguments,
       {"hierarchical_context_parallel_sizes", "context_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         const auto& sizes = s.settings.hierarchical_context_parallel_sizes;
         double product = 1;  // sizes may be any
         for (const auto size : sizes) product *= static_cast<double>(size);
         return !sizes.empty() && product != static_cast<double>(s.settings.context_parallel_size);
       },
       "assert args.context_parallel_size == prod(args.hierarchical_context_parallel_sizes)",
       "choose sizes whose product is context_parallel_size={context_parallel_size}"},
      {"parallel.context-levels-missing",
       violation,
       arguments,
       {"cp_comm_type", "hierarchical_context_parallel_sizes"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.hierarchical_context_parallel_sizes.empty() &&
                std::ranges::find(s.settings.cp_comm_type, "a2a+p2p") != s.settings.cp_comm_type.end();
       },
       "--hierarchical-context-parallel-sizes must be set when a2a+p2p is used in cp comm",
       "give the all-to-all's ranks and the ring's, or cp_comm_type: p2p or a2a"},

      // The split of the layers
      {"layers.pipeline",
       violation,
       core,
       {"num_layers", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return even(s) && !counted(s) && s.model.num_layers % pp(s) != 0; },
       "num_layers={num_layers} should be divisible by "
       "config.pipeline_model_parallel_size={pipeline_model_parallel_size}",
       "choose a pipeline size that divides num_layers, or give pipeline_model_parallel_layout"},
      {"layers.virtual",
       violation,
       core,
       {"num_layers", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return even(s) && split_layers(s) % pp(s) == 0 && !counted(s) && (split_layers(s) / pp(s)) % vpp(s) != 0;
       },
       "num_layers_per_pipeline_rank {$layers_per_rank} should be divisible by vp_size "
       "{virtual_pipeline_model_parallel_size}",
       "choose a virtual pipeline size that divides the layers of a rank"},
      {"layers.counted",
       violation,
       core,
       {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"},
       everywhere,
       [](const Scenario& s) {
         return even(s) && counted(s) && (split_layers(s) % pp(s) != 0 || (split_layers(s) / pp(s)) % vpp(s) != 0);
       },
       "num_layers: {$split_layers} after enable account_for_embedding_in_pipeline_split or "
       "account_for_loss_in_pipeline_split must be divisible by pipeline_model_parallel_size "
       "{pipeline_model_parallel_size} and by the virtual pipeline size",
       "num_layers + embedding + loss must be a multiple of PP x VPP"},
      {"layers.uneven-positive",
       violation,
       core,
       {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.num_layers_in_first_pipeline_stage.value_or(1) <= 0 ||
                s.settings.num_layers_in_last_pipeline_stage.value_or(1) <= 0;
       },
       "num_layers_in_first_pipeline_stage must be larger than 0 (so must num_layers_in_last_pipeline_stage)",
       "give at least one layer; for an empty stage use pipeline_model_parallel_layout"},
      {"layers.uneven-virtual",
       violation,
       core,
       {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
        "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return positive_sizes(s) && (s.settings.num_layers_in_first_pipeline_stage.value_or(0) % vpp(s) != 0 ||
                                      s.settings.num_layers_in_last_pipeline_stage.value_or(0) % vpp(s) != 0);
       },
       "number of layers at first stage and at last stage must be divisible by virtual pipeline parallel degree "
       "{virtual_pipeline_model_parallel_size}",
       "choose multiples of the virtual pipeline size"},
      {"layers.uneven-middle",
       violation,
       core,
       {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "num_layers"},
       everywhere,
       [](const Scenario& s) {
         if (!positive_sizes(s) || !uneven(s) || layout(s)) return false;
         const auto [layers, stages] = middle(s);
         if ((layers != 0) != (stages != 0) || layers < 0 || stages < 0) return true;
         return stages > 0 && (layers % stages != 0 || (layers / stages) % vpp(s) != 0);
       },
       "number of layers at middle stage: {$middle_layers} must be divisible by the middle pipeline model parallel "
       "size {$middle_stages}, and a stage's layers by the virtual pipeline size",
       "choose first and last stages that leave a multiple of PP x VPP"},
      {"layers.uneven-virtual-middle",
       violation,
       core,
       {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
        "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return positive_sizes(s) && uneven(s) && !layout(s) && middle(s).second == 0 &&
                s.settings.virtual_pipeline_model_parallel_size;
       },
       "ZeroDivisionError: integer division or modulo by zero: with a virtual pipeline the layers of a chunk are "
       "divided by the number of middle stages, and first and last stage are all there are",
       "leave one of num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage out, or say all in "
       "pipeline_model_parallel_layout"},
      {"layers.uneven-or-counted",
       violation,
       core,
       {"num_layers_in_first_pipeline_stage", "account_for_embedding_in_pipeline_split"},
       everywhere,
       [](const Scenario& s) { return uneven(s) && counted(s); },
       "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage cannot be set at the same time with "
       "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split",
       "keep one of the two"},
      {"layers.layout-alone",
       violation,
       core,
       {"pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage",
        "account_for_embedding_in_pipeline_split"},
       everywhere,
       [](const Scenario& s) { return layout(s) && (uneven(s) || counted(s)); },
       "pipeline_model_parallel_layout cannot be set with other pipeline layout arguments.",
       "say everything in pipeline_model_parallel_layout"},
      {"layers.layout-stages",
       violation,
       core,
       {"pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         if (!layout(s) || pp(s) <= 0) return false;
         const auto stages = layout_stages(s);
         const auto stated = s.settings.virtual_pipeline_model_parallel_size;
         return stages % pp(s) != 0 || (stated && *stated != stages / pp(s));
       },
       "virtual_pipeline_model_parallel_size conflicts with pipeline_model_parallel_layout, "
       "({virtual_pipeline_model_parallel_size}, {$layout_stages} stages)",
       "the stages of the layout must be PP x VPP"},

      // The pipeline schedule
      {"schedule.virtual-needs-pipeline",
       violation,
       core,
       {"virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) {
         return pp(s) <= 1 && (s.settings.virtual_pipeline_model_parallel_size || (layout(s) && layout_stages(s) > 1));
       },
       "pipeline-model-parallel size should be greater than 1 with interleaved schedule",
       "remove virtual_pipeline_model_parallel_size, or the layout of several stages"},
      {"schedule.virtual-without-overlap",
       violation,
       arguments,
       {"virtual_pipeline_model_parallel_size", "overlap_p2p_comm", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return scenario::interleaved(s) && !s.settings.overlap_p2p_comm && pp(s) == 2; },
       "When interleaved schedule is used and p2p communication overlap is disabled, pipeline-model-parallel size "
       "should be greater than 2 to avoid having multiple p2p sends and recvs between same 2 ranks per communication "
       "batch",
       "set overlap_p2p_comm: true"},
      {"schedule.overlap-or-batch",
       violation,
       core,
       {"overlap_p2p_comm", "batch_p2p_comm"},
       everywhere,
       [](const Scenario& s) {
         return scenario::interleaved(s) && s.settings.overlap_p2p_comm && scenario::batch_p2p_comm(s);
       },
       "Can not use both overlap_p2p_comm and batch_p2p_comm",
       "set batch_p2p_comm: false"},
      {"schedule.overlap-needs-virtual",
       violation,
       core,
       {"overlap_p2p_comm", "virtual_pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return pp(s) > 1 && !scenario::interleaved(s) && s.settings.overlap_p2p_comm; },
       "Non-interleaved pipeline parallelism does not support overlapping p2p communication",
       "set overlap_p2p_comm: false (the argument parser and Bridge do so silently), or a virtual pipeline"},
      {"schedule.one-chunk-overlap",
       violation,
       core,
       {"virtual_pipeline_model_parallel_size", "overlap_p2p_comm"},
       everywhere,
       // Expert-parallel overlap has one warm-up step more.
       [](const Scenario& s) {
         return one_chunk(s) && s.settings.overlap_p2p_comm && !s.settings.overlap_moe_expert_parallel_comm;
       },
       "NameError: cannot access free variable 'output_tensor' where it is not associated with a value in enclosing "
       "scope: with one chunk the last pipeline rank has no warm-up, and its first steady step frees the output before",
       more_than_one_chunk},
      {"schedule.one-chunk-aligned",
       violation,
       core,
       {"virtual_pipeline_model_parallel_size", "align_param_gather"},
       everywhere,
       [](const Scenario& s) {
         return one_chunk(s) && s.settings.overlap_param_gather && s.settings.align_param_gather;
       },
       "IndexError: list index out of range: the parameters of chunks 0 and 1 are gathered first, and there is one",
       more_than_one_chunk},
      {"schedule.flush-needs-overlap",
       violation,
       core,
       {"overlap_p2p_comm_warmup_flush", "overlap_p2p_comm"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.overlap_p2p_comm_warmup_flush &&
                (!s.settings.overlap_p2p_comm || scenario::batch_p2p_comm(s));
       },
       "Pipeline parallel communication overlapping in warmup and flush is only compatible with overlap_p2p_comm but "
       "not batch_p2p_comm.",
       "set overlap_p2p_comm: true, or overlap_p2p_comm_warmup_flush: false"},
      {"schedule.group-size",
       violation,
       core,
       {"microbatch_group_size_per_vp_stage", "pipeline_model_parallel_size", "global_batch_size"},
       everywhere,
       [](const Scenario& s) {
         if (!scenario::interleaved(s) || !batch_splits(s)) return false;
         return scenario::group_size(s) > scenario::num_microbatches(s) || scenario::group_size(s) < pp(s);
       },
       "The number of contiguous micro-batches in a virtual pipeline stage should range in "
       "[PP={pipeline_model_parallel_size} , M={$num_microbatches}]",
       "raise global_batch_size, or set microbatch_group_size_per_vp_stage within the range"},
      {"schedule.group-remainder",
       violation,
       core,
       {"microbatch_group_size_per_vp_stage", "pipeline_model_parallel_size", "global_batch_size"},
       everywhere,
       [](const Scenario& s) {
         if (!scenario::interleaved(s) || !batch_splits(s) || scenario::group_size(s) <= 0) return false;
         const auto rest = scenario::num_microbatches(s) % scenario::group_size(s);
         return rest > 0 && rest < pp(s);
       },
       "The remainder of M (the total micro-batches) divided by N (number of contiguous micro-batches in a virtual "
       "pipeline stage) should be 0, or larger than or equal to the pipeline-parallel size, but it is "
       "{$group_remainder}.",
       "make the microbatches a multiple of N, or choose another microbatch_group_size_per_vp_stage"},
      {"schedule.pipeline-dtype",
       violation,
       core,
       {"pipeline_model_parallel_size", "bf16"},
       everywhere,
       [](const Scenario& s) { return pp(s) > 1 && s.settings.bf16 && s.settings.fp16; },
       "When using pipeline parallelism, pipeline_dtype must be specified: bf16 and fp16 are both set",
       "set one of bf16 and fp16"},
      {"schedule.embedding-wgrad-pipeline",
       violation,
       core,
       {"defer_embedding_wgrad_compute", "pipeline_model_parallel_size"},
       everywhere,
       [](const Scenario& s) { return s.settings.defer_embedding_wgrad_compute && pp(s) == 1; },
       "Cannot defer embedding wgrad compute when pipeline model parallel is not used",
       "set defer_embedding_wgrad_compute: false"},
      {"schedule.embedding-wgrad-fusion",
       violation,
       core,
       {"defer_embedding_wgrad_compute", "gradient_accumulation_fusion"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.defer_embedding_wgrad_compute && !s.settings.gradient_accumulation_fusion;
       },
       "Cannot defer embedding wgrad compute when gradient accumulation fusion is not used",
       "set gradient_accumulation_fusion: true"},
      {"schedule.embedding-wgrad-limit",
       violation,
       core,
       {"defer_embedding_wgrad_compute", "wgrad_deferral_limit"},
       everywhere,
       [](const Scenario& s) {
         return s.settings.defer_embedding_wgrad_compute && s.settings.wgrad_deferral_limit < 0;
       },
       "Wgrad deferral limit should be greater than or equal to 0 when it is enabled!",
       "set wgrad_deferral_limit (0: defer all)"},
      {"batch.global",
       violation,
       core,
       {"global_batch_size", "micro_batch_size", "num_gpus"},
       everywhere,
       [](const Scenario& s) { return world_splits(s) && !batch_splits(s); },
       "global batch size ({global_batch_size}) is not divisible by micro batch size ({micro_batch_size}) times data "
       "parallel size ({$data_parallel_size})",
       "make global_batch_size a multiple of micro_batch_size x DP"},
  };
}

}  // namespace pipewright::plan
