// The search's own view of candidates: what distinguishes them, what they cost, and how they are ordered.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/plan.hpp"
#include "search_dimensions.hpp"

namespace pipewright::plan {

/// The step of the scenario as given, until the search comes to the recompute that it has.
inline constexpr auto unplaced = static_cast<std::size_t>(-1);

/// A candidate while the search runs.
struct Trial {
  Candidate candidate;
  std::string of_time;  ///< its Identity, until it has found its time group
  bool given = false;   ///< the scenario as it stands
  bool bare = false;    ///< its structure's own looks are at this
  int changes = 0;      ///< dimensions that it decides otherwise than the scenario as given
  bool done = false;    ///< predicted exactly
  std::size_t structure = 0, step = 0, time_group = 0;
  std::optional<std::size_t> without, offload;  ///< of what is offloaded by choice: the same without, the step
  std::optional<bool> fits_by_floor;            ///< where that was asked
  /// Times by the chunk-level engine, allocated peaks where scouted and it may fit. Those of equal time share it.
  std::shared_ptr<const predict::Prediction> quick;
  bool glanced = false, scouted = false, every_rank = false;
  bool may_fit = true;
  bool refused = false;          ///< the model refuses it
  bool followed = false;         ///< it does not fit, and what frees more memory was put on the list
  double with_offload = 0;       ///< the least cost of the same with offload ...
  bool offload_bounded = false;  ///< ... once the copies are in it without which it does not fit
  double least = 0;              ///< the least cost that it can have, by all that is known
  double probability = 1;        ///< that it fits, of what is predicted exactly
};

/// The trial that makes the same choices as `best` but for one dimension.
bool differs_only_in(const Trial& best, const Trial& other, std::size_t dimension);

/// Steps whose times differ by less than this share are ties. Repeating one configuration on another day or machine
/// moves its step by 0.5 to 2 % (measured); a smaller difference of two predictions decides nothing.
inline constexpr double tie_share = 0.005;

double cost(const predict::Prediction& prediction, const std::string& objective);  ///< lower is better
Bytes reserved_margin(const predict::Prediction& prediction);  ///< limit - reserved - outside, on the tightest rank
int tightest_rank(const predict::Prediction& prediction);
int peak_rank(const predict::Prediction& prediction);

/// Memory has a say only below this probability to fit.
inline constexpr double sure_to_fit = 0.99;

/// What decided between two candidates that tie.
enum class Decided : std::uint8_t { probability, given, interval, changes, time };
Decided decided(const Trial& first, const Trial& second);

/// Order of preference: what fits comes first; the fastest, but among ties what surely fits (or fits likelier), then
/// the scenario as given, then what has an interval, then what changes least, then the faster, then the order of
/// enumeration.
std::vector<std::size_t> ranking(const std::vector<Trial>& trials, const std::string& objective);

/// Over what is predicted exactly, and over steps of the ladder whose memory is (their times scaled as the winner's).
std::vector<Point> pareto_front(const std::vector<Trial>& trials, const std::vector<Point>& ladder);

/// From the winner down: each step needs less of the device at the lowest price, within the winner's structure.
/// `reserved` gives candidates' memory exactly, or nothing where that is too dear.
using Reserved = std::function<std::vector<predict::Prediction>(const std::vector<const Trial*>&)>;
std::vector<Point> ladder(const std::vector<Trial>& trials, std::size_t winner, const Reserved& reserved);

/// Names of the dimensions that a scenario opens, and of the others.
std::pair<std::vector<std::string>, std::vector<std::string>> open_and_closed(const scenario::Scenario& scenario);

/// Where nothing fits: what would, tried on the scenario as given.
std::vector<std::string> what_would_fit(const scenario::Scenario& scenario, const Options& options);
/// ... on twice as many GPUs, four times, ...: the first on which anything was found that fits. Without a given run.
std::vector<std::string> fits_on_more_gpus(const scenario::Scenario& scenario, const Options& options);
/// The fewest GPUs, of fewer data-parallel copies, on which a candidate still fits; its own number if no fewer do.
std::int64_t fewest_gpus(const Candidate& best, const Options& options);

/// The reasons in sentences with numbers.
std::vector<std::string> explain(const Plan& plan, const std::vector<Trial>& trials,
                                 const std::vector<std::size_t>& order, const std::vector<std::size_t>& others,
                                 const std::vector<Dimension>& dimensions, const LeftOut& left_out);

}  // namespace pipewright::plan
