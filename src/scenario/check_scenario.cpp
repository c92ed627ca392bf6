// What Megatron Core itself cannot run, found before anything is built from a scenario. Messages are Megatron's own
// where it has one (core_r0.19.0: parallel_state.py, model_parallel_config.py, transformer_config.py,
// num_microbatches_calculator.py, pipeline_parallel/schedules.py); what merely its argument parser refuses passes.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "field_rows.hpp"
#include "layout.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/scenario/quant_recipe.hpp"

namespace pipewright::scenario {
namespace {

class Checker {
 public:
  explicit Checker(const Scenario& scenario) : s_(scenario), m_(scenario.model), c_(scenario.settings) {}

  void all() const {
    required();
    sizes();
    machine();
    parallelism();
    batch();
    shapes();
    check_split(s_);
    pipeline();
    precision();
    linear_attention();
    hybrid();
    quantized_widths();
    experts();
    packing(s_);
  }

 private:
  void require(bool right, const std::string& key, const std::string& message, Strings allowed = {}) const {
    if (!right) throw UsageError(position(s_, key), key, message, std::move(allowed));
  }

  void required() const {
    Strings absent;
    for (const auto& [section, name] : required_fields)
      if (text(*find(section, name), s_) == "0") absent.push_back(fmt::format("{}.{}", section, name));
    if (absent.empty()) return;
    throw UsageError(
        position(s_, absent.front()), fmt::format("{}", fmt::join(absent, ", ")),
        fmt::format("missing; state {} in the scenario or with --set", absent.size() == 1 ? "it" : "them"));
  }

  /// Sizes that no machine has would leave 64 bits somewhere in bytes, operations or nanoseconds. Rough upper estimates
  /// of the whole model, as floating-point numbers, stay some powers of two below that.
  void sizes() const {
    const auto at_most = [this](double found, double limit, const std::string& key, const char* what) {
      require(found <= limit, key, fmt::format("too large: {:.1e} {}, the limit is {:.0e}", found, what, limit));
    };
    const auto number = [](auto value) { return static_cast<double>(value); };
    const double h = number(m_.hidden_size), heads = number(m_.num_attention_heads), s = number(m_.seq_length);
    const double layers = number(m_.num_layers + m_.mtp_num_layers.value_or(0)), vocabulary = number(m_.vocab_size);
    const double head = m_.multi_latent_attention
                            ? number(m_.qk_head_dim) + number(m_.qk_pos_emb_head_dim) + number(m_.v_head_dim)
                            : number(kv_channels(s_));
    const double ranks = number(m_.q_lora_rank.value_or(0)) + number(m_.kv_lora_rank);
    const double attention = heads * head + number(num_query_groups(s_)) * head;
    const double experts = number(m_.num_moe_experts.value_or(0)),
                 expert = experts > 0 ? number(moe_ffn_hidden_size(s_)) : 0;
    const double shared = number(m_.moe_shared_expert_intermediate_size.value_or(0)), ffn = number(ffn_hidden_size(s_));
    const double chosen = experts > 0 ? number(m_.moe_router_topk) : 0;

    // Weights of a layer: attention's four matrices, three of each MLP; all of them in one buffer of 4 B gradients.
    const double weights = layers * (2 * h * attention + (m_.multi_latent_attention ? ranks * (h + heads * head) : 0) +
                                     3 * h * (ffn + experts * expert + shared) + experts * h) +
                           2 * vocabulary * h;
    at_most(weights, 7e13, "model.hidden_size", "parameters");  // x 4 B: 2^48
    // What a layer keeps for a token: twenty tensors of hidden size and three of each width are more than all.
    const double width = 20 * (h + attention + ranks) + 3 * (ffn + shared + chosen * (h + expert));
    const double tokens = s * number(c_.micro_batch_size);
    at_most(4 * tokens * width, 1e14, "model.seq_length", "bytes of a layer's activations in one microbatch");
    at_most(4 * tokens * vocabulary, 1e14, "model.vocab_size", "bytes of logits");
    const bool scores = c_.attention_backend == "unfused" || c_.attention_backend == "local";
    at_most(6 * tokens * s * heads, scores ? 1e14 : 1e17, "model.seq_length", "bytes of attention scores");
    at_most(4 * layers * (tokens * width + 8 * weights / layers), 2e17, "model.num_layers", "bytes in all layers");
    const double batch = s * number(c_.global_batch_size);
    at_most(6 * batch * (weights + layers * 2 * s * heads * head), 1e24, "settings.global_batch_size",
            "floating-point operations a step");
  }

