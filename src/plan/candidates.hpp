// The search's own view of candidates: what distinguishes them, what they cost, and how they are ordered.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dimensions.hpp"
#include "pipewright/plan.hpp"

namespace pipewright::plan {

/// A candidate while the search runs.
struct Trial {
  Candidate candidate;
  std::string tolerated;  ///< argument-parser rules that the scenario as given breaks too
  bool done = false;      ///< predicted exactly
  std::size_t structure = 0, time_group = 0;
  std::optional<predict::Prediction> floor;  ///< what it cannot undercut
  std::optional<predict::Prediction> quick;  ///< times by the chunk-level engine, allocated peaks where scouted
  bool scouted = false, every_rank = false;
  bool may_fit = true;
  bool refused = false;  ///< the model refuses it
};

/// The trial that makes the same choices as `best` but for one dimension.
bool differs_only_in(const Trial& best, const Trial& other, std::size_t dimension);

/// Steps whose times differ by less than this share are ties. Repeating one configuration on another day or machine
/// moves its step by 0.5 to 2 % (measured); a smaller difference of two predictions decides nothing.
inline constexpr double tie_share = 0.005;

double cost(const predict::Prediction& prediction, const std::string& objective);  ///< lower is better
Bytes largest_peak(const predict::Prediction& prediction);
Bytes largest_need(const predict::Prediction& prediction);     ///< reserved and outside, on the fullest rank
Bytes reserved_margin(const predict::Prediction& prediction);  ///< limit - reserved - outside, on the tightest rank
int tightest_rank(const predict::Prediction& prediction);
int peak_rank(const predict::Prediction& prediction);

/// Order of preference: what fits comes first; the fastest, but among ties the larger reserved margin, then fewer
/// milliseconds, then the order of enumeration.
std::vector<std::size_t> ranking(const std::vector<Trial>& trials, const std::string& objective);

/// Over what is predicted exactly, and over quick looks in between (their times scaled as the winner's).
std::vector<Point> pareto_front(const std::vector<Trial>& trials);

/// From the winner down: each step needs less of the device at the lowest price, within the winner's structure.
/// `reserved` gives candidates' memory exactly.
using Reserved = std::function<std::vector<predict::Prediction>(const std::vector<const Trial*>&)>;
std::vector<Point> ladder(const std::vector<Trial>& trials, std::size_t winner, const Reserved& reserved);

/// The reasons in sentences with numbers.
std::vector<std::string> explain(const Plan& plan, const std::vector<Trial>& trials,
                                 const std::vector<std::size_t>& order, const std::vector<Dimension>& dimensions,
                                 const LeftOut& left_out);

}  // namespace pipewright::plan
