#include "plausible.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "machine_share.hpp"
#include "robust_statistics.hpp"

namespace pipewright::traces {
namespace {

/// Of the GPU's data sheet; of a GPU without one that of the fastest there is. 0: nothing is published of the format.
double peak_tflops(const std::string& family, const std::string& device) {
  const auto of = [&](const profile::DataSheet& sheet) {
    if (family.find("bf16") != std::string::npos && family.find("fp8") == std::string::npos)
      return sheet.bf16_tflops.value;
    return family.find("fp8") != std::string::npos ? sheet.fp8_tflops.value : 0;
  };
  if (const auto* sheet = profile::find_data_sheet(device)) return of(*sheet);
  double most = 0;
  for (const auto& sheet : profile::data_sheets()) most = std::max(most, of(sheet));
  return most;
}

int turns_of(const std::vector<bool>& forward) {
  int turns = 0;
  for (std::size_t i = 1; i < forward.size(); ++i) turns += forward[i - 1] && !forward[i];
  return turns;
}

}  // namespace

void refuse_another_schedule(const Trace& trace, const Mapping& mapping, const schedule::Program& program, int pp_rank,
                             std::size_t steps) {
  using schedule::Kind;
  std::vector<bool> ran, planned;
  for (const auto* pattern : mapping.instances)
    if (pattern->pass == Pass::forward || pattern->pass == Pass::backward)
      ran.push_back(pattern->pass == Pass::forward);
  for (const auto& i : program.ranks.at(static_cast<std::size_t>(pp_rank)).instructions)
    if (i.kind == Kind::forward || i.kind == Kind::backward) planned.push_back(i.kind == Kind::forward);
  // Passes that were not recognised (copies between their kernels) leave no order to compare.
  if (2 * std::ranges::count(ran, true) != static_cast<std::ptrdiff_t>(ran.size())) return;
  const int found = turns_of(ran), expected = turns_of(planned) * static_cast<int>(steps);
  const int tolerated = std::max(1, expected / 10);  // a layer that was not recognised joins its neighbours
  if (std::abs(found - expected) <= tolerated) return;
  throw UsageError(
      {trace.file, 0}, {},
      fmt::format("the step turns {} times from forward to backward, the scenario's schedule {} times: the "
                  "trace is of another scenario (interleaving, microbatches)",
                  found, expected));
}

void refuse_mixed_runs(const std::vector<Trace>& traces) {
  constexpr std::int64_t clocks_apart = 60'000'000'000;  // ns; clocks of hosts that NTP sets differ by less
  const auto span = [](const Trace& t) {
    std::int64_t last = 0;
    for (const auto& a : t.activities) last = std::max(last, a.end());
    return std::pair(t.began, t.began + last);
  };
  for (std::size_t i = 1; i < traces.size(); ++i) {
    const Trace &first = traces.front(), &other = traces[i];
    const auto refuse = [&](const std::string& key, const std::string& here, const std::string& there) {
      return UsageError({other.file, 0}, key, fmt::format("{}, {} {}: of different runs", here, first.file, there));
    };
    if (!first.device.empty() && !other.device.empty() && first.device != other.device)
      throw refuse({}, "ran on " + other.device, "on " + first.device);
    if (first.world_size > 0 && other.world_size > 0 && first.world_size != other.world_size)
      throw refuse("distributedInfo.world_size", fmt::format("{} ranks", other.world_size),
                   fmt::format("{}", first.world_size));
    for (const auto& [name, version] : other.versions)
      if (const auto same = first.versions.find(name); same != first.versions.end() && same->second != version)
        throw refuse({}, name + " " + version, same->second);
    if (!first.steps.empty() && !other.steps.empty() && first.steps != other.steps)
      throw refuse({}, "recorded " + other.steps.front(), first.steps.front());
    if (first.began == 0 || other.began == 0) continue;
    const auto a = span(first), b = span(other);
    const auto apart = std::max(a.first - b.second, b.first - a.second);
    if (apart > clocks_apart)
      throw refuse({}, fmt::format("recorded {:.0f} s apart from the others", ns_to_us(apart) / 1e6), "is the first");
  }
}

void refuse_other_groups(const Trace& trace, const scenario::Scenario& scenario) {
  const auto& o = scenario.settings;
  // parallel_state.py: group_desc of each. A process that built several layouts has groups of several sizes.
  const std::pair<const char*, scenario::Int> sizes[] = {
      {"TENSOR_MODEL_PARALLEL_GROUP", o.tensor_model_parallel_size},
      {"PIPELINE_MODEL_PARALLEL_GROUP", o.pipeline_model_parallel_size},
      {"CONTEXT_PARALLEL_GROUP", o.context_parallel_size},
      {"EXPERT_MODEL_PARALLEL_GROUP", o.expert_model_parallel_size}};
  for (const auto& [name, size] : sizes) {
    const auto found = trace.groups.find(name);
    if (found == trace.groups.end() || std::ranges::find(found->second, size) != found->second.end()) continue;
    throw UsageError({trace.file, 0}, "distributedInfo.pg_config",
                     fmt::format("{} of {} ranks; the scenario has {}", name, found->second.front(), size));
  }
}

void refuse_other_runs(const std::vector<std::pair<std::string, double>>& spans_us) {
  constexpr double most = 1.15;  // ranks that leave a step early; 1.04 was seen
  const auto by_span = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least, longest] = std::minmax_element(spans_us.begin(), spans_us.end(), by_span);
  if (least == spans_us.end() || longest->second <= most * least->second) return;
  throw UsageError({longest->first, 0}, {},
                   fmt::format("its step took {:.1f} ms, that of {} {:.1f} ms: they are of different runs",
                               longest->second / 1e3, least->first, least->second / 1e3));
}

