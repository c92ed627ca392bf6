// Host time before a launch = its launch minus the launch before it, of the operations' main kernels:
//
//   P2P  P2P            R     G    C ...     A        P2P  P2P
//    |----|--- begin ---|-R---|-G--|-C-      |-- end --|----|      begin: less R's own time; end: less a call's
//     call                                              call
//
// An interval counts only where no launch in it was held up (a full launch queue, the profiler's own buffers).
#include "host_factor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "robust_statistics.hpp"

namespace pipewright::traces {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

/// Launches of a trace in the order of the host, each with the operation that it belongs to.
struct Event {
  std::uint32_t activity;
  std::size_t operation = none;
  bool transfer = false;
};

std::vector<Event> events_of(const Trace& trace, const Mapping& mapping) {
  std::vector<Event> events(trace.activities.size());
  for (std::uint32_t i = 0; i < events.size(); ++i) events[i].activity = i;
  for (std::size_t o = 0; o < mapping.operations.size(); ++o) {
    for (const auto a : mapping.operations[o].activities) events[a].operation = o;
  }
  for (const auto a : mapping.pipeline) events[a].transfer = true;
  std::erase_if(events, [&](const Event& e) { return !trace.activities[e.activity].launch.known(); });
  std::stable_sort(events.begin(), events.end(), [&](const Event& a, const Event& b) {
    return trace.activities[a.activity].launch.start < trace.activities[b.activity].launch.start;
  });
  return events;
}

/// The pass that is launched on the thread of a direction: recomputed kernels are the forward pass's code.
const char* direction_of(const Mapped& operation) {
  switch (operation.pattern->pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward:
    case Pass::weight_gradient:
      return operation.expected->kernel->recompute ? "recompute" : "backward";
    case Pass::step:
      return "optimizer";
  }
  throw InternalError("pass out of range");
}

/// Under which a host cost is kept: what the model asks for.
/// Of patterns whose operations are the same (twins in all but their shapes) one; of others by one name, several.
std::string signature(const Pattern& pattern) {
  std::string result = pattern.name;
  for (const auto& e : pattern.compute) result += " " + e.operation;
  return result;
}

std::string cost_name(const Expected& expected) {
  const auto& family = expected.kernel->key.family;
  if (!expected.kernel->host_family.empty()) return expected.kernel->host_family;
  if (family.starts_with("attention.")) return family.substr(0, family.rfind(".bf16"));
  return family.starts_with("moe.") ? family : expected.operation;
}

constexpr std::size_t beyond_compute = 1000;  // positions of operations beside the compute stream

}  // namespace

void HostCosts::add(const Trace& trace, const Mapping& mapping) {
  const auto events = events_of(trace, mapping);
  if (events.empty()) return;
  const auto launch = [&](std::uint32_t activity) -> const Launch& { return trace.activities[activity].launch; };
  std::vector<double> calls;
  for (const auto& e : events) calls.push_back(ns_to_us(launch(e.activity).duration));
  const double held_up = 10 * median(calls);  // a free launch takes a few us, a blocked one hundreds

  std::size_t last_operation = none;  // whose launches came last, not counting unmapped ones
  std::uint32_t last_main = 0;        // the launch from which the next interval counts
  bool last_was_transfer = false, any = false, clean = true, unmapped_between = false;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& e = events[i];
    const bool free = ns_to_us(launch(e.activity).duration) < held_up;
    if (e.transfer) {
      const double interval = any ? ns_to_us(launch(e.activity).start - launch(last_main).start) : 0;
      if (any && clean && last_was_transfer) transfer_us_.push_back(interval);
      if (any && clean && !last_was_transfer && last_operation != none) {
        end_[direction_of(mapping.operations[last_operation])].push_back(interval);
      }
      last_was_transfer = any = true;
      last_operation = none;
      last_main = e.activity;
      clean = free;
      unmapped_between = false;
      continue;
    }
    if (e.operation == none) {
      clean = clean && free;
      unmapped_between = true;
      continue;
    }
    const Mapped& operation = mapping.operations[e.operation];
    if (operation.expected->kernel->graphed || is_launched_among_others(operation.expected->operation)) {
      unmapped_between = true;
      continue;
    }
    if (e.activity != operation.main) {  // a helper
      clean = clean && free;
      continue;
    }
    const bool counts = operation.in_order || operation.expected->operation == "copy.d2h";
    if (any && clean && counts && !operation.expected->after_wait) {
      const double interval = ns_to_us(launch(e.activity).start - launch(last_main).start);
      const std::string direction = direction_of(operation);
      if (last_was_transfer) {
        begin_[direction].push_back(interval);
        first_operation_[direction] = operation.expected->operation;
      } else if (!unmapped_between && last_operation != none &&
                 direction == direction_of(mapping.operations[last_operation])) {
        const auto& list = operation.in_order ? operation.pattern->compute : operation.pattern->elsewhere;
        const auto at = static_cast<std::size_t>(operation.expected - list.data());
        auto& position = positions_[{signature(*operation.pattern), operation.in_order ? at : at + beyond_compute}];
        position.direction = direction;
        position.operation = cost_name(*operation.expected);
        position.enters_node = operation.pattern->node && operation.in_order && at == 0;
        position.us.push_back(interval);
        add_launches(position, trace, operation);
      }
    }
    any = true;
    last_was_transfer = unmapped_between = false;
    last_operation = e.operation;
    last_main = e.activity;
    clean = free;
  }

  // Idle time of the stream between two operations, the second of which had been launched long before.
  constexpr std::int64_t ahead = 20000, most_gap = 20000;  // ns
  const Mapped* before = nullptr;
  for (const auto& operation : mapping.operations) {
    const Activity& first = trace.activities[operation.activities.front()];
    if (first.stream != mapping.compute_stream) break;
    if (before != nullptr && first.launch.known()) {
      const Activity& last = trace.activities[before->activities.back()];
      const std::int64_t gap = first.start - last.end();
      if (first.launch.start + first.launch.duration + ahead < last.end() && gap >= 0 && gap < most_gap) {
        gap_us_.push_back(ns_to_us(gap));
      }
    }
    before = &operation;
  }
}