  void parallelism() const {
    const Int gpus = s_.cluster.num_gpus, t = c_.tensor_model_parallel_size, p = c_.pipeline_model_parallel_size;
    const Int cp = c_.context_parallel_size, ep = c_.expert_model_parallel_size, etp = expert_tensor_parallel_size(s_);
    // Factors are at most 1e7 each, so products of two fit; three are compared by division.
    const Int group = t * p <= gpus ? t * p * cp : gpus + 1;
    require(group <= gpus && gpus % group == 0, "cluster.num_gpus",
            fmt::format("world_size ({}) is not divisible by tensor {} x pipeline {} x context {} parallel size", gpus,
                        t, p, cp));
    const Int expert_group = etp * ep <= gpus ? etp * ep * p : gpus + 1;
    require(!m_.num_moe_experts || (expert_group <= gpus && gpus % expert_group == 0),
            "settings.expert_model_parallel_size",
            fmt::format("world_size ({}) is not divisible by expert_tensor_model_pipeline_parallel size ({} x {} x {})",
                        gpus, etp, ep, p));
    require(!c_.sequence_parallel || t > 1, "settings.sequence_parallel",
            "Cannot use sequence parallelism without tensor parallelism");
    require(!c_.virtual_pipeline_model_parallel_size || p > 1, "settings.virtual_pipeline_model_parallel_size",
            "pipeline-model-parallel size should be greater than 1 with interleaved schedule");
    quant_recipe(s_);  // throws
    const Int shard = c_.num_distributed_optimizer_instances, dp = data_parallel_size(s_) * cp;
    require(
        dp % shard == 0, "settings.num_distributed_optimizer_instances",
        fmt::format("Data parallel size should be divisible by partial DistOpt shard factor ({} by {})", dp, shard));
  }

  void machine() const {
    const auto& network = s_.cluster.network;
    require(
        network.oversubscription.size() <= network.levels.size(), "cluster.network.oversubscription",
        fmt::format("has {} values for {} levels of switches", network.oversubscription.size(), network.levels.size()));
    for (std::size_t i = 0; i < network.levels.size(); ++i) {
      const Int below = i == 0 ? nvlink_domain(s_) : network.levels[i - 1];
      require(network.levels[i] % below == 0, "cluster.network.levels",
              fmt::format("{} GPUs below a switch are not a multiple of the {} of the level below", network.levels[i],
                          below));
    }
  }

  void batch() const {
    const Int per_step = c_.micro_batch_size * data_parallel_size(s_);
    require(
        c_.global_batch_size % per_step == 0, "settings.global_batch_size",
        fmt::format("global batch size ({}) is not divisible by micro batch size ({}) times data parallel size ({})",
                    c_.global_batch_size, c_.micro_batch_size, data_parallel_size(s_)));
  }

  void shapes() const {
    const Int t = c_.tensor_model_parallel_size, heads = m_.num_attention_heads, groups = num_query_groups(s_);
    require(heads % t == 0, "model.num_attention_heads",
            fmt::format("num_attention_heads ({}) must be a multiple of tensor_model_parallel_size ({}).", heads, t));
    require(groups % t == 0 || t % groups == 0, "model.num_query_groups",
            fmt::format("num_query_groups ({}) must be a multiple or divisor of tensor_model_parallel_size ({}).",
                        groups, t));
    require(heads % groups == 0, "model.num_query_groups", fmt::format("{} is not divisible by {}", heads, groups));
    require(m_.kv_channels || m_.multi_latent_attention || m_.hidden_size % heads == 0, "model.hidden_size",
            fmt::format("{} is not divisible by {} attention heads; state kv_channels", m_.hidden_size, heads));
    require(ffn_hidden_size(s_) % t == 0, "model.ffn_hidden_size",
            fmt::format("{} is not divisible by {}", ffn_hidden_size(s_), t));
    // multi_token_prediction.py: depth n predicts the token n + 1 further on.
    require(m_.mtp_num_layers.value_or(0) < m_.seq_length, "model.mtp_num_layers",
            fmt::format("{} depths of multi-token prediction look behind the end of a sequence of {} tokens",
                        m_.mtp_num_layers.value_or(0), m_.seq_length));
    require(m_.window_size.empty() || m_.window_size.size() == 2, "model.window_size",
            fmt::format("has {} numbers, expected two: [keys to the left, keys to the right]", m_.window_size.size()));
    const Int cp = c_.context_parallel_size;
    require(cp == 1 || m_.seq_length % (2 * cp) == 0, "model.seq_length",
            fmt::format("{} is not divisible by 2 x context_parallel_size {}", m_.seq_length, cp));
    require(!c_.sequence_parallel || m_.seq_length / cp % t == 0, "model.seq_length",
            fmt::format("{} tokens of a context-parallel rank are not divisible by tensor_model_parallel_size {}",
                        m_.seq_length / cp, t));
  }

