// Why the winner wins and what each of the others costs, in sentences with numbers. Time differences are split over
// the accounts of the rank that finishes last; memory is that of the rank that has least left.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "candidates.hpp"
#include "pipewright/scenario/derived.hpp"
#include "rules.hpp"

namespace pipewright::plan {

namespace {

using predict::Prediction;
using predict::RankPrediction;

/// A difference that moves a step by less than this is not worth a word.
constexpr double worth_saying_ms = 0.1;

const RankPrediction* rank_of(const Prediction& p, int pp_rank) {
  const auto at = std::ranges::find(p.ranks, pp_rank, &RankPrediction::pp_rank);
  return at == p.ranks.end() ? nullptr : &*at;
}

std::vector<std::pair<std::string_view, std::int64_t>> accounts(const Prediction& p) {
  const auto* rank = rank_of(p, p.last_rank);
  if (rank == nullptr) return {};
  const auto& a = rank->account;
  return {{"recompute", a.recompute},     {"other compute", a.busy - a.recompute},
          {"bubble", a.bubble},           {"exposed P2P", a.p2p},
          {"exposed TP", a.tp},           {"exposed CP", a.cp},
          {"exposed EP", a.ep},           {"exposed DP", a.dp},
          {"exposed offload", a.offload}, {"exposed host", a.host}};
}

/// "bubble -35.2 ms, recompute -12.0 ms": where `to` differs from `from`, largest first.
std::string differences(const Prediction& from, const Prediction& to) {
  const auto before = accounts(from), after = accounts(to);
  std::vector<std::pair<std::string_view, double>> moved;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i)
    if (const double delta = ns_to_ms(after[i].second - before[i].second); std::abs(delta) >= worth_saying_ms)
      moved.emplace_back(after[i].first, delta);
  std::ranges::stable_sort(moved, std::greater<>(), [](const auto& m) { return std::abs(m.second); });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(moved.size(), 3); ++i)
    text += fmt::format("{}{} {:+.1f} ms", text.empty() ? "" : ", ", moved[i].first, moved[i].second);
  return text.empty() ? "no account moves by 0.1 ms" : text;
}

double percent(const Prediction& from, const Prediction& to) {
  return from.step_ns > 0 ? 100.0 * (static_cast<double>(to.step_ns) / static_cast<double>(from.step_ns) - 1) : 0;
}

std::string memory_of(const Prediction& p) {
  const auto* rank = rank_of(p, tightest_rank(p));
  if (rank == nullptr) return "no memory figures";
  const auto left = reserved_margin(p);
  return fmt::format("rank {} peaks at {} and reserves {} ({} outside the allocator), {} {} the limit of {}",
                     rank->pp_rank, format_bytes(rank->walk.peak_allocated), format_bytes(rank->walk.peak_reserved),
                     format_bytes(rank->outside_allocator), format_bytes(left < Bytes(0) ? Bytes(0) - left : left),
                     left < Bytes(0) ? "above" : "below", format_bytes(p.memory_limit));
}

/// What the backward pass runs again.
std::string replayed(const scenario::Scenario& scenario) {
  if (full(scenario)) return "whole layers";
  std::string text;
  for (const auto& name : scenario::recompute_modules(scenario))
    if (const auto* module = scenario::find_recompute(name); module != nullptr)
      text += (text.empty() ? "" : " and ") + std::string(module->what);
  return text;
}

/// "frees 3.2 GiB on rank 0, which is not needed": the change of the peak where the winner's is largest; of what does
/// not fit, why.
std::string memory_change(const Prediction& best, const Prediction& other) {
  if (best.fits && !other.fits) {
    const auto* tightest = rank_of(other, tightest_rank(other));
    if (tightest == nullptr) return "does not fit";
    return fmt::format("does not fit: rank {} reserves {} and holds {} outside of {}", tightest->pp_rank,
                       format_bytes(tightest->walk.peak_reserved), format_bytes(tightest->outside_allocator),
                       format_bytes(other.memory_limit));
  }
  const int rank = peak_rank(best);
  const auto *before = rank_of(best, rank), *after = rank_of(other, rank);
  if (before == nullptr || after == nullptr) return {};
  const auto freed = before->walk.peak_allocated - after->walk.peak_allocated;
  if (freed.value > 0)
    return fmt::format("frees {} on rank {}{}", format_bytes(freed), rank, best.fits ? ", which is not needed" : "");
  if (freed.value < 0) return fmt::format("needs {} more on rank {}", format_bytes(Bytes(-freed.value)), rank);
  return fmt::format("leaves the peak of rank {} as it is", rank);
}

std::string against(const Trial& best, const Trial& other, std::size_t dimension, Decides what) {
  const auto &winner = best.candidate.prediction, &loser = other.candidate.prediction;
  std::string text = fmt::format("{}: {:+.1f} % step ({}", other.candidate.choices[dimension], percent(winner, loser),
                                 differences(winner, loser));
  const auto work = what == Decides::recompute ? replayed(other.candidate.scenario) : std::string();
  if (!work.empty())
    text += fmt::format("; replays {}: {:.1f} ms of recompute", work,
                        ns_to_ms(accounts(loser).empty() ? 0 : accounts(loser)[0].second));
  return text + "), " + memory_change(winner, loser);
}

std::string fragmentation(const Prediction& p) {
  const int rank = peak_rank(p);
  const auto* r = rank_of(p, rank);
  if (r == nullptr) return {};
  // Most is allocated before CUDA graphs are captured, most is reserved after that: their difference says nothing.
  const bool graphs = r->walk.graph_pool > Bytes(0);
  return fmt::format("{} reserved for a peak of {} ({}{})", format_bytes(r->walk.peak_reserved),
                     format_bytes(r->walk.peak_allocated),
                     graphs ? format_bytes(r->walk.graph_pool) + " are the CUDA graphs' own pool"
                            : format_bytes(r->walk.peak_reserved - r->walk.peak_allocated) + " fragmentation",
                     r->walk.retried ? ", after giving cached blocks back" : "");
}

