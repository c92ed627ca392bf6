// `check --symptom`: from what a run showed to what probably caused it, likeliest first.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "candidates.hpp"
#include "pipewright/scenario/derived.hpp"
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

/// As `simulate` counts: of what runs out of memory what it needs after cached segments have been given back.
Bytes taken(const predict::RankPrediction& rank) {
  return !rank.fits && rank.pressure ? rank.pressure->needed : rank.walk.peak_reserved + rank.outside_allocator;
}

/// The rank that `simulate` names: the one that takes most of its device.
const predict::RankPrediction* tightest(const Prediction* p) {
  if (p == nullptr || p->ranks.empty()) return nullptr;
  return &*std::ranges::max_element(p->ranks, {}, taken);
}

Finding fragmentation(const Scenario& s, const predict::RankPrediction* rank) {
  std::string message = "the allocator's fragmentation: memory is reserved in segments that no later tensor fits";
  if (rank != nullptr)
    message += fmt::format(" (rank {}: {} reserved for a peak of {})", rank->pp_rank,
                           format_bytes(rank->walk.peak_reserved), format_bytes(rank->walk.peak_allocated));
  return cause("symptom.fragmentation", {"PYTORCH_CUDA_ALLOC_CONF"}, std::move(message),
               std::string("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True") +
                   (te_graphs(s) ? " and NCCL_GRAPH_REGISTER=0 (TE CUDA graphs need it beside)" : "") +
                   "; it costs no time, so try it before any recompute");
}

Finding peak(const Prediction& p, const predict::RankPrediction& rank) {
  std::string owners;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, rank.walk.peak_owners.size()); ++i)
    owners += fmt::format("{}{} {}", i ? ", " : "", rank.walk.peak_owners[i].owner,
                          format_bytes(rank.walk.peak_owners[i].bytes));
  const Bytes room = p.memory_limit - p.memory_margin - taken(rank);
  const std::string verdict = rank.fits ? fmt::format("fits with {} to spare", format_bytes(room))
                                        : fmt::format("runs out of memory{}, {} too much",
                                                      rank.walk.failure ? " at " + rank.walk.failure->at : "",
                                                      format_bytes(Bytes(std::max<std::int64_t>(0, -room.value))));
  return cause("symptom.peak-owners", {"recompute_modules", "offload_modules"},
               fmt::format("rank {} {}: its peak ({} at {}) is dominated by {}", rank.pp_rank, verdict,
                           format_bytes(rank.walk.peak_allocated), rank.walk.peak_at, owners),
               "recompute or offload what owns the peak, not what is small; `plan` prices each choice",
               "the prediction");
}

void out_of_memory(const Scenario& s, const Prediction* p, std::vector<Finding>& causes) {
  const auto* rank = tightest(p);
  if (p != nullptr && p->fits)
    causes.push_back(cause("symptom.fits-as-stated", {},
                           "as stated the step fits on every rank: the run holds something that the configuration does "
                           "not say",
                           "look for another process on the GPU, longer sequences or an imbalance of experts than "
                           "stated, evaluation or checkpoints beside training, another version of the libraries",
                           "the prediction"));
  const bool saves =
      rank != nullptr && rank->pressure && rank->pressure->verdict == predict::Pressure::Verdict::fits_expandable;
  const bool known = rank != nullptr && rank->pressure.has_value();
  if (!expandable(s) && (saves || !known)) causes.push_back(fragmentation(s, rank));
  if (rank != nullptr) causes.push_back(peak(*p, *rank));
  if (!expandable(s) && known && !saves) causes.push_back(fragmentation(s, rank));
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

/// Names of settings count by their parts: they tell one rule from another, "should be divisible by" does not.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end = [&] {
    const bool number = std::ranges::all_of(word, [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
    if (word.size() > 1 && !number) words.push_back(word);
    word.clear();
  };
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else
      end();
  }
  end();
  return words;
}

/// A rule's message without the values that are filled in.
std::string without_values(std::string_view message, std::string_view stand_in) {
  std::string out;
  for (std::size_t at = 0; at < message.size(); ++at) {
    const auto close = message[at] == '{' ? message.find('}', at) : std::string_view::npos;
    if (close == std::string_view::npos) {
      out += message[at];
      continue;
    }
    out += stand_in;
    at = close;
  }
  return out;
}

/// How much of a rule's words stand in a text in their order: 1 all of them.
double likeness(const std::vector<std::string>& rule, const std::vector<std::string>& text) {
  std::vector<std::size_t> row(text.size() + 1, 0);  // longest common subsequence
  for (const auto& word : rule) {
    std::size_t before = 0;
    for (std::size_t j = 0; j < text.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = word == text[j] ? before + 1 : std::max(row[j + 1], row[j]);
      before = above;
    }
  }
  return rule.empty() ? 0 : static_cast<double>(row.back()) / static_cast<double>(rule.size());
}

void assertion(const Scenario& s, std::string_view text, std::vector<Finding>& causes) {
  // Half of a rule's words in their order, and four at least: "should be divisible by" alone is every second rule.
  constexpr double telling = 0.5;
  constexpr std::size_t fewest = 4, shown = 3;
  const auto said = words_of(text);
  std::vector<std::pair<double, const Rule*>> matches;
  for (const auto& rule : all_rules()) {
    if (rule.severity != Severity::violation) continue;
    const auto words = words_of(without_values(rule.message, " "));
    const double like = likeness(words, said);
    if (like < telling || like * static_cast<double>(words.size()) < fewest) continue;
    matches.emplace_back(like + (applies(rule, s) ? 1 : 0), &rule);  // what is broken comes first
  }
  std::ranges::stable_sort(matches, std::greater<>(), &std::pair<double, const Rule*>::first);
  const double best = matches.empty() ? 0 : matches.front().first;
  for (const auto& [like, rule] : matches) {
    if (causes.size() == shown || like < 0.8 * best) break;
    causes.push_back(finding(*rule, s));
    if (applies(*rule, s)) continue;
    causes.back().severity = Severity::trap;
    causes.back().message = "Megatron's text is that of \"" + without_values(rule->message, "...") +
                            "\"; the configuration as given does not break this rule";
  }
  if (std::ranges::any_of(causes, [](const Finding& f) { return f.rule == "graphs.full-recompute"; }))
    causes.push_back(cause("symptom.graphs-full-recompute", {"cuda_graph_impl", "recompute_granularity"},
                           "full recompute cannot run inside graphs of single modules; there are three ways out",
                           "recompute_granularity: selective; or cuda_graph_impl: full_iteration; or "
                           "cuda_graph_impl: none",
                           "megatron/core/transformer/transformer_config.py"));
  if (causes.empty())
    causes.push_back(cause("symptom.no-rule", {}, "no rule that is known here has this text",
                           "look it up in the Megatron of your version; `pipewright list rules` shows what is known",
                           ""));
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
    if ((symptom != Symptom::assertion || found.severity == Severity::violation) &&
        std::ranges::none_of(causes, [&](const Finding& f) { return f.rule == found.rule; }))
      causes.push_back(std::move(found));
  return causes;
}

}  // namespace pipewright::plan
