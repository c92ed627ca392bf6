// Exhaustive search: enumerate the product of the dimensions, let the rules reject, predict what is left in parallel,
// rank. What cannot differ is predicted once: candidates that are equal without their idle settings, and the time of
// candidates that differ only in the allocator's configuration.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "candidates.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

using Clock = std::chrono::steady_clock;

/// Variables that change reserved memory and nothing else.
constexpr const char* allocator_variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"};

std::string identity(const Scenario& scenario) { return scenario::write(without_idle_settings(scenario)); }

std::string identity_of_time(Scenario scenario) {
  for (const auto* variable : allocator_variables) scenario.environment.erase(variable);
  return identity(scenario);
}

/// Keeps the last assignment of every name, in the order of first mention.
void merge(Assignments& into, const Assignments& more) {
  for (const auto& [name, value] : more) {
    const auto at = std::ranges::find(into, name, &Assignments::value_type::first);
    if (at == into.end())
      into.emplace_back(name, value);
    else
      at->second = value;
  }
}

struct Enumeration {
  std::vector<Trial> trials;
  std::vector<Rejected> rejected;
  std::int64_t candidates = 0, duplicates = 0;
};

class Enumerator {
 public:
  Enumerator(const Scenario& base, const std::vector<Dimension>& dimensions, LeftOut& left_out)
      : base_(base), dimensions_(dimensions), left_out_(left_out) {
    for (const auto& rule : all_rules())
      if (rule.severity == Severity::violation && rule.speaker == Speaker::arguments && applies(rule, base))
        tolerated_.push_back(rule.id);
  }

  Enumeration run() {
    decide(0, base_, {});
    return std::move(result_);
  }

 private:
  void decide(std::size_t depth, const Scenario& partial, const std::vector<Value>& chosen) {
    if (depth == dimensions_.size()) return finish(partial, chosen);
    auto values = dimensions_[depth].values(partial, left_out_);
    if (values.empty()) values.push_back({"", {}, {}});  // nothing to decide here: as given
    for (auto& value : values) {
      Scenario next = partial;
      auto choice = chosen;
      choice.push_back(std::move(value));
      apply(choice.back(), next);
      decide(depth + 1, next, choice);
    }
  }

  void finish(const Scenario& decided, const std::vector<Value>& chosen) {
    ++result_.candidates;
    Trial trial;
    auto& candidate = trial.candidate;
    candidate.scenario = with_required_environment(decided);
    for (const auto& value : chosen) {
      trial.choice.push_back(value.label);
      if (!value.label.empty()) candidate.label += (candidate.label.empty() ? "" : ", ") + value.label;
      merge(candidate.settings, value.settings);
      merge(candidate.environment, value.environment);
    }
    for (const auto& [name, value] : candidate.scenario.environment)
      if (const auto before = base_.environment.find(name);
          before == base_.environment.end() || before->second != value)
        merge(candidate.environment, {{name, value}});
    if (const auto refusal = refused(candidate.scenario, trial.tolerated)) {
      result_.rejected.push_back(
          {candidate.label, candidate.settings, candidate.environment, refusal->rule, refusal->message});
      return;
    }
    if (!seen_.emplace(identity(candidate.scenario), result_.trials.size()).second) {
      ++result_.duplicates;
      return;
    }
    result_.trials.push_back(std::move(trial));
  }

  std::optional<Finding> refused(const Scenario& scenario, std::string& tolerated) const {
    for (const auto& rule : all_rules()) {
      if (rule.severity != Severity::violation || !applies(rule, scenario)) continue;
      // A run that does not pass through the argument parser may break its rules; then so may the candidates.
      if (std::ranges::find(tolerated_, rule.id) == tolerated_.end()) return finding(rule, scenario);
      tolerated += (tolerated.empty() ? "" : ", ") + std::string(rule.id);
    }
    try {
      scenario::check(scenario);
    } catch (const UsageError& error) {
      return Finding{"scenario", Severity::violation, {error.key()}, error.message(), "", ""};
    }
    return std::nullopt;
  }

  const Scenario& base_;
  const std::vector<Dimension>& dimensions_;
  LeftOut& left_out_;
  std::vector<std::string_view> tolerated_;
  std::map<std::string, std::size_t> seen_;
  Enumeration result_;
};

