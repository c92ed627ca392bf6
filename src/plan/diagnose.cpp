// `check --symptom`: from what a run showed to what probably caused it, likeliest first.
#include <fmt/format.h>

#include <algorithm>

#include "candidates.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

using predict::Prediction;

/// Published: Llama 3 70B on 32 H100, mlp recompute 593.6 against 704 TFLOP/s, 55.6 against 58.8 GB.
constexpr const char* published = "Megatron-Bridge skills/nemo-mbridge-perf-activation-recompute/SKILL.md:105-218";

bool expandable(const Scenario& s) {
  return scenario::variable(s, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") != std::string::npos;
}

Finding cause(std::string rule, std::vector<std::string> settings, std::string message, std::string fix,
              std::string source = published) {
  return {std::move(rule), Severity::trap, std::move(settings), std::move(message), std::move(fix), std::move(source)};
}

void out_of_memory(const Scenario& s, const Prediction* p, std::vector<Finding>& causes) {
  if (!expandable(s)) {
    std::string message = "the allocator's fragmentation: memory is reserved in segments that no later tensor fits";
    if (p != nullptr && !p->ranks.empty()) {
      const auto& rank = *std::ranges::max_element(p->ranks, {}, [](const auto& r) { return r.walk.peak_allocated; });
      message += fmt::format(" (rank {}: {} reserved for a peak of {})", rank.pp_rank,
                             format_bytes(rank.walk.peak_reserved), format_bytes(rank.walk.peak_allocated));
    }
    causes.push_back(cause("symptom.fragmentation", {"PYTORCH_CUDA_ALLOC_CONF"}, std::move(message),
                           std::string("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True") +
                               (te_graphs(s) ? " and NCCL_GRAPH_REGISTER=0 (TE CUDA graphs need it beside)" : "") +
                               "; it costs no time, so try it before any recompute"));
  }
  if (p != nullptr && !p->ranks.empty()) {
    const auto& rank = *std::ranges::max_element(p->ranks, {}, [](const auto& r) { return r.walk.peak_allocated; });
    std::string owners;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, rank.walk.peak_owners.size()); ++i)
      owners += fmt::format("{}{} {}", i ? ", " : "", rank.walk.peak_owners[i].owner,
                            format_bytes(rank.walk.peak_owners[i].bytes));
    causes.push_back(cause("symptom.peak-owners", {"recompute_modules", "offload_modules"},
                           fmt::format("the peak of rank {} ({} at {}) is dominated by {}", rank.pp_rank,
                                       format_bytes(rank.walk.peak_allocated), rank.walk.peak_at, owners),
                           "recompute or offload what owns the peak, not what is small; `plan` prices each choice",
                           "the prediction"));
  }
  if (s.settings.cpu_offloading && s.settings.pipeline_model_parallel_size > 1)
    causes.push_back(cause("symptom.whole-layer-offload", {"cpu_offloading", "pipeline_model_parallel_size"},
                           "whole-layer offload cannot help here: Megatron refuses it with a pipeline",
                           "use fine_grained_activation_offloading"));
  if (scenario::recomputes(s, Recompute::layernorm) || !s.settings.recompute_granularity)
    causes.push_back(
        cause("symptom.layernorm-small", {"recompute_modules"},
              "layernorm recompute is too small to end an out-of-memory error: it frees one norm output a "
              "layer, and nothing at all where norms are fused (dense GQA with Transformer Engine)",
              "spend nothing on it; expandable segments first, then mlp or full recompute of some layers"));
  if (scenario::num_chunks(s) > 1)
    causes.push_back(
        cause("symptom.interleaving", {"virtual_pipeline_model_parallel_size"},
              fmt::format("interleaving keeps more microbatches alive on rank 0 (VPP {})", scenario::num_chunks(s)),
              "a smaller virtual pipeline size frees memory at the price of bubble"));
}

