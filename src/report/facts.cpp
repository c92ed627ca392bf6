// Kernels' facts and hosts' time, see facts.hpp.
#include "facts.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace pipewright::report {

using timeline::Label;
using timeline::Lane;
using timeline::NodeKind;

const timeline::Price* price_of(const predict::Run& run, const Label& label) {
  const auto& prices = run.timeline.prices;
  const auto in = [](const auto& lists, std::size_t i) { return i < lists.size() ? &lists[i] : nullptr; };
  const timeline::Prices::List* list = nullptr;
  if (label.piece() != Label::none)
    list = in(prices.pieces, label.piece());
  else if (label.phase != 0)
    list = in(label.phase == 1 ? prices.finalize : prices.optimizer, label.rank);
  else if (const auto* chunks =
               in(label.lane == Lane::parameter ? prices.parameter_gather : prices.gradient_sync, label.rank))
    list = in(*chunks, label.chunk());
  return list == nullptr ? nullptr : in(*list, label.kernel());
}

namespace {

const profile::Family* family_of(const profile::Key& key) {
  const auto* family = key.family.empty() ? nullptr : profile::find_family(key.family);
  return family != nullptr && family->dims.size() == key.dims.size() ? family : nullptr;
}

}  // namespace

std::string shape_text(const profile::Key& key) {
  const auto* family = family_of(key);
  std::string text;
  for (std::size_t i = 0; i < key.dims.size(); ++i)
    text += fmt::format("{}{}{}", i == 0 ? "" : " ", family != nullptr ? family->dims[i] + "=" : "", key.dims[i]);
  return text;
}

std::optional<double> bytes_of(const profile::Key& key) {
  const auto* family = family_of(key);
  return family != nullptr ? std::optional(family->bytes(key.dims)) : std::nullopt;
}

std::optional<double> flop_of(const profile::Key& key) {
  const auto* family = family_of(key);
  return family != nullptr ? std::optional(family->flop(key.dims)) : std::nullopt;
}

std::vector<HostStay> host_stays(const predict::Run& run, const Nodes& nodes, int rank) {
  const auto& graph = run.timeline.graph;
  const auto& times = run.timeline.times;
  std::vector<HostStay> moments;
  for (const auto node : nodes.of_rank(rank)) {
    const Label& label = graph.labels[node];
    std::int64_t launched = -1;  // the last line of host code before it, counted from a host node
    for (const timeline::Edge edge : graph.edges.of(node)) {
      const Label& from = graph.labels[edge.from];
      if (from.lane == Lane::host && from.rank == label.rank)
        launched = std::max(launched, times.end[edge.from] + edge.lag_ns);
    }
    if (launched < 0) continue;
    const bool waits = label.kind == NodeKind::host && times.start[node] > launched;
    if (label.kind != NodeKind::host || waits)
      moments.push_back({launched, waits ? times.start[node] : launched, label, waits});
  }
  std::stable_sort(moments.begin(), moments.end(), [](const auto& a, const auto& b) { return a.from < b.from; });
  std::vector<HostStay> merged;
  for (const HostStay& moment : moments) {
    const bool same = !merged.empty() && !moment.synchronises && !merged.back().synchronises &&
                      merged.back().label.instruction == moment.label.instruction &&
                      merged.back().label.phase == moment.label.phase;
    if (same)
      merged.back().to = moment.to;
    else
      merged.push_back(moment);
  }
  return merged;
}

}  // namespace pipewright::report
