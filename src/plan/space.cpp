#include "space.hpp"

#include <algorithm>

#include "pipewright/scenario/io.hpp"

namespace pipewright::plan {

namespace {

/// Variables that change reserved memory and nothing else.
constexpr const char* allocator_variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"};

constexpr const char* share = "activation_offload_fraction";

std::string assigned(const Value& value, std::string_view name) {
  const auto at = std::ranges::find(value.settings, name, &Assignments::value_type::first);
  return at == value.settings.end() ? std::string() : at->second;
}

/// "[mlp, core_attn]": "[mlp]".
std::string but_last(const std::string& list) {
  const auto comma = list.rfind(',');
  return comma == std::string::npos ? "[]" : list.substr(0, comma) + "]";
}

std::string label_of(const std::vector<Value>& chosen) {
  std::string label;
  for (const auto& value : chosen)
    if (!value.label.empty()) label += (label.empty() ? "" : ", ") + value.label;
  return label.empty() ? "as given" : label;
}

}  // namespace

std::string identity(const Scenario& scenario) { return scenario::write(without_idle_settings(scenario)); }

std::string identity_of_time(Scenario scenario) {
  for (const auto* variable : allocator_variables) scenario.environment.erase(variable);
  return identity(scenario);
}

bool judges_structures(const Rule& rule) {
  static const std::set<std::string_view> below = {"recompute_granularity",
                                                   "recompute_modules",
                                                   "recompute_method",
                                                   "recompute_num_layers",
                                                   "distribute_saved_activations",
                                                   "fine_grained_activation_offloading",
                                                   "offload_modules",
                                                   "activation_offload_fraction",
                                                   "cpu_offloading",
                                                   "cpu_offloading_num_layers",
                                                   "NVTE_CPU_OFFLOAD_V1",
                                                   "PYTORCH_CUDA_ALLOC_CONF",
                                                   "NCCL_GRAPH_REGISTER"};
  return std::ranges::none_of(rule.settings, [](std::string_view name) { return below.contains(name); });
}

Scenario Space::bare(const Scenario& partial) const {
  Scenario scenario = partial;
  auto& s = scenario.settings;
  if (recompute_ < dimensions_.size()) {
    s.recompute_granularity.reset();
    s.recompute_method.reset();
    s.recompute_num_layers.reset();
    s.recompute_modules.clear();
    s.distribute_saved_activations = false;
  }
  if (offload_ < dimensions_.size()) {
    s.fine_grained_activation_offloading = s.cpu_offloading = false;
    s.offload_modules.clear();
  }
  return with_required_environment(std::move(scenario));
}

void merge(Assignments& into, const Assignments& more) {
  for (const auto& [name, value] : more) {
    const auto at = std::ranges::find(into, name, &Assignments::value_type::first);
    if (at == into.end())
      into.emplace_back(name, value);
    else
      at->second = value;
  }
}

Space::Space(const Scenario& base, const std::vector<Dimension>& dimensions, LeftOut& left_out)
    : base_(base), dimensions_(dimensions), left_out_(left_out) {
  for (const auto& rule : all_rules())
    if (rule.severity == Severity::violation && rule.speaker == Speaker::arguments && applies(rule, base))
      tolerated_.push_back(rule.id);
  while (structural_ < dimensions_.size() && structural(dimensions_[structural_].what)) ++structural_;
  const auto at = [&](Decides what) {
    return static_cast<std::size_t>(std::ranges::find(dimensions_, what, &Dimension::what) - dimensions_.begin());
  };
  recompute_ = at(Decides::recompute);
  offload_ = at(Decides::offload);
}

std::optional<Trial> Space::given() {
  std::vector<Value> chosen;
  for (const auto& dimension : dimensions_) {
    const auto values = dimension.values(base_, left_out_);
    const auto same = std::ranges::find_if(values, [&](const Value& v) { return changes_nothing(v, base_); });
    chosen.push_back(same != values.end() ? *same : Value{values.empty() ? "" : as_given(dimension.what), {}, {}});
  }
  auto trial = finished(base_, chosen);
  if (!trial) return std::nullopt;
  given_ = identity(trial->candidate.scenario);
  trial->given = true;
  return trial;
}

template <typename Sink>
void Space::decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
                   const Sink& sink, const Narrow& narrow) {
  if (depth == until) return sink(partial, chosen);
  std::vector<Value> values;
  if (narrow) values = narrow(depth, partial);
  if (values.empty()) values = dimensions_[depth].values(partial, left_out_);
  if (values.empty()) values.push_back({"", {}, {}});  // nothing to decide here: as given
  for (auto& value : values) {
    Scenario next = partial;
    auto choice = chosen;
    choice.push_back(std::move(value));
    apply(choice.back(), next);
    decide(depth + 1, until, next, choice, sink, narrow);
  }
}

std::vector<Structure> Space::structures() {
  std::vector<Structure> all;
  decide(0, structural_, base_, {}, [&](const Scenario& partial, const std::vector<Value>& chosen) {
    // One rejection for all that it would hold.
    std::string tolerated;
    if (const auto refusal = refused(bare(partial), tolerated, structural_ < dimensions_.size())) {
      ++enumerated;
      ++illegal;
      Assignments settings, environment;
      for (const auto& value : chosen) merge(settings, value.settings), merge(environment, value.environment);
      rejected.push_back({label_of(chosen), settings, environment, refusal->rule, refusal->message});
      return;
    }
    all.push_back({partial, chosen, label_of(chosen), size_of(partial)});
  });
  return all;
}

