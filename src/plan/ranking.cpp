// The order of candidates: what fits, then time; among ties what surely fits, what is given, what changes least.
#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "candidates.hpp"

namespace pipewright::plan {

namespace {

Bytes left_on(const predict::Prediction& p, const predict::RankPrediction& rank) {
  return p.memory_limit - rank.walk.peak_reserved - rank.outside_allocator;
}

/// Probabilities in whole percent: smaller differences are below what the errors' spread is known to.
int percent_to_fit(const Trial& trial) {
  return trial.probability >= sure_to_fit ? 100 : static_cast<int>(100 * trial.probability);
}

bool has_interval(const Trial& t) { return t.candidate.prediction.ignored.empty(); }

auto preference(const Trial& t) { return std::tuple(-percent_to_fit(t), !t.given, !has_interval(t), t.changes); }

}  // namespace

double cost(const predict::Prediction& prediction, const std::string& objective) {
  if (objective == "tokens_per_s")
    return prediction.tokens_per_s_per_gpu > 0 ? 1e12 / prediction.tokens_per_s_per_gpu
                                               : std::numeric_limits<double>::max();
  return static_cast<double>(prediction.step_ns);
}

int peak_rank(const predict::Prediction& prediction) {
  const auto at = std::ranges::max_element(prediction.ranks, {}, [](const auto& r) { return r.walk.peak_allocated; });
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

Decided decided(const Trial& first, const Trial& second) {
  if (percent_to_fit(first) != percent_to_fit(second)) return Decided::probability;
  if (first.given != second.given) return Decided::given;
  if (has_interval(first) != has_interval(second)) return Decided::interval;
  return first.changes != second.changes ? Decided::changes : Decided::time;
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
      if (preference(trials[*at]) < preference(trials[*chosen])) chosen = at;
    }
    order.push_back(*chosen);
    left.erase(chosen);
  }
  return order;
}

bool differs_only_in(const Trial& best, const Trial& other, std::size_t dimension) {
  for (std::size_t d = 0; d < best.candidate.choices.size(); ++d)
    if ((best.candidate.choices[d] != other.candidate.choices[d]) != (d == dimension)) return false;
  return true;
}

namespace {

/// Exact where it was predicted; else by the quick looks, in the exact engine's measure.
std::optional<Point> point_of(const Trial& trial, double scale) {
  const auto& c = trial.candidate;
  if (trial.done)
    return Point{c.prediction.step_ns,
                 c.prediction.most_allocated(),
                 c.prediction.most_needed(),
                 c.label,
                 c.settings,
                 c.environment,
                 true};
  if (trial.refused || !trial.quick || !trial.every_rank || !trial.may_fit) return std::nullopt;
  const auto ns = static_cast<std::int64_t>(static_cast<double>(trial.quick->step_ns) * scale);
  return Point{
      ns, trial.quick->most_allocated(), trial.quick->most_needed(), c.label, c.settings, c.environment, false, false};
}

/// Exact over quick time of the fastest trial that has both.
double scale_of(const std::vector<Trial>& trials) {
  const Trial* fastest = nullptr;
  for (const auto& trial : trials)
    if (trial.done && trial.quick && trial.quick->step_ns > 0 &&
        (fastest == nullptr || trial.candidate.prediction.step_ns < fastest->candidate.prediction.step_ns))
      fastest = &trial;
  if (fastest == nullptr) return 1;
  return static_cast<double>(fastest->candidate.prediction.step_ns) / static_cast<double>(fastest->quick->step_ns);
}

/// Ascending time, each with less memory than all before it.
template <typename Item, typename ToPoint>
std::vector<Item> front_of(std::vector<Item> all, const ToPoint& point, Bytes Point::*memory) {
  std::ranges::stable_sort(all, [&](const Item& a, const Item& b) {
    const Point &p = point(a), &q = point(b);
    return p.step_ns != q.step_ns ? p.step_ns < q.step_ns : p.*memory < q.*memory;
  });
  std::vector<Item> front;
  for (auto& item : all)
    if (front.empty() || point(item).*memory < point(front.back()).*memory) front.push_back(std::move(item));
  return front;
}

}  // namespace

std::vector<Point> pareto_front(const std::vector<Trial>& trials, const std::vector<Point>& ladder) {
  std::vector<Point> all;
  for (const auto& trial : trials)
    if (trial.done) all.push_back(*point_of(trial, 1));
  std::ranges::copy_if(ladder, std::back_inserter(all), &Point::exact_memory);
  return front_of(std::move(all), std::identity{}, &Point::peak);
}

std::string beside(const std::vector<std::string>& best, const std::vector<std::string>& other) {
  std::string text;
  for (std::size_t d = 0; d < other.size(); ++d)
    if (!other[d].empty() && (d >= best.size() || other[d] != best[d])) text += (text.empty() ? "" : ", ") + other[d];
  return text;
}

std::vector<Point> ladder(const std::vector<Trial>& trials, std::size_t winner, const Reserved& reserved) {
  struct Rung {
    Point point;
    const Trial* trial;
  };
  const double scale = scale_of(trials);
  const auto& best = trials[winner];
  const auto top = point_of(best, scale);
  if (!top) return {};
  std::vector<Rung> steps;
  for (const auto& trial : trials) {
    if (trial.structure != best.structure || &trial == &best) continue;
    auto point = point_of(trial, scale);
    if (point && point->step_ns >= top->step_ns && point->needed < top->needed)
      steps.push_back({std::move(*point), &trial});
  }
  // Of equals the one that changes least: the allocator stays.
  std::ranges::stable_sort(steps, {}, [&](const Rung& step) {
    const auto& choices = step.trial->candidate.choices;
    std::size_t changed = 0;
    for (std::size_t d = 0; d < choices.size(); ++d) changed += choices[d] != best.candidate.choices[d] ? 1U : 0U;
    return changed;
  });
  steps = front_of(
      std::move(steps), [](const Rung& step) -> const Point& { return step.point; }, &Point::needed);
  constexpr std::size_t most = 8;
  if (steps.size() > most) {
    std::vector<Rung> some;  // evenly over the way down
    for (std::size_t i = 0; i < most; ++i) some.push_back(steps[i * (steps.size() - 1) / (most - 1)]);
    steps = std::move(some);
  }
  std::vector<const Trial*> guessed;
  for (const auto& step : steps)
    if (!step.point.exact) guessed.push_back(step.trial);
  const auto exactly = reserved(guessed);
  // Else what the winner needs beyond what a quick look sees of it.
  const double unseen = best.quick && best.every_rank ? static_cast<double>(top->needed.value) /
                                                            static_cast<double>(best.quick->most_needed().value)
                                                      : 1;
  std::vector<Point> front;
  for (auto& [point, trial] : steps) {
    point.label = beside(best.candidate.choices, trial->candidate.choices);
    if (exactly.empty() && !point.exact) {
      point.needed = Bytes(static_cast<std::int64_t>(static_cast<double>(point.needed.value) * unseen));
    } else if (const auto at = std::ranges::find(guessed, trial); at != guessed.end()) {
      const auto& p = exactly[static_cast<std::size_t>(at - guessed.begin())];
      point.peak = p.most_allocated();
      point.needed = p.most_needed();
      point.exact_memory = true;
    }
    if (point.needed < top->needed) front.push_back(std::move(point));
  }
  return front_of(std::move(front), std::identity{}, &Point::needed);
}

}  // namespace pipewright::plan
