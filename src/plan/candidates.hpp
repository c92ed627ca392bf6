// The search's own view of candidates: what distinguishes them, what they cost, and how they are ordered.
#pragma once

#include <string>
#include <vector>

#include "dimensions.hpp"
#include "pipewright/plan.hpp"

namespace pipewright::plan {

/// A candidate while the search runs. `choice` holds one label for each dimension.
struct Trial {
  Candidate candidate;
  std::vector<std::string> choice;
  std::string tolerated;  ///< argument-parser rules that the scenario as given breaks too
  bool done = false;
};

/// Steps whose times differ by less than this share are ties. Repeating one configuration on another day or machine
/// moves its step by 0.5 to 2 % (measured); a smaller difference of two predictions decides nothing.
inline constexpr double tie_share = 0.005;

double cost(const predict::Prediction& prediction, const std::string& objective);  ///< lower is better
Bytes largest_peak(const predict::Prediction& prediction);
Bytes reserved_margin(const predict::Prediction& prediction);  ///< limit - reserved - outside, on the tightest rank
int tightest_rank(const predict::Prediction& prediction);
int peak_rank(const predict::Prediction& prediction);

/// Order of preference: what fits comes first; the fastest, but among ties the larger reserved margin, then fewer
/// milliseconds, then the order of enumeration.
std::vector<std::size_t> ranking(const std::vector<Trial>& trials, const std::string& objective);

std::vector<Point> pareto_front(const std::vector<Trial>& trials);

/// The reasons in sentences with numbers.
std::vector<std::string> explain(const Plan& plan, const std::vector<Trial>& trials,
                                 const std::vector<std::size_t>& order, const std::vector<Dimension>& dimensions,
                                 const LeftOut& left_out);

}  // namespace pipewright::plan
