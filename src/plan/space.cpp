#include "space.hpp"

#include <algorithm>

namespace pipewright::plan {

namespace {

/// Variables that change reserved memory and nothing else.
constexpr const char* allocator_variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"};

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

Scenario stripped(Scenario scenario) {
  auto& s = scenario.settings;
  s.recompute_granularity.reset();
  s.recompute_method.reset();
  s.recompute_num_layers.reset();
  s.recompute_modules.clear();
  s.distribute_saved_activations = false;
  s.fine_grained_activation_offloading = s.cpu_offloading = false;
  s.offload_modules.clear();
  return scenario;
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
  for (const auto& dimension : dimensions_) {
    const auto& name = dimension.name;
    if (name == "recompute" || name == "offload" || name == "allocator") break;
    ++structural_;
  }
  const auto offload = std::ranges::find(dimensions_, "offload", &Dimension::name);
  offload_ = static_cast<std::size_t>(offload - dimensions_.begin());
}

template <typename Sink>
void Space::decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
                   const Sink& sink, const Narrow& narrow) {
  if (depth == until) return sink(partial, chosen);
  auto values = dimensions_[depth].values(partial, left_out_);
  if (values.empty()) values.push_back({"", {}, {}});  // nothing to decide here: as given
  if (narrow) narrow(depth, values);
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
    try {
      scenario::check(with_required_environment(partial));
    } catch (const UsageError&) {
      if (structural_ < dimensions_.size()) {
        // One rejection for all that it would hold.
        std::string tolerated;
        ++enumerated;
        Assignments settings, environment;
        for (const auto& value : chosen) merge(settings, value.settings), merge(environment, value.environment);
        if (const auto refusal = refused(with_required_environment(partial), tolerated))
          rejected.push_back({label_of(chosen), settings, environment, refusal->rule, refusal->message});
        return;
      }
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

std::vector<Trial> Space::without_offload(const Structure& structure) {
  return narrowed(structure, [&](std::size_t dimension, std::vector<Value>& values) {
    if (dimension == offload_) values.resize(1);
  });
}

std::vector<Trial> Space::with_offload(const Structure& structure, const Trial& without) {
  return narrowed(structure, [&](std::size_t dimension, std::vector<Value>& values) {
    if (dimension == offload_)
      values.erase(values.begin());
    else if (dimension < offload_)
      std::erase_if(values, [&](const Value& v) { return v.label != without.candidate.choices[dimension]; });
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
  if (const auto refusal = refused(candidate.scenario, trial.tolerated)) {
    rejected.push_back({candidate.label, candidate.settings, candidate.environment, refusal->rule, refusal->message});
    return std::nullopt;
  }
  if (!seen_.insert(identity(candidate.scenario)).second) {
    ++duplicates;
    return std::nullopt;
  }
  return trial;
}

std::optional<Finding> Space::refused(const Scenario& scenario, std::string& tolerated) const {
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

}  // namespace pipewright::plan
