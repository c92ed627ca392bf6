#include "space.hpp"

#include <algorithm>
#include <tuple>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::plan {

namespace {

/// Variables that change reserved memory and nothing else.
constexpr const char* allocator_variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"};

constexpr const char* share = "activation_offload_fraction";

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

Identity identity(const Scenario& scenario) {
  Scenario rest = without_idle_settings(scenario);
  std::string allocator;
  for (const auto* variable : allocator_variables) {
    const auto at = rest.environment.find(variable);
    if (at == rest.environment.end()) continue;
    allocator += at->first + "=" + at->second + "\n";
    rest.environment.erase(at);
  }
  Identity found{scenario::write(rest), {}};
  found.whole = found.of_time + allocator;
  return found;
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

namespace {

void without_recompute(scenario::Settings& s) {
  s.recompute_granularity.reset();
  s.recompute_method.reset();
  s.recompute_num_layers.reset();
  s.recompute_modules.clear();
  s.distribute_saved_activations = false;
}

void without_moves(scenario::Settings& s) {
  s.fine_grained_activation_offloading = s.cpu_offloading = false;
  s.offload_modules.clear();
}

}  // namespace

Scenario Space::without_work(Scenario scenario) {
  without_recompute(scenario.settings);
  without_moves(scenario.settings);
  return with_required_environment(std::move(scenario));
}

Scenario Space::bare(const Scenario& partial) const {
  Scenario scenario = partial;
  if (recompute_ < dimensions_.size()) without_recompute(scenario.settings);
  if (offload_ < dimensions_.size()) without_moves(scenario.settings);
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
  while (spread_ < dimensions_.size() && dimensions_[spread_].what < Decides::pipeline) ++spread_;
  structural_ = spread_;
  while (structural_ < dimensions_.size() && plan::structural(dimensions_[structural_].what)) ++structural_;
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
  given_ = identity(trial->candidate.scenario).whole;
  trial->given = true;
  return trial;
}

std::vector<Spread> Space::spreads() {
  std::vector<Spread> all;
  decide(0, spread_, base_, {}, left_out_, [&](const Scenario& partial, const std::vector<Value>& chosen) {
    all.push_back({partial, chosen, label_of(chosen), 1, 1});
    return true;
  });
  // How many structures there are depends on the pipeline, its microbatches and on whether experts are spread.
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> sizes;
  for (Spread& spread : all) {
    const auto& s = spread.partial.settings;
    const auto pp = s.pipeline_model_parallel_size, m = scenario::num_microbatches(spread.partial);
    std::string key = std::to_string(pp) + (s.expert_model_parallel_size > 1 ? " experts " : " ");
    // Groups of N = PP and twice that: their remainders, and whether there are enough microbatches.
    key += std::to_string(s.microbatch_group_size_per_vp_stage || m < 2 * pp ? m : 2 * pp + m % (2 * pp));
    for (std::size_t d = 0; d < spread_; ++d) {
      if (dimensions_[d].what == Decides::field) key += " " + spread.chosen[d].label;
      if (dimensions_[d].what == Decides::parallelism && spread.chosen[d].settings.empty()) key += " given";
    }
    auto [at, fresh] = sizes.try_emplace(key);
    if (fresh) at->second = size_of_spread(spread.partial);
    std::tie(spread.structures, spread.holds) = at->second;
  }
  return all;
}

std::pair<std::int64_t, std::int64_t> Space::size_of_spread(const Scenario& partial) const {
  std::pair<std::int64_t, std::int64_t> size{0, 0};
  LeftOut ignored;
  decide(spread_, structural_, partial, {}, ignored, [&](const Scenario& decided, const std::vector<Value>&) {
    ++size.first;
    size.second += size_of(decided);
    return true;
  });
  return size;
}

Space::Opened Space::open(const Spread& spread) const {
  Opened opened;
  decide(spread_, structural_, spread.partial, spread.chosen, opened.left_out,
         [&](const Scenario& partial, const std::vector<Value>& chosen) {
           const auto holds = size_of(partial);
           // One rejection for all that it would hold.
           const auto reject = [&](std::int64_t& count, const std::string& rule, const std::string& message) {
             count += holds;
             Assignments settings, environment;
             for (const auto& value : chosen) merge(settings, value.settings), merge(environment, value.environment);
             opened.rejected.push_back({label_of(chosen), settings, environment, rule, message});
             return true;
           };
           if (const auto refusal = refused(bare(partial), structural_ < dimensions_.size()))
             return reject(opened.illegal, refusal->rule, refusal->message);
           if (const auto missing = not_modelled_of(partial); !missing.empty())
             return reject(opened.not_modelled, "model", missing);
           opened.structures.push_back({partial, chosen, label_of(chosen), holds});
           return true;
         });
  return opened;
}

void Space::add(Opened& opened) {
  enumerated += opened.illegal + opened.not_modelled;
  illegal += opened.illegal;
  not_modelled += opened.not_modelled;
  std::ranges::move(opened.rejected, std::back_inserter(rejected));
  for (auto& note : opened.left_out.notes)
    if (std::ranges::find(left_out_.notes, note) == left_out_.notes.end()) left_out_.notes.push_back(std::move(note));
}

std::vector<Structure> Space::structures() {
  std::vector<Structure> all;
  for (const Spread& spread : spreads()) {
    auto opened = open(spread);
    add(opened);
    std::ranges::move(opened.structures, std::back_inserter(all));
  }
  return all;
}

bool Space::same_spread(const Structure& a, const Structure& b) const {
  for (std::size_t d = 0; d < spread_; ++d)
    if (a.chosen[d].label != b.chosen[d].label) return false;
  return true;
}

/// What recompute, offload and allocator leave open depends on little more than these.
std::int64_t Space::size_of(const Scenario& partial) const {
  const auto& s = partial.settings;
  const auto key = std::to_string(layers_per_chunk(partial)) + (s.overlap_moe_expert_parallel_comm ? " overlap" : "") +
                   (s.delay_wgrad_compute ? " delay" : "") + (s.pipeline_model_parallel_size > 1 ? " pipeline" : "") +
                   s.cuda_graph_impl;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto at = sizes_.find(key); at != sizes_.end()) return at->second;
  }
  LeftOut ignored;
  // What may be offloaded depends on whether layers are recomputed in full, in parts or not.
  std::map<std::string, std::int64_t> sizes;
  const std::function<std::int64_t(std::size_t, const Scenario&)> below = [&](std::size_t d, const Scenario& at) {
    if (d == dimensions_.size()) return std::int64_t{1};
    const auto values = dimensions_[d].values(at, ignored);
    if (d != recompute_) return std::max<std::int64_t>(1, std::ssize(values)) * below(d + 1, at);
    std::int64_t all = 0;
    for (const Value& value : values) {
      Scenario with = at;
      apply(value, with);
      const auto [size, fresh] = sizes.try_emplace(with.settings.recompute_granularity.value_or(""));
      if (fresh) size->second = below(d + 1, with);
      all += size->second;
    }
    return all;
  };
  const auto size = below(structural_, partial);
  const std::scoped_lock lock(mutex_);
  return sizes_.emplace(key, size).first->second;
}

