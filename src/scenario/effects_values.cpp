#include "effects_values.hpp"

#include <algorithm>
#include <cctype>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/overlap_table.hpp"

namespace pipewright::scenario {
namespace {

bool is_stated(const std::string& value) { return !is_neutral("", value); }
bool not_auto(const std::string& value) { return is_stated(value) && value != "auto"; }
bool is_one(const std::string& value) { return value == "1"; }
bool at_most(const std::string& value, long most) {
  char* end = nullptr;
  const long number = std::strtol(value.c_str(), &end, 10);
  return end != value.c_str() && number > 0 && number <= most;
}
bool not_few(const std::string& value) { return value != "0" && !at_most(value, 32); }
std::string in_capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}
/// "backend: cudaMallocAsync" among the allocator's options.
bool other_allocator(const std::string& options) {
  std::string value = options;
  std::erase(value, ' ');
  return value.find("backend:cudaMallocAsync") != value.npos;
}

/// Its own choice is the parameters' type, bf16 wherever Megatron-FSDP is modelled.
bool not_of_parameters(const std::string& value) {
  return not_auto(value) && !value.ends_with("bf16") && !value.ends_with("bfloat16");
}

bool has_fsdp(const Scenario& s) { return s.settings.use_megatron_fsdp; }
bool links_peers(const Scenario& s) { return s.cluster.link != "shared host memory"; }
bool has_nodes(const Scenario& s) { return s.cluster.num_gpus > s.cluster.gpus_per_node; }

constexpr const char
    *fsdp_types = "Megatron-FSDP's parameters or gradients in other types than its own choice",
    *fsdp_buffers = "Megatron-FSDP's buffers taken otherwise than by its own choice",
    *sample_masks =
        "a mask of all pairs of positions, built anew for every sample "
        "(create_attention_mask_in_dataloader: false builds none)",
    *few_left = "products on less than half of a GPU (0 to 32 is modelled)",
    *few_channels = "collectives on fewer than 16 channels, too few to fill NVLink",
    *host_paths = "transfers between the GPUs of a node through host memory (cluster.link: shared host memory says so)",
    *sockets = "transfers between nodes through the host's sockets",
    *other_memory = "CUDA's own pool in place of PyTorch's allocator";

// Megatron-FSDP: megatron/core/distributed/fsdp; masks: megatron/core/datasets/gpt_dataset.py, which keeps one mask for
// all samples only where none of the three is set.
constexpr RefusedValue value_rows[] = {
    {"megatron_fsdp_main_params_dtype", fsdp_types,
     [](const auto& value) { return is_stated(value) && value != "fp32" && value != "float32"; }, has_fsdp},
    {"megatron_fsdp_main_grads_dtype", fsdp_types, not_of_parameters, has_fsdp},
    {"megatron_fsdp_grad_comm_dtype", fsdp_types, not_of_parameters, has_fsdp},
    {"megatron_fsdp_enable_fine_grained_param_gather", fsdp_buffers, is_stated, has_fsdp},
    {"megatron_fsdp_max_pool_double_buffer", fsdp_buffers, is_stated, has_fsdp},
    {"fsdp_db_use_persist_buf_on_alloc_fail", fsdp_buffers, is_stated, has_fsdp},
    {"enable_full_sharding_in_hsdp", "Megatron-FSDP's states shared by the outer data-parallel groups, too", is_stated,
     has_fsdp},
    {"create_all_gather_group", "Megatron-FSDP's gathers on a communicator of their own", is_stated, has_fsdp},
    {"eod_mask_loss", sample_masks, is_stated, creates_attention_mask},
    {"reset_attention_mask", sample_masks, is_stated, creates_attention_mask},
    {"reset_position_ids", sample_masks, is_stated, creates_attention_mask},
    {"tp_comm_overlap_cfg",
     "a table of userbuffers that is not written in place, or products that overlap by another method than Transformer "
     "Engine's own choice",
     [](const auto& value) { return is_stated(value) && !overlap_products(value); }},
    {"num_workers", "batches that the training process prepares itself, within the step",
     [](const auto& value) { return value == "0"; }},
    {"NCCL_P2P_DISABLE", host_paths, is_one, links_peers},
    {"NCCL_P2P_LEVEL", host_paths, [](const auto& value) { return value == "0" || in_capitals(value) == "LOC"; },
     links_peers},
    {"NCCL_MAX_NCHANNELS", few_channels, [](const auto& value) { return at_most(value, 15); }},
    {"NCCL_MAX_CTAS", few_channels, [](const auto& value) { return at_most(value, 15); }},
    {"NVTE_EXT_MARGIN_SM", few_left, not_few},
    {"CUDNNFE_CLUSTER_OVERLAP_MARGIN", few_left, not_few},
    {"NCCL_PROTO", "large messages by the protocol of small ones (LL), half of whose bytes are flags",
     [](const auto& value) { return in_capitals(value) == "LL"; }},
    {"NCCL_NET", sockets, [](const auto& value) { return in_capitals(value) == "SOCKET"; }, has_nodes},
    {"NCCL_IB_DISABLE", sockets, is_one, has_nodes},
    {"TORCH_DISTRIBUTED_DEBUG", "a check of every collective over all ranks before it starts",
     [](const auto& value) { return in_capitals(value) == "DETAIL"; }},
    {"NVTE_ALLOW_NONDETERMINISTIC_ALGO",
     "deterministic attention other than was measured: heads 128 wide or latent ones of 192 and 128, on Blackwell "
     "from cuDNN 9.18 on, without windows, sinks, caps, dropout, packing and context parallelism",
     [](const auto& value) { return value == "0"; },
     [](const Scenario& s) { return asks_for_determinism(s) && !attends_deterministically(s); }},
    {"MAMBA_DETERMINISTIC", "deterministic kernels of Mamba layers",
     [](const auto& value) { return value.starts_with('1'); }, has_mamba_layer},
    {"PYTORCH_CUDA_ALLOC_CONF", other_memory, other_allocator},
    {"PYTORCH_ALLOC_CONF", other_memory, other_allocator},
};

// gc.collect() behind every so many steps: megatron/training/training.py of core_r0.19.0:3222, Bridge's
// training/train.py of 067f987df:1109. Timed beside an H100, Python 3.12 with PyTorch and transformers loaded: 222 ms
// for 471 thousand objects, 284 ms for 1071 thousand.
constexpr NotedValue noted_rows[] = {
    {"manual_gc_interval", [](const std::string& value) { return at_most(value, 20); },
     [](const std::string& value) {
       return "with manual_gc, Python's garbage is collected once in " + value +
              " steps (manual_gc_interval): a pause of the host, 0.2 to 0.3 s where it was timed, that is in the mean "
              "of many "
              "steps and not in this one";
     }},
};

constexpr const char
    *sees = "a vision tower (--ignore model_provider predicts the language model without it)",
    *sees_otherwise = "a vision tower, and layers of the class' own", *sees_and_hears = "towers of vision and of sound",
    *diffuses = "a diffusion transformer, no language model",
    *unmasks = "a language model that diffuses: attention in both directions",
    *gemma4 = "Gemma 4's layers: heads that differ between windowed and global layers, keys that layers share",
    *own_layers = "layers of the class' own, which differ one by one",
    *halves = "adapters of parts of a fused linear layer";

// Classes of Megatron Bridge's models (src/megatron/bridge/models and diffusion/models), and of its peft.
constexpr NamedValue named_rows[] = {
    {"model_provider", "Qwen3VL", sees},
    {"model_provider", "Qwen35VL", sees},
    {"model_provider", "Qwen35TokenClassification", "a head that classifies tokens, and a vision tower"},
    {"model_provider", "Qwen25VL", sees},
    {"model_provider", "Gemma3VL", sees},
    {"model_provider", "GLM45V", sees},
    {"model_provider", "KimiK25VL", sees},
    {"model_provider", "NemotronVL", sees},
    {"model_provider", "Ministral3", sees_otherwise},
    {"model_provider", "Ernie45VL", sees_otherwise},
    {"model_provider", "Exaone45", sees_otherwise},
    {"model_provider", "MiniMaxM3", "sparse attention with an indexer (and, with VL in its name, a vision tower)"},
    {"model_provider", "Step37", sees_otherwise},
    {"model_provider", "NemotronOmni", sees_and_hears},
    {"model_provider", "Qwen25Omni", sees_and_hears},
    {"model_provider", "Qwen3Omni", sees_and_hears},
    {"model_provider", "Qwen2Audio", "a tower of sound"},
    {"model_provider", "Qwen3ASR", "a tower of sound"},
    {"model_provider", "MegatronMIMO", "several modules, each with a parallelism of its own"},
    {"model_provider", "LlavaMegatronMIMO", "several modules, each with a parallelism of its own"},
    {"model_provider", "Wan", diffuses},
    {"model_provider", "Flux", diffuses},
    {"model_provider", "LLaDA", unmasks},
    {"model_provider", "NemotronLabsDiffusion", unmasks},
    {"model_provider", "Gemma4", gemma4},
    {"model_provider", "FalconH1", "state-space layers beside attention"},
    {"model_provider", "KimiK3", "Kimi delta attention"},
    {"model_provider", "MiMoV2Flash", own_layers},
    {"model_provider", "ExaoneMoe", own_layers},
    {"model_provider", "Step35", own_layers},
    {"model_provider", "LlamaNemotronHeterogeneous", "layers that differ by a file"},
    {"model_provider", "T5", "encoder-decoder attention"},
    {"model_provider", "Distillation", "a teacher beside the model"},
    {"peft", "DoRA", "DoRA: norms of the adapted weights in every step"},
    {"peft", "CanonicalLoRA", "CanonicalLoRA: adapters of queries, keys, values, gate and up apart"},
    {"peft", "VLMLoRA", "adapters of a model with a tower"},
    {"peft", "MultiLoRA", "several adapters of one layer"},
    {"peft", "linear_", halves},
    {"peft", "exclude_modules", "adapters of all linear layers but some, the output layer among them"},
    {"peft", "canonical_mapping", halves},
    {"peft", "lora_dtype", "adapters in another type than the model's"},
    {"peft", "normalize_moe_lora", "experts' adapters of a rank divided by the experts of a token"},
    {"peft", "share_expert_adapters", "an adapter of its own for every expert"},
    {"peft", "experts_shared_outer_loras", "adapters of experts that share one of their halves"},
    {"peft", "a2a_experimental", "adapters that exchange rows by all-to-all"},
    {"peft", "sequence_parallel_input_regather", "inputs of adapters that are gathered again in backward"},
    {"peft", "*", "patterns of modules other than one that takes a module in every layer (*.linear_qkv)"},
};

}  // namespace

std::span<const RefusedValue> refused_values() { return value_rows; }
std::span<const NamedValue> named_values() { return named_rows; }
std::span<const NotedValue> noted_values() { return noted_rows; }

}  // namespace pipewright::scenario