/// What recompute, offload and allocator leave open depends on little more than these.
std::int64_t Space::size_of(const Scenario& partial) {
  const auto& s = partial.settings;
  const auto key = std::to_string(layers_per_chunk(partial)) + (s.overlap_moe_expert_parallel_comm ? " overlap" : "") +
                   (s.delay_wgrad_compute ? " delay" : "") + (s.pipeline_model_parallel_size > 1 ? " pipeline" : "") +
                   s.cuda_graph_impl;
  const auto [at, fresh] = sizes_.emplace(key, 1);
  if (fresh)
    for (std::size_t d = structural_; d < dimensions_.size(); ++d)
      at->second *= std::max<std::int64_t>(1, std::ssize(dimensions_[d].values(partial, left_out_)));
  return at->second;
}

std::vector<Trial> Space::narrowed(const Structure& structure, const Narrow& narrow) {
  std::vector<Trial> trials;
  decide(
      structural_, dimensions_.size(), structure.partial, structure.chosen,
      [&](const Scenario& decided, const std::vector<Value>& chosen) {
        if (auto trial = finished(decided, chosen)) trials.push_back(std::move(*trial));
      },
      narrow);
  return trials;
}

std::vector<Trial> Space::candidates(const Structure& structure) { return narrowed(structure, {}); }

std::vector<Step> Space::steps(const Structure& structure) {
  if (recompute_ == dimensions_.size()) return {{{"", {}, {}}, {}}};
  std::vector<Step> steps;
  for (auto& value : dimensions_[recompute_].values(structure.partial, left_out_))
    steps.push_back({std::move(value), {}});
  const auto find = [&](const std::string& modules, std::size_t before) -> std::optional<std::size_t> {
    for (std::size_t j = 0; j < before; ++j)
      if (assigned(steps[j].value, "recompute_modules") == modules &&
          assigned(steps[j].value, "recompute_method") == "none")
        return j;
    return std::nullopt;
  };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto& value = steps[i].value;
    if (value.settings.empty()) continue;  // as given: related to nothing
    const auto method = assigned(value, "recompute_method");
    // One layer more than the last; uniform replays all of them, whatever the groups.
    if (method == "none")
      steps[i].after = find(but_last(assigned(value, "recompute_modules")), i);
    else
      steps[i].after = method == "block" && assigned(value, "recompute_num_layers") == "1" ? 0 : i - 1;
  }
  return steps;
}

std::vector<Step> Space::offload_steps(const Trial& without) {
  std::vector<Step> steps;
  for (auto& value : dimensions_[offload_].values(without.candidate.scenario, left_out_))
    steps.push_back({std::move(value), {}});
  if (steps.empty()) return steps;
  steps.erase(steps.begin());  // nothing is offloaded: the candidate itself
  const auto find = [&](const std::string& modules, const std::string& fraction, std::size_t before) {
    std::optional<std::size_t> found;
    for (std::size_t j = 0; j < before; ++j)
      if (assigned(steps[j].value, "offload_modules") == modules && assigned(steps[j].value, share) == fraction)
        found = j;
    return found;
  };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto &value = steps[i].value, &before = steps[i - 1].value;
    if (value.settings.empty()) continue;
    const auto modules = assigned(value, "offload_modules");
    const bool layers = assigned(value, "cpu_offloading") == "true";
    if (layers && assigned(before, "cpu_offloading") != "true") continue;
    // More layers, a larger share of the same modules, or one module more.
    if (layers || assigned(before, "offload_modules") == modules)
      steps[i].after = i - 1;
    else
      steps[i].after = find(but_last(modules), assigned(value, share), i);
  }
  return steps;
}

std::vector<Trial> Space::without_offload(const Structure& structure, const Step& step) {
  return narrowed(structure, [&](std::size_t dimension, const Scenario& partial) -> std::vector<Value> {
    if (dimension == recompute_) return {step.value};
    if (dimension == offload_) return {no_offload(partial)};
    return {};
  });
}

std::vector<Trial> Space::with_offload(const Structure& structure, const Step& recompute, const Step& offload) {
  return narrowed(structure, [&](std::size_t dimension, const Scenario&) -> std::vector<Value> {
    if (dimension == recompute_) return {recompute.value};
    if (dimension == offload_) return {offload.value};
    return {};
  });
}

std::optional<Trial> Space::finished(const Scenario& decided, const std::vector<Value>& chosen) {
  ++enumerated;
  Trial trial;
  auto& candidate = trial.candidate;
  candidate.scenario = with_required_environment(decided);
  candidate.label = label_of(chosen);
  for (const auto& value : chosen) {
    candidate.choices.push_back(value.label);
    merge(candidate.settings, value.settings);
    merge(candidate.environment, value.environment);
  }
  for (const auto& [name, value] : candidate.scenario.environment)
    if (const auto before = base_.environment.find(name); before == base_.environment.end() || before->second != value)
      merge(candidate.environment, {{name, value}});
  for (const auto& value : chosen) trial.changes += changes_nothing(value, base_) ? 0 : 1;
  if (const auto refusal = refused(candidate.scenario, trial.tolerated)) {
    ++illegal;
    rejected.push_back({candidate.label, candidate.settings, candidate.environment, refusal->rule, refusal->message});
    return std::nullopt;
  }
  const auto same = identity(candidate.scenario);
  if (!seen_.insert(same).second) {
    // The scenario as given was counted when it was asked for.
    if (same == given_)
      --enumerated, given_.clear();
    else
      ++duplicates;
    return std::nullopt;
  }
  return trial;
}

/// `structural`: by what does not change with the choices below a structure.
std::optional<Finding> Space::refused(const Scenario& scenario, std::string& tolerated, bool structural) const {
  for (const auto& rule : all_rules()) {
    if (rule.severity != Severity::violation || (structural && !judges_structures(rule)) || !applies(rule, scenario))
      continue;
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

}  // namespace pipewright::plan
