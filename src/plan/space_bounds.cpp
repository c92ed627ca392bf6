// What bounds of a spread go by: its structures' common work, their splits, its choices of recompute; see space.hpp.
#include <algorithm>
#include <utility>

#include "pipewright/scenario/derived.hpp"
#include "space.hpp"

namespace pipewright::plan {

std::string Space::work_of(const Spread& spread) const {
  const auto& s = spread.partial.settings;
  std::string key;
  for (const auto size : {s.tensor_model_parallel_size, s.context_parallel_size, s.expert_model_parallel_size,
                          scenario::expert_tensor_parallel_size(spread.partial), s.micro_batch_size})
    key += std::to_string(size) + " ";
  key += s.sequence_parallel ? "sequence" : "";
  for (std::size_t d = 0; d < spread_; ++d)
    if (dimensions_[d].what == Decides::field || dimensions_[d].what == Decides::context)
      key += " " + spread.chosen[d].label;
  return key;
}

std::string Space::name_of_spread(const std::vector<Value>& chosen) const {
  std::string name;
  for (std::size_t d = 0; d < spread_; ++d) name += chosen[d].label + ", ";
  return name;
}

bool Space::example(const Spread& spread, Overlap overlap, const std::function<bool(const Scenario&)>& take) const {
  if (overlap != Overlap::none && !spread.partial.model.num_moe_experts) return false;
  LeftOut ignored;
  const auto interleaved_alone = [&](std::size_t dimension, const Scenario& partial) -> std::vector<Value> {
    if (overlap == Overlap::none || dimensions_[dimension].what != Decides::pipeline) return {};
    auto values = dimensions_[dimension].values(partial, ignored);
    std::erase_if(values, [](const Value& value) { return value.label == "no interleaving"; });
    return values;
  };
  return !decide(
      spread_, structural_, spread.partial, {}, ignored,
      [&](const Scenario& partial, const std::vector<Value>&) {
        return overlap_of(partial) != overlap || !take(partial);
      },
      interleaved_alone);
}

std::vector<Scenario> Space::splits(const Spread& spread, Overlap overlap) const {
  LeftOut ignored;
  std::vector<Scenario> found;
  const auto one_overlap = [&](std::size_t dimension, const Scenario& partial) -> std::vector<Value> {
    if (dimensions_[dimension].what != Decides::wgrad_delay) return {};
    for (auto& value : dimensions_[dimension].values(partial, ignored)) {
      Scenario with = partial;
      apply(value, with);
      if (overlap_of(with) == overlap) return {std::move(value)};
    }
    return {};
  };
  decide(
      spread_, structural_, spread.partial, {}, ignored,
      [&](const Scenario& partial, const std::vector<Value>&) {
        if (overlap_of(partial) == overlap) found.push_back(partial);
        return true;
      },
      one_overlap);
  return found;
}

Scenario Space::kept_as_given(const Scenario& partial) const {
  Scenario scenario = partial;
  if (searches_offload()) apply(no_offload(partial), scenario);
  return scenario;
}

std::vector<Scenario> Space::recomputed(const Scenario& partial) const {
  if (!searches_recompute()) return {with_required_environment(kept_as_given(partial))};
  LeftOut ignored;
  std::vector<Scenario> all;
  const Scenario none = kept_as_given(partial);
  bool in_full = false;
  for (const Value& value : dimensions_[recompute_].values(partial, ignored)) {
    if (value.setting("recompute_granularity") == "full" && std::exchange(in_full, true)) continue;
    all.push_back(none);
    apply(value, all.back());
    all.back() = with_required_environment(std::move(all.back()));
  }
  return all;
}

Scenario Space::none_recomputed(const Scenario& partial) const {
  Scenario none = without_work(partial);
  const auto given = kept_as_given(partial).settings;
  none.settings.fine_grained_activation_offloading = given.fine_grained_activation_offloading;
  none.settings.offload_modules = given.offload_modules;
  none.settings.cpu_offloading = given.cpu_offloading;
  return with_required_environment(std::move(none));
}

std::optional<Scenario> Space::most_offloaded(const Scenario& partial) const {
  LeftOut ignored;
  const auto values = dimensions_[offload_].values(partial, ignored);
  if (values.empty()) return partial;
  const auto whole = [](const Value& value) { return value.setting("cpu_offloading") == "true"; };
  if (std::ranges::any_of(values, whole)) return std::nullopt;
  Scenario most = partial;
  apply(values.back(), most);
  if (values.back().settings.empty() && values.size() > 1)
    apply(values[values.size() - 2], most);  // the last: as given
  return with_required_environment(std::move(most));
}

}  // namespace pipewright::plan
