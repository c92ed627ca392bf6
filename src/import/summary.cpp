// Busy and exposed time by kind: unions of intervals, and what no compute kernel covers.
#include <algorithm>
#include <set>

#include "pipewright/import.hpp"

namespace pipewright::traces {
namespace {

using Interval = std::pair<std::int64_t, std::int64_t>;

/// Disjoint, ascending. Input ascending by start.
std::vector<Interval> united(const std::vector<Interval>& intervals) {
  std::vector<Interval> result;
  for (const auto& [start, end] : intervals) {
    if (!result.empty() && start <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(start, end);
    }
  }
  return result;
}

std::int64_t length(const std::vector<Interval>& intervals) {
  std::int64_t total = 0;
  for (const auto& [start, end] : intervals) total += end - start;
  return total;
}

std::int64_t overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::int64_t total = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    total += std::max<std::int64_t>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    a[i].second < b[j].second ? ++i : ++j;
  }
  return total;
}

}  // namespace

Exchanges exchanges_of(const scenario::Scenario& scenario) {
  return {scenario.settings.expert_model_parallel_size > 1, scenario.settings.pipeline_model_parallel_size > 1};
}

std::vector<std::string> kinds(const Trace& trace, Exchanges exchanges) {
  std::vector<bool> nccl, exchange;
  for (const auto& name : trace.names) {
    nccl.push_back(name.find("ncclDevKernel") != std::string::npos || name.starts_with("ncclKernel") ||
                   name.find("userbuffers") != std::string::npos || name.starts_with("Memcpy PtoP"));
    exchange.push_back(nccl.back() && name.find("SendRecv") != std::string::npos);
  }
  std::set<std::int64_t> computing;  // streams
  for (const auto& a : trace.activities) {
    if (a.engine == Engine::kernel && !nccl[a.name]) computing.insert(a.stream);
  }
  std::vector<std::string> result;
  result.reserve(trace.activities.size());
  for (const auto& a : trace.activities) {
    const bool all_to_all =
        exchange[a.name] && (a.exchange == Exchange::all_to_all ||
                             (a.exchange == Exchange::unknown && exchanges.experts && computing.contains(a.stream)));
    result.emplace_back(all_to_all                               ? "ep"
                        : exchange[a.name] && exchanges.pipeline ? "p2p"
                        : nccl[a.name]                           ? "coll"
                        : a.engine == Engine::d2h                ? "d2h"
                        : a.engine == Engine::h2d                ? "h2d"
                                                                 : "comp");
  }
  return result;
}

scenario::TraceSummary summarise(const Trace& trace, Exchanges exchanges) {
  const auto kind = kinds(trace, exchanges);
  std::map<std::string, std::vector<Interval>> by_kind;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < trace.activities.size(); ++i) {
    const auto& a = trace.activities[i];
    by_kind[kind[i]].emplace_back(a.start, a.end());
    last = std::max(last, a.end());
  }
  for (auto& [name, intervals] : by_kind) intervals = united(intervals);
  scenario::TraceSummary summary;
  summary.span_us = ns_to_us(last);
  for (const auto& [name, intervals] : by_kind) {
    const std::int64_t busy = length(intervals);
    summary.busy_us[name] = ns_to_us(busy);
    if (name != "comp") summary.exposed_us[name] = ns_to_us(busy - overlap(intervals, by_kind["comp"]));
  }
  return summary;
}

}  // namespace pipewright::traces