/// Grouped GEMMs and routers: as many launches as there are experts, or operators.
void HostCosts::add_launches(Position& position, const Trace& trace, const Mapped& operation) {
  if (operation.expected->kernel->launches < 4 || operation.activities.size() < 4) return;
  std::int64_t first = INT64_MAX, last = INT64_MIN;
  for (const auto a : operation.activities) {
    first = std::min(first, trace.activities[a].launch.start);
    last = std::max(last, trace.activities[a].launch.start);
  }
  const double count = static_cast<double>(operation.activities.size());
  position.launches = operation.expected->kernel->launches;
  position.each.push_back(ns_to_us(last - first) / (count - 1) * count / position.launches);
}

void HostCosts::Sum::add(const Position& position, double less) {
  direction = position.direction;
  const double of_each = position.each.empty() ? 0 : median(position.each);
  each += of_each;
  us += std::max(median(position.us) - less - of_each * position.launches, 0.0);
  deviation += traces::deviation(position.us);
  ++positions;
}

/// Costs by family; `nodes`: by direction, what entering a node of expert-parallel overlap costs. The first operation
/// of a node shows it, less what the same family costs elsewhere; a family that is always the first is corrected by it.
std::map<std::string, HostCosts::Sum> HostCosts::families(std::map<std::string, Sum>& nodes) const {
  std::map<std::string, Sum> result;
  std::vector<const Position*> first;
  const auto prefix = [](const Position& position) { return "host." + position.direction + "."; };
  for (const auto& [where, position] : positions_) {
    // The optimizer is a few long runs of launches, far ahead of the GPU: one instance each tells nothing.
    if (position.direction == "recompute" || position.direction == "optimizer") continue;
    if (position.enters_node) {
      first.push_back(&position);
      continue;
    }
    result[prefix(position) + position.operation].add(position);
    const bool grouped = position.operation.starts_with("gemm.grouped");
    if (grouped) result[prefix(position) + "gemm.grouped"].add(position);
    if (!grouped && position.operation.starts_with("gemm")) result[prefix(position) + "gemm"].add(position);
  }
  const auto known = result;
  const auto node_name = [](const Position& position) { return "host." + position.direction + "_node"; };
  for (const auto* position : first) {
    const auto same = known.find(prefix(*position) + position->operation);
    if (same == known.end()) continue;
    auto& node = nodes[node_name(*position)];
    node.add(*position, same->second.us / same->second.positions);
    node.each = 0;
  }
  for (const auto* position : first) {
    const auto name = prefix(*position) + position->operation;
    const auto node = nodes.find(node_name(*position));
    if (known.contains(name)) continue;
    result[name].add(*position, node == nodes.end() ? 0 : node->second.us / node->second.positions);
  }
  return result;
}