/// Predicts trials in groups of equal time. The first of a group is simulated, the others only where they differ.
class Crew {
 public:
  Crew(std::vector<Trial>& trials, const Options& options) : trials_(trials), options_(options) {
    std::map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < trials.size(); ++i) {
      const auto [at, fresh] = index.emplace(identity_of_time(trials[i].candidate.scenario), groups_.size());
      if (fresh) groups_.emplace_back();
      groups_[at->second].push_back(i);
    }
    refusals_.resize(trials.size());
  }

  void run() {
    const auto cores = std::max(1U, std::thread::hardware_concurrency());
    const auto wanted = options_.threads > 0 ? static_cast<std::size_t>(options_.threads) : std::size_t{cores};
    std::vector<std::jthread> crew;
    for (std::size_t i = 1; i < std::min(wanted, groups_.size()); ++i) crew.emplace_back([this] { work(); });
    work();
    crew.clear();  // joins
    if (failure_) std::rethrow_exception(failure_);
  }

  const std::vector<std::string>& refusals() const { return refusals_; }
  std::int64_t simulated() const { return simulated_; }
  bool interrupted() const { return interrupted_; }

 private:
  void work() {
    for (std::size_t group; (group = next_++) < groups_.size();) {
      if (options_.stop.stop_requested() || failed_) {
        interrupted_ = true;
        return;
      }
      try {
        predict_group(groups_[group]);
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        failed_ = true;
      }
    }
  }

  void predict_group(const std::vector<std::size_t>& group) {
    const predict::Prediction* first = nullptr;
    for (const auto i : group) {
      auto& trial = trials_[i];
      try {
        trial.candidate.prediction = first && options_.repredict_reserved
                                         ? options_.repredict_reserved(trial.candidate.scenario, *first)
                                         : options_.predict(trial.candidate.scenario);
        trial.done = true;
        if (!first) ++simulated_;
        if (!first) first = &trial.candidate.prediction;
      } catch (const UsageError& error) {
        refusals_[i] = error.what();
      }
      const std::scoped_lock lock(mutex_);
      if (options_.progress) options_.progress(++finished_, static_cast<std::int64_t>(trials_.size()));
    }
  }

  std::vector<Trial>& trials_;
  const Options& options_;
  std::vector<std::vector<std::size_t>> groups_;
  std::vector<std::string> refusals_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::int64_t> simulated_ = 0;
  std::atomic<bool> interrupted_ = false, failed_ = false;
  std::int64_t finished_ = 0;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

/// The scenario as given, with the values of everything that the search changed elsewhere.
void describe_baseline(Plan& plan, const Scenario& scenario, const std::vector<Trial>& trials) {
  plan.baseline.label = "as given";
  plan.baseline.scenario = scenario;
  for (const auto& trial : trials) {
    for (const auto& [name, value] : trial.candidate.settings)
      merge(plan.baseline.settings, {{name, scenario::get(scenario, name)}});
    for (const auto& [name, value] : trial.candidate.environment)
      merge(plan.baseline.environment, {{name, scenario::variable(scenario, name)}});
  }
}

}  // namespace

Plan search(const Scenario& scenario, const Options& options) {
  const auto begin = Clock::now();
  if (!options.predict) throw InternalError("search without a predictor");
  Plan plan;
  LeftOut left_out;
  const auto opened = dimensions(scenario, left_out);
  auto [trials, rejected, candidates, duplicates] = Enumerator(scenario, opened, left_out).run();
  describe_baseline(plan, scenario, trials);

  const auto same = std::ranges::find(trials, identity(scenario),
                                      [](const Trial& trial) { return identity(trial.candidate.scenario); });
  Crew crew(trials, options);
  crew.run();
  if (same != trials.end() && same->done) {
    plan.baseline.prediction = same->candidate.prediction;
  } else {
    try {
      plan.baseline.prediction = options.predict(scenario);
    } catch (const UsageError& error) {
      const bool none = std::ranges::none_of(trials, [](const Trial& trial) { return trial.done; });
      if (none && !trials.empty() && !crew.interrupted()) throw;  // a profile that lacks something, not a candidate
      plan.baseline_refused = error.what();
    }
  }

  plan.rejected = left_out.rejected;
  std::ranges::move(rejected, std::back_inserter(plan.rejected));
  bool all_predicted = true;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (crew.refusals()[i].empty()) continue;
    all_predicted = false;
    const auto& c = trials[i].candidate;
    plan.rejected.push_back({c.label, c.settings, c.environment, "model", crew.refusals()[i]});
  }

  const auto order = ranking(trials, scenario.search.objective);
  plan.pareto = pareto_front(trials);
  if (!order.empty() && trials[order.front()].candidate.prediction.fits) plan.best = trials[order.front()].candidate;
  for (std::size_t place = plan.best ? 1 : 0; place < order.size() && std::ssize(plan.alternatives) < options.top;
       ++place)
    plan.alternatives.push_back(trials[order[place]].candidate);
  plan.searched = {candidates,
                   std::ssize(trials),
                   crew.simulated(),
                   duplicates,
                   std::chrono::duration<double>(Clock::now() - begin).count(),
                   all_predicted && !crew.interrupted() && left_out.notes.empty(),
                   crew.interrupted()};
  plan.why = explain(plan, trials, order, opened, left_out);
  return plan;
}

std::vector<std::pair<Rejected, std::int64_t>> rejected_by_reason(const Plan& plan) {
  std::vector<std::pair<Rejected, std::int64_t>> groups;
  for (const auto& rejected : plan.rejected) {
    const auto same = std::ranges::find_if(groups, [&](const auto& group) {
      return group.first.rule == rejected.rule && group.first.reason == rejected.reason;
    });
    if (same == groups.end())
      groups.emplace_back(rejected, 1);
    else
      ++same->second;
  }
  return groups;
}

}  // namespace pipewright::plan
