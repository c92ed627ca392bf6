// What no structure of a spread undercuts that fits: where it does not fit without recompute however its layers are
// split, the cheapest recompute with which it may.
//
//   spread --splits--> which recompute may fit in any of them (memory alone, no model is built)
//          --those---> their kernels however they are split; the least of these bounds the spread
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipewright/plan.hpp"
#include "pipewright/split_floor.hpp"
#include "space.hpp"

namespace pipewright::plan {

struct SpreadBound {
  double cost = 0;
  Bytes lacking;       ///< of any structure, at least; none: one may fit
  bool known = false;  ///< else nothing is said
};

class SpreadBounds {
 public:
  /// Precondition: the options have `layers`, `spread_floor` and `split`.
  SpreadBounds(const Space& space, const Options& options, std::string objective)
      : space_(space), options_(options), objective_(std::move(objective)) {}

  /// `enough`: a cost that excludes it; no more is looked for.
  SpreadBound operator()(const Spread& spread, double enough);
  /// The same of one of its structures.
  SpreadBound of_structure(const Structure& structure);

 private:
  /// A choice of recompute. Full recompute of some layers of every chunk is one with a number that each split decides.
  struct Choice {
    enum class Kind : std::uint8_t { modules, block, any_block, groups } kind = Kind::modules;
    std::shared_ptr<const predict::Layers> timed, kept;  ///< of full recompute: every layer in full
    int block = 0;
    bool free = false;  ///< nothing is known of it: it costs nothing and fits
  };
  struct Choices {
    std::shared_ptr<const predict::Layers> bare, bare_kept;
    std::vector<Choice> all;
  };
  /// What is the same for all structures of a spread, with or without expert overlap.
  struct Kernels {
    std::shared_ptr<const predict::SpreadFloor> floor;
    std::shared_ptr<const Choices> choices;
    double bare = 0;
    Bytes of_state{INT64_MIN};   ///< what a rank lacks for good
    std::vector<double> choice;  ///< of each choice, every layer of it
  };
  std::shared_ptr<const Choices> choices(const Spread& spread, const Scenario& example, bool overlap);
  Choices make(const Scenario& example, bool overlap) const;
  std::shared_ptr<const predict::Layers> kept(const Scenario& with,
                                              const std::shared_ptr<const predict::Layers>& timed) const;
  std::shared_ptr<const Kernels> kernels(const Spread& spread, const Scenario& example, bool overlap);
  SpreadBound bound(const Kernels& kernels, const std::vector<predict::Split>& splits) const;
  SpreadBound bound(const Spread& spread, const Scenario& example, bool overlap, double enough);

  const Space& space_;
  const Options& options_;
  const std::string objective_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Choices>> choices_;
  std::map<std::string, std::shared_ptr<const Kernels>> kernels_;
};

}  // namespace pipewright::plan
