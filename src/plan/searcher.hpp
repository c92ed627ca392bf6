// The search. Small spaces without quick looks are predicted as a whole. With them (Options::floor, estimate, scout) it
// is best first: what may still be fastest is looked at more closely, step by step, until nothing that is left can win.
//
//   spread --> structure --floor--> --glance--> --estimate--> steps of recompute --floor--> .. --> --scout-->
//   --predict-->
//                                                  ^                               |                      |
//                                                  +---- does not fit: more of it, offload ---------------+
//
// Every arrow raises what something costs at least: a spread's kernels however they are split bound its structures, one
// of those without recompute and offload all in it, less recompute more of it, an estimate its candidate
// (predict::estimate_bounds). What has too little memory by a floor or a walk is excluded for good. The scenario as
// given is predicted first and sets the mark.
#pragma once

#include <tbb/task_arena.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "candidates.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/derived.hpp"
#include "space.hpp"
#include "spread_bounds.hpp"

namespace pipewright::plan {

inline constexpr double never = std::numeric_limits<double>::max();

/// What the exact engine may be asked for in one search, in microbatches times layers: as long as the answer may be
/// more than `good_gap` from the best; beyond that; for what stands beside the best. 10,000 take about a second.
inline constexpr std::int64_t most_exact_work = 400'000, most_polish = 60'000, most_beside = 40'000;
inline constexpr double good_gap = 0.01;
/// As long as a look takes, some 4 ms.
inline constexpr std::int64_t work_of_a_look = 40;

/// An estimate of Qwen3-235B with 256 microbatches takes an eighth of its simulation.
inline constexpr std::int64_t estimates_of_a_simulation = 8;

inline std::int64_t exact_work(const Scenario& s) { return scenario::num_microbatches(s) * s.model.num_layers; }

/// An estimate is seldom more than this share above a glance (nine of ten structures of Llama 3.1 405B: 3.6 %).
inline constexpr double most_beside_kernels = 0.04;

inline bool moves_activations(const Scenario& s) {
  return s.settings.fine_grained_activation_offloading || s.settings.cpu_offloading || s.settings.moe_paged_stash;
}
inline bool timed(const Trial& trial) { return trial.quick && trial.quick->step_ns > 0; }

/// What is looked at now: these structures alone, or all; with choices of what is offloaded, or without; with choices
/// of recompute that were not opened yet, or without. `moving`: trials that offload, however they were opened.
struct Only {
  std::set<std::size_t> structures;
  bool offload = true, steps = true;
  bool moving = offload;
};

class Searcher {
 public:
  Searcher(const Scenario& scenario, const Options& options, const std::vector<Dimension>& dimensions,
           LeftOut& left_out);

  void run();
  /// The least that a structure costs by its floor, without a search; none where that was interrupted.
  std::optional<double> least_of_structures();
  /// Predicts what stands beside the best in the answer: other parallelisms, other interleavings, no recompute.
  void look_beside(std::size_t best);
  /// Time and peaks of candidates of the winner's structure, for the front and the ladder.
  void scout_structure_of(std::size_t winner);
  std::vector<predict::Prediction> exact_memory(const std::vector<const Trial*>& some);

  const std::vector<Trial>& trials() const { return trials_; }
  Space& space() { return space_; }
  const std::vector<std::string>& refusals() const { return refusals_; }
  bool interrupted() const { return interrupted_; }
  /// Nobody waits for what is not needed, whether the search was over or not.
  bool in_haste() const { return interrupted_ || options_.stop.stop_requested(); }
  /// What stands for a line of its own in the answer.
  const std::set<std::size_t>& shown() const { return shown_; }
  /// `fastest`: what the fastest that fits costs; `never` where nothing does.
  Searched counts(double fastest) const;
  /// The least cost that something not predicted exactly may still have; `never` if nothing is left.
  double lower_bound() const;
  /// By how much the structure that comes nearest to fitting lacks memory at least.
  std::optional<std::pair<std::string, Bytes>> nearest_structure() const;