  void pipeline() const {
    const Int p = c_.pipeline_model_parallel_size, m = num_microbatches(s_), n = group_size(s_);
    const bool vpp = interleaved(s_), batched = batch_p2p_comm(s_);
    if (p > 1 && !vpp) {
      require(!c_.overlap_p2p_comm, "settings.overlap_p2p_comm",
              "Non-interleaved pipeline parallelism does not support overlapping p2p communication");
    }
    if (vpp) {
      require(!c_.overlap_p2p_comm || !batched, "settings.batch_p2p_comm",
              "Can not use both overlap_p2p_comm and batch_p2p_comm");
      const std::string key = c_.microbatch_group_size_per_vp_stage ? "settings.microbatch_group_size_per_vp_stage"
                                                                    : "settings.global_batch_size";
      require(n >= p && n <= m, key,
              fmt::format("The number of contiguous micro-batches in a virtual pipeline stage ({}) should range in "
                          "[PP={}, M={}]",
                          n, p, m));
      require(m % n == 0 || m % n >= p, key,
              fmt::format(
                  "The remainder of M (the total micro-batches, {}) divided by N (number of contiguous micro-batches "
                  "in a virtual pipeline stage, {}) should be 0, or larger than or equal to the pipeline-parallel "
                  "size {}, but it is {}",
                  m, n, p, m % n));
    }
    require(
        !c_.overlap_p2p_comm_warmup_flush || (c_.overlap_p2p_comm && !batched),
        "settings.overlap_p2p_comm_warmup_flush",
        "Pipeline parallel communication overlapping in warmup and flush is only compatible with overlap_p2p_comm but "
        "not batch_p2p_comm.");
    const std::string defer = "settings.defer_embedding_wgrad_compute";
    require(!c_.defer_embedding_wgrad_compute || p > 1, defer,
            "Cannot defer embedding wgrad compute when pipeline model parallel is not used");
    require(!c_.defer_embedding_wgrad_compute || c_.gradient_accumulation_fusion, defer,
            "Cannot defer embedding wgrad compute when gradient accumulation fusion is not used");
    require(!c_.defer_embedding_wgrad_compute || c_.wgrad_deferral_limit >= 0, "settings.wgrad_deferral_limit",
            "Wgrad deferral limit should be greater than or equal to 0 when it is enabled!");
  }

  void precision() const {
    require(!c_.bf16 || !c_.fp16, "settings.fp16", "bf16 and fp16 cannot both be on");
    if (!c_.fp8 || !c_.first_last_layers_bf16) return;
    require(c_.fp8_recipe != "delayed", "settings.first_last_layers_bf16",
            "Delayed scaling does not support first / last layer in BF16.");
    const Int most = m_.num_layers / c_.pipeline_model_parallel_size;
    for (const auto& [name, layers] : {std::pair("num_layers_at_start_in_bf16", c_.num_layers_at_start_in_bf16),
                                       std::pair("num_layers_at_end_in_bf16", c_.num_layers_at_end_in_bf16)}) {
      require(
          layers <= most, fmt::format("settings.{}", name),
          fmt::format("{} ({}) must be between 0 and number of layers per pipeline stage ({}).", name, layers, most));
    }
  }

