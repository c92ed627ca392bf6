// What would make a run fit, and on how few GPUs it does: questions beside the search, answered by predictions.
#include <fmt/format.h>

#include <algorithm>
#include <stop_token>

#include "candidates.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "rules.hpp"
#include "searcher.hpp"

namespace pipewright::plan {

namespace {

/// Whether Megatron takes it.
bool is_legal(const Scenario& scenario) {
  for (const auto& rule : all_rules())
    if (rule.severity == Severity::violation && applies(rule, scenario)) return false;
  try {
    scenario::check(scenario);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

/// The prediction of a changed scenario; none where Megatron or the model refuses it.
std::optional<predict::Prediction> tried(const Scenario& scenario, const Options& options) {
  const auto changed = with_required_environment(scenario);
  if (!is_legal(changed)) return std::nullopt;
  try {
    return options.predict(changed);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

/// With another number of data-parallel copies; none where the batch does not divide.
std::optional<Scenario> with_copies(const Scenario& scenario, std::int64_t copies) {
  const auto& s = scenario.settings;
  if (copies < 1 || s.global_batch_size % (s.micro_batch_size * copies) != 0) return std::nullopt;
  Scenario changed = scenario;
  changed.cluster.num_gpus = scenario::model_parallel_size(scenario) * copies;
  return changed;
}

std::string what_it_leaves(const predict::Prediction& p) {
  return fmt::format("{} to spare on rank {}, {:.1f} ms a step", format_bytes(reserved_margin(p) - p.memory_margin),
                     tightest_rank(p), static_cast<double>(p.step_ns) / 1e6);
}

}  // namespace

std::vector<std::string> what_would_fit(const Scenario& scenario, const Options& options) {
  std::vector<std::string> found;
  const auto say = [&](const std::string& what, const Scenario& changed) {
    if (options.stop.stop_requested()) return false;
    const auto p = tried(changed, options);
    const bool fits = p && p->fits;
    if (fits) found.push_back(fmt::format("would fit: {} ({})", what, what_it_leaves(*p)));
    return fits;
  };
  const auto& search = scenario.search;
  Scenario expandable = scenario;
  scenario::set_env(expandable, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  if (search.allocator != "auto") say("the scenario as given with expandable segments", expandable);
  if (search.recompute != "auto") {
    Scenario open = scenario;
    open.search.recompute = "auto";
    for (const auto& least : least_kept(open))
      if (say(full(least) ? "the scenario as given with full recompute"
                          : "the scenario as given with recompute " + joined(least.settings.recompute_modules, ", "),
              least))
        break;
  }
  constexpr std::int64_t most_times = 16;
  const auto copies = scenario::data_parallel_size(scenario);
  for (std::int64_t times = 2; times <= most_times; times *= 2)
    if (const auto more = with_copies(scenario, copies * times);
        more &&
        say(fmt::format("the scenario as given on {} GPUs (DP {})", more->cluster.num_gpus, copies * times), *more))
      break;
  return found;
}

std::vector<std::string> fits_on_more_gpus(const Scenario& scenario, const Options& options) {
  constexpr std::int64_t most_times = 16;
  for (std::int64_t times = 2; times <= most_times; times *= 2) {
    Scenario more = scenario;
    more.cluster.num_gpus *= times;
    std::stop_source found;  // the first that fits will do
    const std::stop_callback stopped(options.stop, [&] { found.request_stop(); });
    Options first = options;
    first.stop = found.get_token();
    first.has_baseline = false;
    first.predict = [&](const Scenario& candidate) {
      auto p = options.predict(candidate);
      if (p.fits) found.request_stop();
      return p;
    };
    LeftOut ignored;
    const auto open = dimensions(more);
    Searcher searcher(more, first, open, ignored);
    searcher.run();
    if (options.stop.stop_requested()) return {};
    const auto& trials = searcher.trials();
    const auto order = ranking(trials, more.search.objective);
    if (order.empty() || !trials[order.front()].candidate.prediction.fits) continue;
    const auto& candidate = trials[order.front()].candidate;
    return {fmt::format("would fit: {} GPUs, for one as {} ({})", more.cluster.num_gpus, candidate.label,
                        what_it_leaves(candidate.prediction))};
  }
  return {};
}

std::int64_t fewest_gpus(const Candidate& best, const Options& options) {
  auto fewest = best.scenario.cluster.num_gpus;
  if (!options.repredict_reserved) return fewest;
  const auto fits = [&](const Scenario& fewer) {
    try {
      return options.repredict_reserved(fewer, best.prediction).fits;
    } catch (const UsageError&) {
      return false;  // refused by the model
    }
  };
  std::vector<Scenario> legal;  // by the number of copies
  for (std::int64_t copies = 1; copies < scenario::data_parallel_size(best.scenario); ++copies)
    if (auto fewer = with_copies(best.scenario, copies); fewer && is_legal(*fewer)) legal.push_back(std::move(*fewer));
  // More copies share more: what fits on some fits on more.
  std::size_t low = 0, high = legal.size();
  while (low < high && !options.stop.stop_requested()) {
    const std::size_t middle = (low + high) / 2;
    if (!fits(legal[middle])) {
      low = middle + 1;
    } else {
      high = middle;
      fewest = legal[middle].cluster.num_gpus;
    }
  }
  return fewest;
}

}  // namespace pipewright::plan