/// Of a tie, what decided.
std::string reason_of(const Trial& best, const Trial& other) {
  switch (decided(best, other)) {
    case Decided::probability:
      return fmt::format("it fits with {:.0f} % against {:.0f} %", 100 * best.probability, 100 * other.probability);
    case Decided::given:
      return "what is given stays";
    case Decided::interval:
      return "its step has an interval";
    case Decided::changes:
      return fmt::format("it changes {} of what is given, the other {}", best.changes, other.changes);
    case Decided::time:
      break;
  }
  return "the faster of the two";
}

std::string nothing_fits(const Plan& plan) {
  const auto& s = plan.searched;
  if (s.interrupted) return "interrupted before anything that fits was found";
  if (!plan.closest)
    return s.not_modelled > 0
               ? "no candidate that is legal is modelled: what stands below is why"
               : "no candidate is legal: what stands below is why (`pipewright check` says how to mend it)";
  const auto& c = *plan.closest;
  std::string left;
  if (s.undecided > 0 || s.not_modelled == 0) left = fmt::format("; {} candidates were not", s.undecided);
  if (s.not_modelled > 0) left += fmt::format("; {} not modelled", s.not_modelled);
  const std::string text = c.proved
                               ? fmt::format("nothing fits: every {}candidate was shown to exceed the memory limit",
                                             s.illegal > 0 ? "legal " : "")
                               : "nothing that was looked at fits" + left;
  return text + fmt::format("; closest {} {}: rank {} lacks {}{}", c.exact ? "is" : "may be", c.label, c.rank,
                            c.exact ? "" : "at least ", format_bytes(c.lacking));
}

}  // namespace

std::vector<std::string> explain(const Plan& plan, const std::vector<Trial>& trials,
                                 const std::vector<std::size_t>& order, const std::vector<std::size_t>& others,
                                 const std::vector<Dimension>& dimensions, const LeftOut& left_out) {
  std::vector<std::string> why;
  if (!plan.best) why.push_back(nothing_fits(plan));
  if (order.empty()) {
    for (const auto& note : left_out.notes) why.push_back(note);
    return why;
  }
  const Trial& best = trials[order.front()];
  const auto& winner = best.candidate.prediction;
  if (!plan.best) {
    why.push_back(fmt::format("the fastest, {}, takes {:.1f} ms; {}", best.candidate.label, ns_to_ms(winner.step_ns),
                              memory_of(winner)));
  } else {
    why.push_back(
        fmt::format("{}: {:.1f} ms a step; {}", best.candidate.label, ns_to_ms(winner.step_ns), memory_of(winner)));
  }
  if (!plan.has_baseline) {
    // a model alone: nothing to compare with
  } else if (plan.baseline_refused.empty()) {
    const auto& given = plan.baseline.prediction;
    if (best.given && plan.best && !plan.searched.interrupted)
      why.emplace_back("nothing is faster than the scenario as given by more than a tie");
    else if (!best.given)
      why.push_back(fmt::format("against the scenario as given ({:.1f} ms{}): {:+.1f} % ({})", ns_to_ms(given.step_ns),
                                given.fits ? "" : ", does not fit", percent(given, winner),
                                differences(given, winner)));
  } else {
    why.push_back("the scenario as given has no prediction: " + plan.baseline_refused);
  }
  for (const auto i : others) {
    const Trial& second = trials[i];
    const auto& next = second.candidate.prediction;
    if (next.fits != winner.fits || i == order.front()) continue;
    const auto label = beside(best.candidate.choices, second.candidate.choices);
    if (std::abs(percent(winner, next)) <= 100 * tie_share)
      why.push_back(fmt::format("against {} ({:.1f} ms): a tie, {:+.2f} % is within {:.1f} %; {}", label,
                                ns_to_ms(next.step_ns), percent(winner, next), 100 * tie_share,
                                reason_of(best, second)));
    else
      why.push_back(fmt::format("against the next best, {} ({:.1f} ms): {:+.1f} % ({})", label, ns_to_ms(next.step_ns),
                                percent(next, winner), differences(next, winner)));
    break;
  }

  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d].what != Decides::allocator) {
      for (const auto i : others)
        if (differs_only_in(best, trials[i], d)) why.push_back(against(best, trials[i], d, dimensions[d].what));
      continue;
    }
    for (const auto i : order) {
      const Trial& other = trials[i];
      if (!differs_only_in(best, other, d)) continue;
      why.push_back(fmt::format("fragmentation on rank {}: {}: {}; {}: {}; the step time is the same",
                                peak_rank(winner), best.candidate.choices[d], fragmentation(winner),
                                other.candidate.choices[d], fragmentation(other.candidate.prediction)));
      if (!other.candidate.prediction.fits && winner.fits)
        why.push_back(fmt::format(
            "{} is what makes it fit: with {} rank {} reserves too much, although its peak is "
            "the same (fragmentation, not capacity)",
            best.candidate.choices[d], other.candidate.choices[d], tightest_rank(other.candidate.prediction)));
    }
  }
  for (const auto& idle : left_out.idle) why.push_back(fmt::format("not searched: {} ({})", idle.message, idle.rule));
  for (const auto& note : left_out.notes) why.push_back(note);
  if (plan.searched.interrupted && plan.best) why.push_back("interrupted: the best of what was simulated so far");
  return why;
}

}  // namespace pipewright::plan