  // transformer_config.py, __post_init__; experimental_attention_variant_module_specs.py, get_linear_attention_pattern.
  void linear_attention() const {
    if (m_.experimental_attention_variant.value_or("") != "gated_delta_net") return;
    const std::string key = "model.linear_attention_freq";
    const Ints& frequency = m_.linear_attention_freq;
    require(!frequency.empty(), key, "linear_attention_freq must be set for linear gated_delta_net.");
    require(frequency.size() != 1 || frequency[0] > 0 || m_.num_layers == 1, key,
            "integer division or modulo by zero: a number of layers is at least 1");
    require(
        frequency.size() <= 1 || static_cast<Int>(frequency.size()) == m_.num_layers, key,
        fmt::format("Invalid length of linear_attention_pattern: {}, expected {}", frequency.size(), m_.num_layers));
    for (const Int one : frequency)
      require(frequency.size() == 1 || one == 0 || one == 1, key,
              fmt::format("Invalid layer pattern: {}, a layer is 1 (linear attention) or 0 (softmax)", one));
    const Int keys = m_.linear_num_key_heads, values = m_.linear_num_value_heads;
    require(values % keys == 0, "model.linear_num_value_heads",
            fmt::format("linear_num_value_heads ({}) must be a multiple of linear_num_key_heads ({}).", values, keys));
    const Int both = s_.settings.tensor_model_parallel_size * s_.settings.context_parallel_size;
    for (const auto& [name, heads] : {std::pair("linear_num_key_heads", keys), {"linear_num_value_heads", values}})
      require(heads % both == 0, std::string("model.") + name,
              fmt::format("{} ({}) must be a multiple of tensor_model_parallel_size * context_parallel_size ({}).",
                          name, heads, both));
  }
  // models/hybrid/hybrid_layer_allocation.py, parse_hybrid_pattern; ssm/mamba_mixer.py.
  void hybrid() const {
    if (!is_hybrid(s_)) return;
    constexpr std::size_t longest = 4096;  // letters; published models have up to 118
    const std::string key = "model.hybrid_layer_pattern", layers = hybrid_layers(s_);
    require(layers.size() <= longest, key, fmt::format("has {} layers, at most {} are taken", layers.size(), longest));
    for (const char letter : *m_.hybrid_layer_pattern)
      require(std::string_view("MGD+*-E|/").find(letter) != std::string_view::npos, key,
              fmt::format("'{}' is not a valid layer symbol; allowed: M, *, -, E, | between pipeline stages", letter));
    require(static_cast<Int>(layers.size()) == m_.num_layers, key,
            fmt::format("has {} layers, num_layers is {}", layers.size(), m_.num_layers));
    depths_of_hybrid(key);
    if (layers.find('E') != std::string::npos)
      require(m_.num_moe_experts.has_value(), key, "has layers of experts (E), num_moe_experts is not set");
    if (!has_mamba_layer(s_)) return;
    const Int heads = mamba_num_heads(s_), groups = m_.mamba_num_groups, t = c_.tensor_model_parallel_size;
    require(m_.mamba_num_heads || 2 * m_.hidden_size % m_.mamba_head_dim == 0, "model.mamba_head_dim",
            "d_inner (2 x hidden_size) must be evenly divisible by headdim");
    require(heads % t == 0, "model.mamba_num_heads",
            fmt::format("nheads ({}) must be evenly divisble by tp_size ({})", heads, t));
    require(groups % t == 0, "model.mamba_num_groups",
            fmt::format("ngroups ({}) must be evenly divisible by tp_size ({})", groups, t));
    require(heads % groups == 0, "model.mamba_num_groups",
            fmt::format("nheads ({}) must be evenly divisible by ngroups ({})", heads, groups));
    // ssm/mamba_context_parallel.py
    const Int cp = c_.context_parallel_size;
    require(heads / t % cp == 0, "model.mamba_num_heads", "nheads must be evenly divisible by tp_size * cp_size");
    require(groups / t < cp ? cp % (groups / t) == 0 : groups / t % cp == 0, "model.mamba_num_groups",
            "ngroups / tp_size and cp_size must divide one by the other");
    require(!c_.fp8 || mamba_projection() % 16 == 0, "settings.fp8",
            "For FP8, the innermost dimension of the Mamba layer input projection output tensor must be a multiple of "
            "16.");
  }
  Int mamba_projection() const {
    const Int heads = mamba_num_heads(s_);
    return 2 * heads * m_.mamba_head_dim + 2 * m_.mamba_num_groups * m_.mamba_state_dim + heads;
  }
  /// Of every rank's part of a weight. Transformer Engine: pytorch/utils.py, assert_dim_for_fp8_exec (rows by 8,
  /// columns by 16); common/gemm/cublaslt_gemm.cu, "Leading dimension requirement ... Caller must pad" (rows by 16,
  /// too, for the input's gradient; 2.20). Modules with a recipe of their own are left to the run.
  void quantized_widths() const {
    if (!quantizes(s_) || !te_layers(s_) || !quant_recipe(s_).empty()) return;
    constexpr Int block = 16;
    const Int t = c_.tensor_model_parallel_size, etp = expert_tensor_parallel_size(s_);
    const auto width = [&](const char* key, const char* what, Int whole, Int ranks) {
      require(
          whole % ranks != 0 || whole / ranks % block == 0, key,
          fmt::format("{} of a rank are {} wide (of {} tensor-parallel ranks); Transformer Engine multiplies in FP8 "
                      "and NVFP4 only where every dimension of a weight is divisible by {}",
                      what, whole / ranks, ranks, block));
    };
    width("model.hidden_size", "hidden states", m_.hidden_size, 1);
    constexpr Int row_block = 8;
    const Int parts = c_.context_parallel_size * (c_.sequence_parallel ? t : 1);
    const Int rows = m_.seq_length * c_.micro_batch_size;
    require(
        rows % parts != 0 || rows / parts % row_block == 0, "model.seq_length",
        fmt::format("a rank multiplies {} tokens; Transformer Engine multiplies in FP8 and NVFP4 only where they are "
                    "divisible by {}",
                    rows / parts, row_block));
    if (has_dense_layer(s_)) width("model.ffn_hidden_size", "MLPs", ffn_hidden_size(s_), t);
    if (m_.num_moe_experts) width("model.moe_ffn_hidden_size", "experts", moe_ffn_hidden_size(s_), etp);
    if (m_.moe_shared_expert_intermediate_size)
      width("model.moe_shared_expert_intermediate_size", "shared experts", *m_.moe_shared_expert_intermediate_size, t);
    if (!m_.multi_latent_attention && !is_hybrid(s_))
      width("model.num_attention_heads", "heads", m_.num_attention_heads * kv_channels(s_), t);
    if (has_linear_attention(s_)) {
      const Int keys = m_.linear_num_key_heads * m_.linear_key_head_dim,
                values = m_.linear_num_value_heads * m_.linear_value_head_dim;
      width("model.linear_num_value_heads", "projections of linear attention",
            2 * keys + 2 * values + 2 * m_.linear_num_value_heads, t);
    }
    if (has_mamba_layer(s_)) width("model.mamba_num_heads", "projections of Mamba layers", mamba_projection(), t);
  }
  /// parse_hybrid_pattern: behind the first "/" the layers of every depth of multi-token prediction.
  void depths_of_hybrid(const std::string& key) const {
    const std::string part = hybrid_mtp_part(s_), layers = hybrid_mtp_layers(s_);
    if (part.empty()) return;
    require(core_version(s_.software) >= Version::v0_17, key,
            "multi-token prediction of hybrids exists from Megatron Core 0.17 on");
    const Int depths = std::ranges::count(part, '/');
    std::string equal;
    for (Int i = 0; i < depths; ++i) equal += "/" + layers;
    require(!layers.empty() && part == equal, key,
            fmt::format("all multi-token prediction patterns must be identical, found \"{}\"", part));
    require(part.find('|') == std::string::npos, key, "no | in the layers of multi-token prediction");
    require(depths == m_.mtp_num_layers.value_or(0), key,
            fmt::format("has {} depths of multi-token prediction, mtp_num_layers is {}", depths,
                        m_.mtp_num_layers.value_or(0)));
    if (layers.find('E') != std::string::npos)
      require(m_.num_moe_experts.has_value(), key, "has layers of experts (E), num_moe_experts is not set");
  }
  void experts() const {
    const Int ep = c_.expert_model_parallel_size;
    const std::string key = "settings.expert_model_parallel_size";
    if (!m_.num_moe_experts) {
      require(ep == 1, key, "num_moe_experts must be non None to use expert-parallel.");
      return;
    }
    const Int experts = *m_.num_moe_experts;
    require(experts % ep == 0, key,
            fmt::format("num_moe_experts ({}) should be divisible by expert_model_parallel_size ({})", experts, ep));
    require(m_.moe_router_topk <= experts, "model.moe_router_topk",
            fmt::format("moe_router_topk ({}) is larger than num_moe_experts ({})", m_.moe_router_topk, experts));
    const Int etp = expert_tensor_parallel_size(s_);
    require(moe_ffn_hidden_size(s_) % etp == 0, "model.moe_ffn_hidden_size",
            fmt::format("{} is not divisible by {}", moe_ffn_hidden_size(s_), etp));
    require(
        m_.moe_layer_freq.size() <= 1 || static_cast<Int>(m_.moe_layer_freq.size()) == m_.num_layers,
        "model.moe_layer_freq",
        fmt::format("Invalid length of moe_layer_pattern: {}, expected {}", m_.moe_layer_freq.size(), m_.num_layers));
    // gpt_layer_specs.py: n stands for layers i with i % n == 0, a pattern for itself.
    require(m_.moe_layer_freq.size() != 1 || m_.moe_layer_freq[0] > 0 || m_.num_layers == 1, "model.moe_layer_freq",
            "integer division or modulo by zero: a number of layers is at least 1");
    for (const Int one : m_.moe_layer_freq)
      require(m_.moe_layer_freq.size() == 1 || one == 0 || one == 1, "model.moe_layer_freq",
              fmt::format("Invalid layer pattern: {}, a layer is 1 (experts) or 0 (dense)", one));
    if (!m_.moe_router_group_topk) return;
    require(m_.moe_router_num_groups.has_value(), "model.moe_router_group_topk",
            "When using group limited routing, moe_router_num_groups must be specified.");
    require(experts % *m_.moe_router_num_groups == 0, "model.moe_router_num_groups",
            fmt::format("num_moe_experts ({}) should be divisible by moe_router_num_groups ({}).", experts,
                        *m_.moe_router_num_groups));
    require(*m_.moe_router_group_topk <= *m_.moe_router_num_groups, "model.moe_router_group_topk",
            fmt::format("moe_router_group_topk ({}) should be smaller than moe_router_num_groups ({}).",
                        *m_.moe_router_group_topk, *m_.moe_router_num_groups));
  }

