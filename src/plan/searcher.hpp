// The search. Small spaces without quick looks are predicted as a whole. With them (Options::floor, estimate, scout) it
// is best first: what may still be fastest is looked at more closely, step by step, until nothing that is left can win.
//
//   structure --floor--> --estimate--> candidates --floor--> --estimate--> --scout--> finalists --predict--> ranking
//                                          |                                 |
//                                          +--- does not fit: with offload --+
//
// A floor bounds from below: a structure's without recompute, offload and exposed transfers everything in it, a
// candidate's without offload the same with it. Its memory rules out what cannot fit. The exact engine decides among
// what is nearer to the best than the engines differ.
#pragma once

#include <tbb/task_arena.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "candidates.hpp"
#include "pipewright/plan.hpp"
#include "space.hpp"

namespace pipewright::plan {

inline constexpr double never = std::numeric_limits<double>::max();

/// Bound of the difference between the engines (tests/predict/engines_test.cpp).
inline constexpr double engines_differ = 0.01;

class Searcher {
 public:
  Searcher(const Scenario& scenario, const Options& options, const std::vector<Dimension>& dimensions,
           LeftOut& left_out);

  void run();
  /// Time and peaks of every candidate of the winner's structure that is cheap to look at, for the front and the
  /// ladder.
  void scout_structure_of(std::size_t winner);
  std::vector<predict::Prediction> exact_memory(const std::vector<const Trial*>& some);

  std::vector<Trial>& trials() { return trials_; }
  Space& space() { return space_; }
  const std::vector<std::string>& refusals() const { return refusals_; }
  bool interrupted() const { return interrupted_; }
  Searched counts() const;
  /// The least cost that something not predicted exactly may still have; `never` if nothing is left.
  double lower_bound() const;

 private:
  /// What may be looked at more closely, by the least cost that it can have.
  struct Node {
    enum class Kind : std::uint8_t { structure, trial, offload };
    double cost = 0;
    Kind kind = Kind::structure;
    std::size_t index = 0;  ///< structure; trial
    auto operator<=>(const Node&) const = default;
  };
  /// How much is known of a structure.
  struct Bound {
    double cost = 0;
    bool sharp = false, expanded = false, impossible = false;
    std::int64_t candidates = 0;  ///< of `holds` that were expanded
  };

  void bound_structures();
  bool can_fit(const Scenario& partial, const predict::Prediction& floor) const;
  void look_closer();
  void look_wider();
  bool look(double limit);
  std::vector<Node> next_nodes(double limit);
  void expand(const Node& node);
  void add_trials(std::vector<Trial> trials, std::size_t structure);
  void floor_from(std::size_t first);
  void sharpen(std::size_t structure);
  void advance(std::size_t trial);
  void settle(std::size_t trial);
  bool open_offload();

  void estimate(Trial& trial);
  void scout(Trial& trial, predict::Depth depth);
  void share_with_group(std::size_t leader);
  void refuse(std::size_t trial, const UsageError& error);
  bool leads(std::size_t trial) const { return groups_[trials_[trial].time_group].front() == trial; }

  std::size_t known_to_fit() const;
  double fastest() const;
  double best_cost(const Trial& trial) const;
  std::vector<std::size_t> by_cost() const;

  bool confirm_finalists();
  void confirm_best_so_far();
  void open_likely_structures();
  void scout_finalists(const std::vector<std::size_t>& order);
  void confirm(const std::vector<std::size_t>& which);
  void predict_group(const std::vector<std::size_t>& members);

  void in_parallel(std::size_t count, const std::function<void(std::size_t)>& function);
  void report_progress();

  std::string objective_;
  const Options& options_;
  Space space_;
  tbb::task_arena arena_;
  std::vector<Structure> structures_;
  std::vector<Bound> bounds_;
  std::set<Node> open_, later_;
  std::set<std::size_t> with_offload_;  ///< trials whose offload variants were looked at
  std::vector<Trial> trials_;
  std::vector<std::string> refusals_;
  std::map<std::string, std::size_t> time_groups_;
  std::vector<std::vector<std::size_t>> groups_;
  std::atomic<std::int64_t> simulated_ = 0, estimated_ = 0, bounded_ = 0;
  std::atomic<bool> interrupted_ = false;
  std::int64_t costly_left_, done_ = 0, total_ = 0;
  std::mutex mutex_;
};

}  // namespace pipewright::plan