void slow(const Scenario& s, const Prediction* p, std::vector<Finding>& causes) {
  const bool mlp = scenario::recomputes(s, Recompute::mlp), attention = scenario::recomputes(s, Recompute::core_attn);
  if (mlp && attention)
    causes.push_back(cause("symptom.mlp-and-core-attn", {"recompute_modules"},
                           "mlp and core_attn together are slower than mlp alone and free no more: with fused "
                           "attention core_attn has nothing to free",
                           "take core_attn out"));
  if (mlp && has_dense_layer(s))
    causes.push_back(cause("symptom.mlp", {"recompute_modules"},
                           "a drop of more than 15 % comes from mlp recompute: it replays fc1, activation and fc2 of "
                           "every dense layer, most of a layer's forward",
                           "take mlp out; if it was there against an out-of-memory error, use "
                           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead"));
  if (full(s))
    causes.push_back(cause("symptom.full", {"recompute_granularity"},
                           "full recompute replays whole layers: about a third of the model's compute again",
                           "use selective recompute, or recompute_method: block with fewer layers"));
  if (scenario::interleaved(s) && !s.settings.overlap_p2p_comm)
    causes.push_back(cause("symptom.p2p-in-line", {"overlap_p2p_comm"},
                           "pipeline transfers without overlap synchronise the whole device after each of them",
                           "set overlap_p2p_comm: true", "megatron/core/pipeline_parallel/p2p_communication.py"));
  if (s.settings.pipeline_model_parallel_size > 1 && p != nullptr && !p->ranks.empty()) {
    const auto& a = p->ranks.front().account;
    const auto step = std::max<std::int64_t>(1, p->step_ns);
    causes.push_back(cause("symptom.step", {"global_batch_size", "virtual_pipeline_model_parallel_size"},
                           fmt::format("of rank 0's step {:.1f} % is bubble, {:.1f} % exposed P2P, {:.1f} % recompute",
                                       100.0 * static_cast<double>(a.bubble) / static_cast<double>(step),
                                       100.0 * static_cast<double>(a.p2p) / static_cast<double>(step),
                                       100.0 * static_cast<double>(a.recompute) / static_cast<double>(step)),
                           "more microbatches or a larger virtual pipeline size against bubble", "the prediction"));
  }
}

/// Words of an assertion that tell it apart: the rule whose text shares the longest run with what was printed.
std::size_t common_run(std::string_view a, std::string_view b) {
  std::size_t longest = 0;
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const char c : a)
    for (std::size_t j = b.size(); j > 0; --j) {
      row[j] = c == b[j - 1] ? row[j - 1] + 1 : 0;
      longest = std::max(longest, row[j]);
    }
  return longest;
}

void assertion(const Scenario& s, std::string_view text, std::vector<Finding>& causes) {
  // 16 characters in a row are two or three words: fewer match by chance.
  constexpr std::size_t telling = 16;
  std::vector<std::pair<std::size_t, const Rule*>> matches;
  for (const auto& rule : all_rules())
    if (rule.severity == Severity::violation)
      if (const auto run = common_run(text, rule.message); run >= telling) matches.emplace_back(run, &rule);
  std::ranges::stable_sort(matches, std::greater<>(), &std::pair<std::size_t, const Rule*>::first);
  for (const auto& [run, rule] : matches)
    if (run * 3 >= matches.front().first * 2 && causes.size() < 3) causes.push_back(finding(*rule, s));
  if (std::ranges::any_of(causes, [](const Finding& f) { return f.rule == "graphs.full-recompute"; }))
    causes.push_back(cause("symptom.graphs-full-recompute", {"cuda_graph_impl", "recompute_granularity"},
                           "full recompute cannot run inside graphs of single modules; there are three ways out",
                           "recompute_granularity: selective; or cuda_graph_impl: full_iteration; or "
                           "cuda_graph_impl: none",
                           "megatron/core/transformer/transformer_config.py"));
}

}  // namespace

std::vector<Finding> diagnose(const scenario::Scenario& scenario, Symptom symptom, std::string_view text,
                              const predict::Prediction* prediction) {
  std::vector<Finding> causes;
  switch (symptom) {
    case Symptom::out_of_memory:
      out_of_memory(scenario, prediction, causes);
      break;
    case Symptom::slow:
      slow(scenario, prediction, causes);
      break;
    case Symptom::assertion:
      if (text.find("out of memory") != std::string_view::npos)
        out_of_memory(scenario, prediction, causes);  // torch.OutOfMemoryError, cudaErrorMemoryAllocation
      else
        assertion(scenario, text, causes);
      break;
  }
  for (auto& found : plan::check(scenario))
    if (std::ranges::none_of(causes, [&](const Finding& f) { return f.rule == found.rule; }))
      causes.push_back(std::move(found));
  return causes;
}

}  // namespace pipewright::plan
