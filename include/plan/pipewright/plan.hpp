// Legality rules as data, and the search over what a scenario may change: every candidate is checked against the
// rules, predicted, ranked and explained. Knows predictions only through a function, never how they come about.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::predict {  // split_floor.hpp
class LayersDraft;
class LeastMemory;
class SpreadFloor;
}  // namespace pipewright::predict

namespace pipewright::plan {

// ---- Rules

enum class Severity : std::uint8_t { violation, no_effect, trap };
std::string_view name(Severity severity);  ///< "violation", "no-effect", "trap"

/// What a rule says of a scenario.
struct Finding {
  std::string rule;
  Severity severity = Severity::violation;
  std::vector<std::string> settings;  ///< names of the fields and variables involved
  std::string message, fix, source;
};

/// "MESSAGE. Fix: FIX.": a rule's two texts as sentences, whose full stops the texts have or not (some are Megatron's
/// own).
std::string with_fix(std::string_view message, std::string_view fix);

/// All rules that fire, in the table's order.
std::vector<Finding> check(const scenario::Scenario& scenario);

/// The scenario with the environment variables that Megatron insists on for it.
scenario::Scenario with_required_environment(scenario::Scenario scenario);

/// A row of the table, for `list rules`.
struct RuleInfo {
  std::string id, versions;  ///< "0.16-0.19, dev, main"
  Severity severity = Severity::violation;
  std::vector<std::string> settings;
  std::string message, fix, source;
};
std::vector<RuleInfo> rules();

// ---- Symptoms (`check --symptom`)

enum class Symptom : std::uint8_t { out_of_memory, slow, assertion };
/// The likely causes of a symptom, likeliest first. `text`: the message of an assertion.
/// `prediction` may be null; with it the memory causes carry its numbers.
std::vector<Finding> diagnose(const scenario::Scenario& scenario, Symptom symptom, std::string_view text,
                              const predict::Prediction* prediction = nullptr);

// ---- Search

/// Name and value as --set and --env take them; an empty value of a variable means unset.
using Assignments = std::vector<std::pair<std::string, std::string>>;

struct Candidate {
  std::string label;                  ///< "recompute mlp, VPP 5, expandable segments"
  std::vector<std::string> choices;   ///< the same, one for each dimension
  bool given = false;                 ///< the scenario as it stands
  double probability = 1;             ///< that it fits
  Assignments settings, environment;  ///< the searched ones, changed and kept, in the order of the dimensions
  scenario::Scenario scenario;
  predict::Prediction prediction;
};

struct Rejected {
  std::string label;
  Assignments settings, environment;
  std::string rule, reason;
};

/// What became of every candidate: candidates = illegal + pruned + by_memory + by_time + not_modelled + undecided +
/// predicted.
struct Searched {
  std::int64_t candidates = 0;  ///< the whole space: structures times what each leaves open below it
  std::int64_t structures = 0;  ///< ways to spread and schedule the model that Megatron Core can run
  std::int64_t illegal = 0;     ///< a rule refuses it; a structure that one refuses counts once
  std::int64_t pruned = 0;      ///< equal to another by a no-effect rule
  std::int64_t by_memory = 0;   ///< certainly does not fit, by a floor or a walk of allocated memory
  std::int64_t too_large = 0;   ///< of these: in structures that cannot fit whatever is recomputed or offloaded
  std::int64_t by_time = 0;     ///< certainly not faster: a floor, an estimate, or one that does less fits
  std::int64_t excluded = 0;    ///< by_memory + by_time
  std::int64_t not_modelled = 0;
  std::int64_t undecided = 0;  ///< what the gap stands for
  std::int64_t predicted = 0;  ///< exactly
  std::int64_t legal = 0;      ///< looked at one by one
  std::int64_t simulated = 0;  ///< predicted in time, too; others of equal time in memory only
  std::int64_t bounded = 0;    ///< floors of time and memory computed
  /// What excluded by_memory and by_time, which are their sums.
  struct Bound {
    const char* by = "";
    std::int64_t memory = 0, time = 0;
  };
  std::vector<Bound> bounds;
  std::int64_t estimated = 0;  ///< by the chunk-level engine
  double seconds = 0;
  double gap = 0;  ///< nothing that fits, predicted or not, is faster than the best by more than this share
  /// Nothing that was not predicted is faster than the fastest by more than a tie (half a percent).
  bool proved_optimal = false;
  bool interrupted = false;
  std::vector<std::string> open, closed;  ///< dimensions by name
  std::optional<double> rest;  ///< what opening those of them that move no parameter could bring at most, as a share
};

/// Where nothing fits: the candidate that lacks least.
struct Closest {
  std::string label;
  int rank = 0;
  Bytes lacking;       ///< beyond limit and margin
  bool exact = true;   ///< else at least that much, by a floor
  bool proved = true;  ///< nothing that was searched fits, and nothing was left out
};

struct Point {
  std::int64_t step_ns = 0;
  Bytes peak;    ///< largest peak_allocated over the ranks
  Bytes needed;  ///< most that a rank takes of the device: reserved and outside the allocator
  std::string label;
  Assignments settings, environment;
  bool exact = true;         ///< else its time is by the quick looks, between exact ones
  bool exact_memory = true;  ///< else its memory is
};

/// How sure the order of two candidates is, and which measurement would have to be wrong to turn it.
struct Rival {
  std::string label;  ///< where it differs from the best
  predict::Comparison comparison;
};

struct Plan {
  std::optional<Candidate> best;        ///< none: nothing fits
  std::optional<Candidate> released;    ///< where the best needs a pull request: the best without it
  std::optional<Candidate> bounded;     ///< where no interval holds for the best: the best that has one
  Candidate baseline;                   ///< the scenario as given
  std::string baseline_refused;         ///< not empty: why the scenario as given has no prediction
  bool has_baseline = true;             ///< false: a model alone was given, no run
  std::vector<Candidate> alternatives;  ///< in order of rank, without the best; those that do not fit come last
  std::vector<Point> pareto;            ///< step time against peak, fastest first
  std::vector<Point> ladder;            ///< from the winner down: the cheapest ways to free memory
  std::vector<Rival> rivals;            ///< the nearest alternatives
  std::vector<std::string> why;
  std::optional<Closest> closest;           ///< where there is no best
  std::optional<std::int64_t> fewest_gpus;  ///< the best with fewer data-parallel copies still fits on these
  Searched searched;
  std::vector<Rejected> rejected;
};

/// How far a search is. `total` 0: nobody knows how long the phase takes.
struct Progress {
  const char* phase = "";
  std::int64_t done = 0, total = 0;
};

using Predictor = std::function<predict::Prediction(const scenario::Scenario&)>;

struct Options {
  Predictor predict;
  /// The same step under another PYTORCH_CUDA_ALLOC_CONF: only reserved memory and `fits` can differ from `same`, so
  /// an implementation need not simulate time again. Optional; `predict` serves where it is empty.
  std::function<predict::Prediction(const scenario::Scenario&, const predict::Prediction& same)> repredict_reserved;
  /// Quick looks (predict::floor, estimate, scout_memory). All or none; without them everything is predicted.
  std::function<predict::Prediction(const scenario::Scenario&)> floor, estimate;
  /// predict::glance: excludes before estimate has to. Optional.
  std::function<predict::Prediction(const scenario::Scenario&)> glance;
  /// predict::fits_by_floor: of what fits by far not, only that is told. Optional.
  std::function<bool(const scenario::Scenario&, const std::vector<Bytes>& state)> fits_by_floor;
  /// predict::floor_of_any_split: bounds of many structures at a time. Optional.
  std::function<predict::Prediction(const scenario::Scenario&, bool any_size)> floor_of_any_split;
  /// predict::LayersDraft, LeastMemory, SpreadFloor and Splits: the same, and what its recompute makes fit. All or
  /// none; optional.
  std::function<predict::LayersDraft(const scenario::Scenario&)> layers;
  std::function<std::shared_ptr<const predict::SpreadFloor>(const scenario::Scenario&)> spread_floor;
  std::function<timeline::LayerSplit(const scenario::Scenario&)> split;
  std::function<predict::LeastMemory(const scenario::Scenario&)> least_memory;
  std::function<void(const scenario::Scenario&, predict::Depth, predict::Prediction&)> scout;
  /// predict::compare. Optional.
  std::function<std::vector<predict::Comparison>(const scenario::Scenario&,
                                                 const std::vector<const scenario::Scenario*>&)>
      compare;
  /// That a prediction fits its device. Optional; what fits is sure to without it.
  std::function<std::optional<double>(const predict::Prediction&)> probability;
  std::function<void(const Progress&)> progress;  ///< one call at a time, from any thread
  std::stop_token stop;                           ///< asks for the best so far
  bool until_stopped = false;                     ///< goes on with what would else be too dear to look at
  int threads = 0;                                ///< 0: one a core
  int top = 10;                                   ///< how many alternatives
  bool has_baseline = true;                       ///< compare with the scenario as given
};

/// Searches what scenario.search allows. A UsageError of `predict` rejects that candidate only, unless the scenario as
/// given and all candidates are refused: then it is thrown.
Plan search(const scenario::Scenario& scenario, const Options& options);

/// A bare architecture as a run worth planning: bf16, distributed optimizer, overlap and fusions on, parallelism and
/// everything below it searched. What the input states (Scenario::positions) stays.
scenario::Scenario proposed(scenario::Scenario scenario);

/// Does `search` leave anything open?
bool opens_something(const scenario::Scenario& scenario);
/// Opens all that moves no parameter between GPUs: recompute, offload, delayed weight gradients, interleaving, layout,
/// allocator.
scenario::Scenario opened(scenario::Scenario scenario);
/// Opens dimensions beside what is open. "all": every one. Throws for an unknown name.
scenario::Scenario opened(scenario::Scenario scenario, const std::vector<std::string>& names);

/// A candidate's choices where they differ from another's: "recompute mlp, default allocator".
std::string beside(const std::vector<std::string>& best, const std::vector<std::string>& other);

/// Rejected candidates with the same rule and reason as one: the first of them, and how many they are.
std::vector<std::pair<Rejected, std::int64_t>> rejected_by_reason(const Plan& plan);

/// `sweep`: the product of the axes, illegal rows included.
struct Axis {
  std::string name;
  std::vector<std::string> values;  ///< empty: every legal value (recompute_modules only)
};
struct Row {
  Assignments settings;
  bool legal = true;
  std::string rule, reason;                       ///< why not legal, or (`model`) why not modelled
  std::optional<predict::Prediction> prediction;  ///< of what is legal and modelled
  double relative = 0;                            ///< step over the scenario as given, - 1
};
struct Sweep {
  std::optional<predict::Prediction> baseline;
  std::vector<Row> rows;
  std::int64_t combinations = 0;   ///< of the whole sweep
  std::int64_t missing = 0;        ///< of its part: those that were not reached before it was stopped
  std::vector<std::string> notes;  ///< what the axes set besides
};
/// Which of the combinations: the first, and from there every `of`th. Neighbours take like time, so parts do, too.
struct Part {
  std::int64_t first = 0, of = 1;
};
Sweep sweep(const scenario::Scenario& scenario, const std::vector<Axis>& axes, const Options& options, Part part = {});

}  // namespace pipewright::plan
