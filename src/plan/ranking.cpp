// The order of candidates: what fits, then time with its ties, then the reserved memory that is left.
#include <algorithm>
#include <limits>

#include "candidates.hpp"

namespace pipewright::plan {

namespace {

Bytes left_on(const predict::Prediction& p, const predict::RankPrediction& rank) {
  return p.memory_limit - rank.peak_reserved - rank.outside_allocator;
}

}  // namespace

double cost(const predict::Prediction& prediction, const std::string& objective) {
  if (objective == "tokens_per_s")
    return prediction.tokens_per_s_per_gpu > 0 ? 1e12 / prediction.tokens_per_s_per_gpu
                                               : std::numeric_limits<double>::max();
  return static_cast<double>(prediction.step_ns);
}

Bytes largest_peak(const predict::Prediction& prediction) {
  Bytes most;
  for (const auto& rank : prediction.ranks) most = std::max(most, rank.peak_allocated);
  return most;
}

int peak_rank(const predict::Prediction& prediction) {
  const auto at = std::ranges::max_element(prediction.ranks, {}, &predict::RankPrediction::peak_allocated);
  return at == prediction.ranks.end() ? 0 : at->pp_rank;
}

int tightest_rank(const predict::Prediction& prediction) {
  const auto at = std::ranges::min_element(prediction.ranks, {}, [&](const auto& r) { return left_on(prediction, r); });
  return at == prediction.ranks.end() ? 0 : at->pp_rank;
}

Bytes reserved_margin(const predict::Prediction& prediction) {
  Bytes least = prediction.memory_limit;
  for (const auto& rank : prediction.ranks) least = std::min(least, left_on(prediction, rank));
  return least;
}

std::vector<std::size_t> ranking(const std::vector<Trial>& trials, const std::string& objective) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < trials.size(); ++i)
    if (trials[i].done) left.push_back(i);
  const auto price = [&](std::size_t i) { return cost(trials[i].candidate.prediction, objective); };
  std::ranges::stable_sort(left, [&](std::size_t a, std::size_t b) {
    const bool fits_a = trials[a].candidate.prediction.fits, fits_b = trials[b].candidate.prediction.fits;
    return fits_a != fits_b ? fits_a : price(a) < price(b);
  });
  // "Within the tolerance of" is not transitive, so each place goes to the best of those tied with the fastest left.
  std::vector<std::size_t> order;
  while (!left.empty()) {
    auto chosen = left.begin();
    for (auto at = left.begin(); at != left.end(); ++at) {
      const auto &first = trials[left.front()].candidate.prediction, &other = trials[*at].candidate.prediction;
      if (other.fits != first.fits || price(*at) > price(left.front()) * (1 + tie_share)) break;
      if (reserved_margin(other) > reserved_margin(trials[*chosen].candidate.prediction)) chosen = at;
    }
    order.push_back(*chosen);
    left.erase(chosen);
  }
  return order;
}

std::vector<Point> pareto_front(const std::vector<Trial>& trials) {
  std::vector<const Candidate*> all;
  for (const auto& trial : trials)
    if (trial.done) all.push_back(&trial.candidate);
  std::ranges::stable_sort(all, [](const Candidate* a, const Candidate* b) {
    const auto peak_a = largest_peak(a->prediction), peak_b = largest_peak(b->prediction);
    return a->prediction.step_ns != b->prediction.step_ns ? a->prediction.step_ns < b->prediction.step_ns
                                                          : peak_a < peak_b;
  });
  std::vector<Point> front;
  for (const auto* candidate : all) {
    const auto peak = largest_peak(candidate->prediction);
    if (front.empty() || peak < front.back().peak)
      front.push_back(
          {candidate->prediction.step_ns, peak, candidate->label, candidate->settings, candidate->environment});
  }
  return front;
}

}  // namespace pipewright::plan