void refuse_impossible_products(Import& result, const profile::Profiles* lone) {
  const std::string& device = lone != nullptr ? lone->device().name : result.profile.device.name;
  constexpr int fewest = 4;                  // of fewer, chance decides
  constexpr double faster = 1.1;             // clocks above the one that the peak is stated for
  constexpr double large = 1e11;             // FLOP: below, a product may wait for its launch
  constexpr double slowest = 0.02;           // of the peak
  constexpr double least = 0.7, most = 1.5;  // over lone times: chips, clocks and contention stay within
  std::vector<std::pair<double, double>> of_peak, of_lone;
  const auto refuse = [&](const std::string& found) {
    return UsageError({result.ranks.front().file, 0}, {},
                      found + ": the trace is of another model, or its times are not in microseconds");
  };
  std::vector<std::string> impossible;
  for (const auto& k : result.keys) {
    const auto& family = profile::family(k.key.family);
    if (family.load != profile::Load::matrix) continue;
    const double peak = peak_tflops(k.key.family, device), flop = family.flop(k.key.dims);
    const double share = peak > 0 ? flop / k.situ_ns / 1e3 / peak : 0;
    if (flop > large && share > 0) of_peak.emplace_back(share, k.total_us);
    if (share > faster) {
      std::erase_if(result.profile.samples[k.key.family], [&](const auto& s) { return s.dims == k.key.dims; });
      impossible.push_back(
          fmt::format("left out {}: {:.1f} times the peak of the GPU, so others' kernels were taken "
                      "for it",
                      shape(k.key), share));
    }
    const auto alone = lone != nullptr && k.sample.count >= fewest ? lone_time(k.key, *lone) : std::nullopt;
    if (alone && alone->origin <= profile::Origin::interpolated)
      of_lone.emplace_back(k.sample.ns / alone->ns, k.total_us);
  }
  const auto share = weighted_median(std::move(of_peak)), ratio = weighted_median(std::move(of_lone));
  if (share && *share > faster)
    throw refuse(fmt::format("matrix products run at {:.1f} times the peak of the GPU", *share));
  if (share && *share < slowest)
    throw refuse(fmt::format("large matrix products run at {:.2g} % of the GPU's peak", 100 * *share));
  if (ratio && (*ratio < least || *ratio > most))
    throw refuse(
        fmt::format("matrix products take {:.2f} times as long as alone by profile {}, where clocks and "
                    "contention explain {} to {}",
                    *ratio, lone->first().name, least, most));
  result.notes.insert(result.notes.end(), impossible.begin(), impossible.end());
  std::erase_if(result.profile.samples, [](const auto& family) { return family.second.empty(); });
}

}  // namespace pipewright::traces