std::vector<Trial> Space::narrowed(const Structure& structure, const Narrow& narrow) {
  std::vector<Trial> trials;
  decide(
      structural_, dimensions_.size(), structure.partial, structure.chosen, left_out_,
      [&](const Scenario& decided, const std::vector<Value>& chosen) {
        if (auto trial = finished(decided, chosen)) trials.push_back(std::move(*trial));
        return true;
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
      if (steps[j].value.setting("recompute_modules") == modules &&
          steps[j].value.setting("recompute_method") == "none")
        return j;
    return std::nullopt;
  };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto& value = steps[i].value;
    if (value.settings.empty()) continue;  // as given: related to nothing
    const auto method = value.setting("recompute_method");
    // One layer more than the last; uniform replays all of them, whatever the groups, of which none is always fastest.
    const bool first = value.setting("recompute_num_layers") == "1";
    if (method == "none")
      steps[i].after = find(but_last(value.setting("recompute_modules")), i);
    else if (method == "block")
      steps[i].after = first ? 0 : i - 1;
    else
      steps[i].after = first ? i - 1 : steps[i - 1].after;
  }
  return steps;
}

Steps Space::offload_steps(const Trial& without) {
  std::vector<Step> steps;
  for (auto& value : dimensions_[offload_].values(without.candidate.scenario, left_out_))
    steps.push_back({std::move(value), {}});
  if (!steps.empty()) steps.erase(steps.begin());  // nothing is offloaded: the candidate itself
  const auto find = [&](const std::string& modules, const std::string& fraction, std::size_t before) {
    std::optional<std::size_t> found;
    for (std::size_t j = 0; j < before; ++j)
      if (steps[j].value.setting("offload_modules") == modules && steps[j].value.setting(share) == fraction) found = j;
    return found;
  };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto &value = steps[i].value, &before = steps[i - 1].value;
    if (value.settings.empty()) continue;
    const auto modules = value.setting("offload_modules");
    const bool layers = value.setting("cpu_offloading") == "true";
    if (layers && before.setting("cpu_offloading") != "true") continue;
    // More layers, a larger share of the same modules, or one module more.
    if (layers || before.setting("offload_modules") == modules)
      steps[i].after = i - 1;
    else
      steps[i].after = find(but_last(modules), value.setting(share), i);
  }
  const auto same = std::ranges::find_if(offload_choices_, [&](const Steps& others) { return *others == steps; });
  if (same != offload_choices_.end()) return *same;
  return offload_choices_.emplace_back(std::make_shared<const std::vector<Step>>(std::move(steps)));
}