double ProfilerCost::of(const std::string& direction) const {
  // The host takes this much longer forward beside backward than a trace with operators says: nine traces by CUDA's
  // records alone against one with operators, 1.42 (docs/hosts.md).
  constexpr double forward_beside_backward = 1.42;
  if (!operators_) return mean;
  if (direction == "forward") return mean * (1 + forward_beside_backward) / (2 * forward_beside_backward);
  if (direction == "backward") return mean * (1 + forward_beside_backward) / 2;
  return mean;
}

std::map<std::string, profile::Scalar> HostCosts::scalars(const ProfilerCost& profiler,
                                                          const std::string& source) const {
  std::map<std::string, profile::Scalar> result;
  const auto set = [&](const std::string& name, double value, double one_sigma, const std::string& from) {
    if (value > 0) result[name + "_us"] = {value, one_sigma / value, profile::Origin::measured, from};
  };
  std::map<std::string, Sum> costs;
  const auto by_family = families(costs);
  costs.insert(by_family.begin(), by_family.end());
  for (const auto& [name, sum] : costs) {
    const double all = sum.positions * profiler.of(sum.direction);
    set(name, std::max(sum.us, 0.01 * sum.positions) / all, sum.deviation / all, source);
    if (sum.each > 0) set(name + "_each", sum.each / all, 0, source);
  }
  const double call = median(transfer_us_) / profiler.mean;
  set("host.p2p_call", call, deviation(transfer_us_) / profiler.mean, source);
  for (const auto& [direction, intervals] : begin_) {
    const auto own = result.find("host." + direction + "." + first_operation_.at(direction) + "_us");
    if (own == result.end() || direction == "optimizer") continue;
    const double overhead = profiler.of(direction);
    set("host." + direction + "_begin", median(intervals) / overhead - own->second.value,
        deviation(intervals) / overhead, source);
  }
  for (const auto& [direction, intervals] : end_) {
    if (call <= 0 || direction == "optimizer") continue;
    const double overhead = profiler.of(direction);
    set("host." + direction + "_end", median(intervals) / overhead - call, deviation(intervals) / overhead, source);
  }
  set("host.kernel_gap", median(gap_us_), deviation(gap_us_),
      "idle time of the compute stream between operations that had been launched before; as traced");
  return result;
}

std::optional<double> HostCosts::pace(const profile::Profiles& reference, const ProfilerCost& profiler) const {
  static const char* const dense[] = {"add",
                                      "attention.forward",
                                      "attention.backward",
                                      "copy.strided",
                                      "cat",
                                      "gemm.bf16.tn",
                                      "gemm.bf16.nn",
                                      "rope.forward",
                                      "rope.backward",
                                      "swiglu.forward",
                                      "swiglu.backward",
                                      "rmsnorm.forward",
                                      "rmsnorm.backward"};
  constexpr int fewest = 3;    // of fewer, one odd operation decides
  constexpr double odd = 1.6;  // times the median of all: slow stretches of a step make no operation differ so
  constexpr double most = 20;  // times its median: a collector's pause or a compilation, no host's pace
  double sum = 0;
  for (const std::string direction : {"forward", "backward"}) {
    std::map<std::string, std::pair<double, double>> by_operation;  // sum and count of means of positions
    for (const auto& [where, position] : positions_) {
      if (position.direction != direction || position.enters_node || position.us.empty()) continue;
      const double limit = most * median(position.us);
      double total = 0;
      for (const double us : position.us) total += std::min(us, limit);
      auto& [means, count] = by_operation[position.operation];
      means += total / static_cast<double>(position.us.size());
      ++count;
    }
    std::vector<double> ratios;
    for (const char* operation : dense) {
      const auto here = by_operation.find(operation);
      const auto known = reference.find_scalar("host." + direction + "." + operation + "_us");
      if (here == by_operation.end() || !known || !(*known > 0)) continue;
      ratios.push_back(here->second.first / here->second.second / profiler.of(direction) / *known);
    }
    if (std::ssize(ratios) < fewest) return std::nullopt;
    // One operation may stand in other Python than the reference host's: latent attention's copies, norms of heads.
    const double middle = median(ratios);
    std::erase_if(ratios, [&](double ratio) { return ratio > odd * middle || ratio * odd < middle; });
    double logs = 0;
    for (const double ratio : ratios) logs += std::log(ratio);
    sum += std::exp(logs / static_cast<double>(ratios.size()));
  }
  return sum / 2;
}

}  // namespace pipewright::traces