 private:
  /// What may be looked at more closely, by the least cost that it can have. `structure`: of a spread its own number;
  /// `index`: step; trial; `offload`: step of what is offloaded.
  struct Node {
    enum class Kind : std::uint8_t { spread, structure, step, trial, most_offload, offload };
    double cost = 0;
    Kind kind = Kind::structure;
    std::size_t structure = 0, index = 0, offload = 0;
    auto operator<=>(const Node&) const = default;
  };
  /// How much is known of a spread; once it is open, its structures say more.
  struct KnownSpread {
    double cost = 0;
    RisingBound by_overlap;
    bool open = false, impossible = false;
    bool bounded = false;  ///< there is nothing left to ask
    Bytes lacking;
  };
  /// How much is known of a structure.
  struct Known {
    double cost = 0;
    bool bounded = false, glanced = false, sharp = false, expanded = false, impossible = false;
    bool dived = false, climbed = false, climbed_offload = false;  ///< followed before its turn
    bool of_split = false;                                         ///< what makes its split fit was asked
    bool tight = false;                                            ///< it does not fit without recompute and offload
    std::int64_t candidates = 0;                                   ///< of `holds` that were enumerated
    Bytes lacking;                                                 ///< where impossible: by how much at least
    /// What was seen of it without recompute and offload, which may be one of its candidates: of that identity.
    std::optional<predict::Prediction> glance, estimate;
    std::string of_time;
    std::vector<Bytes> state;  ///< where tight: what each rank holds for good at least
    std::vector<Step> steps;
    std::vector<bool> opened;
  };
  static constexpr std::size_t any_structure = static_cast<std::size_t>(-1);

  void predict_given();
  void bound_spreads();
  void bound(std::size_t spread);
  ByOverlap<std::optional<predict::Prediction>> floors_of_any_split(std::size_t spread, bool any_size);
  /// Its structures; with what makes each of them fit, or that waits for their turn.
  struct Opened : Space::Opened {
    std::vector<SpreadBound> bounds;
  };
  Opened open(std::size_t spread, bool bounds);
  void add(std::size_t spread, Opened opened);
  void pass_over_illegal();
  static void take(const SpreadBound& found, Known& known);
  void bound_structure(std::size_t structure);
  void bound_structures(const std::vector<std::size_t>& structures);
  void bound_offload(std::size_t trial);
  bool wants_bound(const Node& offload) const;
  SpreadBound bound_choice(const Node& offload);
  static std::vector<Bytes> state_below(const Scenario& partial, const predict::Prediction& floor);
  bool may_fit(const Scenario& candidate, const std::vector<Bytes>& state) const;
  Bytes lacking(const Scenario& partial) const;
  void look_closer();
  bool look(double limit, const Only& only = {});
  bool take_up_again();
  std::vector<Node> next_nodes(double limit, const Only& only);
  void expand(std::size_t structure);
  void open_steps(std::size_t structure, std::optional<std::size_t> after, double cost);
  void open_offload(std::size_t trial, std::optional<std::size_t> after, double cost);
  std::vector<std::size_t> opened(const Node& node);
  bool is_given(const Node& step) const;
  void give_up_on(std::size_t trial);
  std::vector<std::size_t> add_trials(std::vector<Trial> trials, std::size_t structure, std::size_t step, double least);
  void floor_of(std::size_t trial);
  void sharpen(std::size_t structure);
  void advance(std::size_t trial);
  void settle(std::size_t trial);
  void settle_choice(Node offload, const SpreadBound& bound);

  void estimate(Trial& trial);
  void glance(Trial& trial);
  predict::Prediction seen(const Trial& trial, const std::optional<predict::Prediction>& of_structure,
                           const std::function<predict::Prediction(const Scenario&)>& look) const;
  void scout(Trial& trial, predict::Depth depth);
  void share_with_group(std::size_t leader);
  void refuse(std::size_t trial, const UsageError& error);
  bool leads(std::size_t trial) const { return groups_[trials_[trial].time_group].front() == trial; }
  bool waits(const Trial& trial) const;
  /// By choice, or as the given does by itself.
  bool offloads(const Trial& trial) const {
    return trial.without || (trial.given && space_.searches_offload() && moves_activations(trial.candidate.scenario));
  }

  double fastest() const;
  double fastest_exact() const;
  double best_cost(const Trial& trial) const;
  std::vector<std::size_t> by_cost() const;

