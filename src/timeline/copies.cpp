#include "copies.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "pace.hpp"

namespace pipewright::timeline {
namespace {

constexpr const char* way_names[2] = {"copy_d2h", "copy_h2d"};

bool is_copy(const Label& label) {
  return label.kind == NodeKind::kernel && label.purpose == model::Purpose::offload &&
         (label.lane == Lane::d2h || label.lane == Lane::h2d);
}

double share(const Coverage& coverage, std::int64_t from, std::int64_t to) {
  return to > from ? (coverage.until(to) - coverage.until(from)) / static_cast<double>(to - from) : 0;
}

std::size_t way_of(const Label& label) { return label.lane == Lane::h2d ? 1 : 0; }

/// The most GPUs whose copies were measured together, "contention.gpus_N" and what follows; 1: none.
int measured_gpus(const profile::Profiles& profiles, const std::string& what) {
  for (const int gpus : {8, 4, 2})
    if (profiles.find_scalar("contention.gpus_" + std::to_string(gpus) + what)) return gpus;
  return 1;
}

}  // namespace

std::vector<std::string> copy_contention(const profile::Profiles& profiles) {
  std::vector<std::string> names;
  for (const std::string way : way_names)
    if (const int gpus = measured_gpus(profiles, "." + way); gpus > 1)
      names.push_back("contention.gpus_" + std::to_string(gpus) + "." + way);
  return names;
}

double copies_at_once(const profile::Profiles& profiles, bool outwards, std::int64_t gpus) {
  const std::string copy = std::string(".") + way_names[outwards ? 0 : 1];
  const int measured = measured_gpus(profiles, copy);
  if (measured == 1) return 1;
  const double slower = profiles.find_scalar("contention.gpus_" + std::to_string(measured) + copy).value_or(1);
  return 1 + (slower - 1) / (measured - 1) * static_cast<double>(gpus - 1);
}

CopyDirection copy_direction(const profile::Profiles& profiles, bool outwards) {
  const std::string copy = std::string(".") + way_names[outwards ? 0 : 1];
  const auto slower = [&](int gpus, const std::string& what) {
    return profiles.find_scalar("contention.gpus_" + std::to_string(gpus) + what).value_or(1);
  };
  CopyDirection direction;
  direction.two_way = profiles.find_scalar("contention.two_way" + copy).value_or(1);
  direction.others = copies_at_once(profiles, outwards, 2) - 1;
  // Copies both ways may have been measured on fewer GPUs.
  if (const int gpus = measured_gpus(profiles, "_two_way" + copy); gpus > 1)
    direction.opposed = (slower(gpus, "_two_way" + copy) - slower(gpus, copy) - (direction.two_way - 1)) / (gpus - 1);
  return direction;
}

std::int64_t copying_at_once(const scenario::Scenario& scenario) {
  return std::min(scenario.cluster.gpus_per_node,
                  scenario.cluster.num_gpus / scenario.settings.pipeline_model_parallel_size);
}

LeastCopies::LeastCopies(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const auto members = static_cast<double>(copying_at_once(scenario));
  // GPUs of other stages may copy at any time: what they take off at most.
  const double strangers = static_cast<double>(scenario.cluster.gpus_per_node) - members;
  for (const bool outwards : {true, false}) {
    const auto d = copy_direction(profiles, outwards);
    Way& way = outwards ? out_ : in_;
    const double any =
        1 + d.others * (members - 1) + std::min(0.0, d.others) * strangers + std::min(0.0, d.opposed) * strangers;
    way.apart = std::max(any, 1e-3);
    way.beside = std::max(any + d.two_way - 1 + d.opposed * (members - 1), 1e-3);
    const std::string family = outwards ? "copy.d2h" : "copy.h2d";
    const auto measured = [&](const profile::Profile& p) { return p.samples.contains(family); };
    if (std::ranges::none_of(profiles.all(), measured)) continue;
    way.ns_per_byte = std::numeric_limits<double>::max();
    for (std::int64_t bytes = 1 << 20; bytes <= std::int64_t{1} << 30; bytes *= 4)
      way.ns_per_byte = std::min(way.ns_per_byte, profiles.time({family, {bytes}}).ns / static_cast<double>(bytes));
  }
}

double LeastCopies::ns(double out, double in, bool apart) const {
  const double one_by_one = out_.apart * out + in_.apart * in;
  if (apart) return one_by_one;
  // For o ns both ways at once, what is done of each in them is not done apart.
  const double both = std::min(out_.beside * out, in_.beside * in),
               saved = out_.apart / out_.beside + in_.apart / in_.beside - 1;
  const double alone = std::max(std::min(out_.apart, out_.beside) * out, std::min(in_.apart, in_.beside) * in);
  return std::max(alone, one_by_one - std::max(0.0, saved) * both);
}

double LeastCopies::ns_of_bytes(double bytes) const { return ns(bytes * out_.ns_per_byte, bytes * in_.ns_per_byte); }

CopyContention::CopyContention(const scenario::Scenario& scenario, const profile::Profiles& profiles)
    : offloads_(scenario.settings.cpu_offloading || scenario.settings.fine_grained_activation_offloading),
      ranks_(static_cast<std::size_t>(scenario.settings.pipeline_model_parallel_size)),
      neighbours_(ranks_) {
  if (!offloads_) return;
  for (std::size_t way = 0; way < 2; ++way) ways_[way] = copy_direction(profiles, way == 0);
  // Ranks are laid out tp-cp-dp-pp: a stage holds consecutive GPUs.
  const auto gpus = scenario.cluster.gpus_per_node;
  const auto stage = scenario.cluster.num_gpus / static_cast<scenario::Int>(ranks_);
  members_ = static_cast<int>(copying_at_once(scenario));
  const auto host_of = [&](std::size_t rank) { return static_cast<scenario::Int>(rank) * stage / gpus; };
  for (std::size_t a = 0; a < ranks_; ++a)
    for (std::size_t b = 0; b < ranks_; ++b)
      if (a != b && stage < gpus && host_of(a) == host_of(b)) neighbours_[a].push_back(b);
}

std::vector<CopyContention::Copy> CopyContention::slowed(const Graph& graph, const Times& times, std::int64_t gap,
                                                         std::vector<double>& slower) const {
  if (!offloads_) return {};
  std::vector<Coverage> copies(2 * ranks_);
  std::vector<Copy> result;
  for (std::uint32_t node = 0; node < graph.size(); ++node) {
    const Label& label = graph.labels[node];
    if (!is_copy(label)) continue;
    result.push_back({node, 0});
    copies[2 * label.rank + way_of(label)].add(times.start[node], times.end[node]);
  }
  for (Coverage& one : copies) one.finish();
  for (std::size_t copy = 0; copy < result.size(); ++copy) {
    auto& [node, ns] = result[copy];
    const Label& label = graph.labels[node];
    settle(slower, copy, factor(label.rank, way_of(label), [&](std::size_t rank, std::size_t way) {
             return share(copies[2 * rank + way], times.start[node], times.end[node]);
           }));
    ns = gap + std::llround(static_cast<double>(graph.duration_ns[node] - gap) * slower[copy]);
  }
  return result;
}

}  // namespace pipewright::timeline
