// Distinct units of a token's experts. Without groups, of u units with m experts each: a unit is missed by all k
// choices with probability C(E-m, k) / C(E, k), so
//
//   D(u) = u [1 - C(E-m, k) / C(E, k)]
//
// Group-limited routing (moe/moe_utils.py group_limited_topk) first keeps the groups whose best topk/group_topk scores
// sum highest: they hold the winners oftener than chance says. No closed form: the mean over drawn scores, always the
// same ones.
#include "routing.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

namespace pipewright::model {
namespace {

using scenario::Int;

double drawn(const Routing& r, Int units) {
  constexpr int tokens = 4096;  // the mean is known to 1 %
  const auto experts = static_cast<std::size_t>(r.experts), groups = static_cast<std::size_t>(r.groups);
  const auto kept = static_cast<std::ptrdiff_t>(r.group_topk), topk = static_cast<std::ptrdiff_t>(r.topk);
  const std::size_t in_group = experts / groups;
  const auto best = static_cast<std::ptrdiff_t>(std::max<Int>(1, r.topk / r.group_topk));
  std::mt19937_64 random(1);
  std::vector<double> scores(experts), part(in_group);
  std::vector<std::pair<double, std::size_t>> by_group(groups), candidates;
  std::vector<bool> hit(static_cast<std::size_t>(units));
  Int sum = 0;
  for (int token = 0; token < tokens; ++token) {
    for (double& score : scores) score = static_cast<double>(random() >> 11U) * 0x1p-53;
    for (std::size_t g = 0; g < groups; ++g) {
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(g * in_group);
      std::copy(first, first + static_cast<std::ptrdiff_t>(in_group), part.begin());
      const auto end = part.begin() + std::min<std::ptrdiff_t>(best, static_cast<std::ptrdiff_t>(in_group));
      std::partial_sort(part.begin(), end, part.end(), std::greater<>());
      by_group[g] = {std::accumulate(part.begin(), end, 0.0), g};
    }
    std::partial_sort(by_group.begin(), by_group.begin() + kept, by_group.end(), std::greater<>());
    candidates.clear();
    for (std::ptrdiff_t i = 0; i < kept; ++i) {
      const std::size_t first = by_group[static_cast<std::size_t>(i)].second * in_group;
      for (std::size_t e = first; e < first + in_group; ++e) candidates.emplace_back(scores[e], e);
    }
    const auto chosen = std::min<std::ptrdiff_t>(topk, static_cast<std::ptrdiff_t>(candidates.size()));
    std::partial_sort(candidates.begin(), candidates.begin() + chosen, candidates.end(), std::greater<>());
    std::fill(hit.begin(), hit.end(), false);
    for (std::ptrdiff_t i = 0; i < chosen; ++i)
      hit[candidates[static_cast<std::size_t>(i)].second * static_cast<std::size_t>(units) / experts] = true;
    sum += std::count(hit.begin(), hit.end(), true);
  }
  return static_cast<double>(sum) / tokens;
}

}  // namespace

double units_of_a_token(const Routing& r, Int units) {
  if (units <= 1) return 1;
  const bool limited = r.group_topk > 0 && r.group_topk < r.groups && r.experts % r.groups == 0;
  if (!limited) {
    const double part = static_cast<double>(r.experts) / static_cast<double>(units);
    double missed = 1;
    for (Int i = 0; i < r.topk; ++i) {
      const auto left = static_cast<double>(r.experts - i);
      missed *= std::max(0.0, left - part) / left;
    }
    return static_cast<double>(units) * (1 - missed);
  }
  static std::mutex mutex;
  static std::map<std::pair<Routing, Int>, double> known;  // a search asks for the same few again and again
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace({r, units}, 0);
  if (is_new) at->second = drawn(r, units);
  return at->second;
}

}  // namespace pipewright::model