  bool confirm_finalists();
  void confirm_ties();
  using Clock = std::chrono::steady_clock;
  /// Is a simulation over by then, if it takes as long as earlier ones?
  bool in_time(const Trial& trial, Clock::time_point until) const;
  void confirm_something(Clock::time_point until);
  void confirm_likeliest(Clock::time_point until);
  void confirm_alternatives(Clock::time_point until);
  bool take_work(const Trial& trial, std::int64_t most);
  void confirm(const std::vector<std::size_t>& which);
  void conclude(std::size_t predicted);
  void confirm_one(std::size_t trial);
  void predict_all(const std::vector<std::size_t>& which);
  void predict_one(std::size_t trial, const predict::Prediction* same);
  double least_of_step(std::size_t structure, std::size_t step) const;
  std::optional<std::size_t> fastest_of(std::size_t structure) const;
  std::optional<std::size_t> representative(std::size_t structure, int looks_at_most = 40);
  bool confirm_if_better(std::size_t trial);
  bool fullest_ranks_fit(const Trial& trial);
  bool walk_fits(std::size_t trial);
  bool may_be_confirmed(std::size_t trial);
  void confirm_best();
  void dive();
  std::vector<std::size_t> neighbours(std::size_t centre, double limit);
  std::vector<std::size_t> promising(std::optional<std::size_t> centre, double limit);
  std::vector<std::size_t> with_offload(std::size_t centre, double limit);
  void open_nearest(const std::vector<std::size_t>& spreads, std::optional<std::size_t> centre, double limit,
                    std::vector<std::size_t>& found);
  std::vector<std::size_t> likely_steps(std::size_t structure);
  /// A step to recompute beside what is offloaded, with so much to spare.
  struct LikelyMove {
    std::size_t step = 0;
    Bytes spare;
  };
  std::vector<LikelyMove> likely_moves(std::size_t structure);
  std::optional<std::size_t> likely_offload(std::size_t trial, Bytes spare);
  void follow(const std::vector<std::size_t>& fresh);
  void open_ahead(std::size_t structure, const std::vector<std::size_t>& steps);
  void skip_ahead(const std::vector<std::size_t>& structures);
  void move_ahead(const std::vector<std::size_t>& structures);
  bool try_all(const std::vector<std::size_t>& structures, bool offload, double limit);
  /// Looks so far; as many as would have taken as long as estimates, simulations and walks of reserved memory.
  std::int64_t effort() const { return progress_.done + walked_ / work_of_a_look; }
  void climb();

  void in_parallel(std::size_t count, const std::function<void(std::size_t)>& function);
  void report_progress();
  void begin(const char* phase, bool known_length);

  std::string objective_;
  const Options& options_;
  const bool quick_;
  Space space_;
  SpreadBounds spread_bounds_;
  tbb::task_arena arena_;
  std::vector<Spread> spreads_;
  std::vector<KnownSpread> known_spreads_;
  std::vector<Structure> structures_;
  std::vector<Known> known_;
  std::set<Node> open_, shelved_;  ///< shelved: too dear to look at; it counts in the gap
  /// What may be offloaded of trials that do not fit: many have the same choices.
  std::map<std::size_t, Steps> offload_;
  std::int64_t offload_opened_ = 0;
  std::set<std::pair<std::size_t, std::size_t>>
      moved_ahead_,                         ///< trial and step of its offload: opened before its turn
      bounded_moves_;                       ///< ... and what it costs at least is known
  std::map<std::string, int> dives_;        ///< by parallelism
  std::map<std::size_t, double> promises_;  ///< of spreads: a guess at what they may come to
  std::optional<std::size_t> given_;
  std::set<std::size_t> shown_;
  std::vector<Trial> trials_;
  std::vector<std::string> refusals_;
  std::map<std::string, std::size_t> time_groups_;
  std::vector<std::vector<std::size_t>> groups_;
  std::atomic<std::int64_t> simulated_ = 0, estimated_ = 0, bounded_ = 0;
  std::atomic<bool> interrupted_ = false;
  std::int64_t exact_work_ = 0;
  std::atomic<std::int64_t> walked_ = 0;  ///< exact work in all; of walks and estimates their share
  std::atomic<double> s_of_work_ = 0;     ///< of exact work, as long as it took at most
  bool finalists_left_ = false;           ///< for want of exact work
  double mark_ = never;                   ///< what the looks of this round have to exceed to exclude
  Progress progress_;
  std::mutex mutex_;
};

}  // namespace pipewright::plan