std::vector<Trial> Space::without_offload(const Structure& structure, const Step& step) {
  return narrowed(structure, [&](std::size_t dimension, const Scenario& partial) -> std::vector<Value> {
    if (dimension == recompute_) return {step.value};
    if (dimension == offload_) return {no_offload(partial)};
    return {};
  });
}

std::vector<Trial> Space::with_offload(const Structure& structure, const Step& recompute, const Step& offload) {
  return narrowed(structure, [&](std::size_t dimension, const Scenario& partial) -> std::vector<Value> {
    if (dimension == recompute_) return {recompute.value};
    if (dimension == offload_) return {instead_of_layers(offload.value, partial)};
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
  if (const auto refusal = refused(candidate.scenario)) {
    ++illegal;
    rejected.push_back({candidate.label, candidate.settings, candidate.environment, refusal->rule, refusal->message});
    return std::nullopt;
  }
  auto [of_time, same] = identity(candidate.scenario);
  trial.of_time = std::move(of_time);
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

/// Recompute and offload add to what is not modelled and take nothing of it away: what is refused without them, and
/// whatever the allocator's variables say, is refused with them.
std::string Space::not_modelled_of(const Scenario& partial) const {
  auto without = bare(partial);
  std::erase_if(without.environment, [](const auto& variable) { return variable.first.starts_with("PYTORCH_"); });
  try {
    scenario::refuse_unmodelled(without);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

/// `structural`: by what does not change with the choices below a structure.
std::optional<Finding> Space::refused(const Scenario& scenario, bool structural) const {
  for (const auto& rule : all_rules()) {
    if (rule.severity != Severity::violation || (structural && !judges_structures(rule)) || !applies(rule, scenario))
      continue;
    return finding(rule, scenario);
  }
  try {
    scenario::check(scenario);
  } catch (const UsageError& error) {
    return Finding{"scenario", Severity::violation, {error.key()}, error.message(), "", ""};
  }
  return std::nullopt;
}

}  // namespace pipewright::plan