  const Scenario& s_;
  const Model& m_;
  const Settings& c_;
};

}  // namespace

void check(const Scenario& scenario) { Checker(scenario).all(); }

void check_software(const Software& software, const std::function<Position(const std::string&)>& where) {
  const auto require = [&](bool right, const std::string& name, const std::string& value, const Strings& allowed) {
    const std::string key = "software." + name;
    if (right) return;
    const bool word =
        !value.empty() && std::isalpha(static_cast<unsigned char>(value[0])) != 0;  // no hint between numbers
    throw UsageError(where(key), key, fmt::format("unknown version \"{}\"", value), allowed,
                     word ? nearest_name(value, allowed) : "");
  };
  require(parse_version(software.megatron_core).has_value(), "megatron_core", software.megatron_core,
          stated_names(all_versions));
  const std::string& te = software.transformer_engine;
  require(parse_te_version(te).has_value(), "transformer_engine", te, {"a release such as 2.20.2", "main", "pr-3128"});
  const std::pair<const char*, const OptString*> others[] = {{"megatron_bridge", &software.megatron_bridge},
                                                             {"torch", &software.torch},
                                                             {"cuda", &software.cuda},
                                                             {"cudnn", &software.cudnn},
                                                             {"nccl", &software.nccl}};
  for (const auto& [name, value] : others) {
    if (*value) require(is_release_number(**value) || **value == "main", name, **value, {"a release number", "main"});
  }
}

}  // namespace pipewright::scenario
