// What no structure of a spread undercuts that fits: where it does not fit without recompute however its layers are
// split, the cheapest recompute with which it may.
//
//   spread --splits--> their own floors without recompute, of the same kernels (no model is built for each)
//          --the least of these that may fit, or with the cheapest recompute with which one may--> bounds the spread
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/plan.hpp"
#include "pipewright/split_floor.hpp"
#include "space.hpp"

namespace pipewright::plan {

/// What was asked for last, by name: all of it would take gigabytes, and what is asked for together stands together.
template <typename T, std::size_t most = 512>
class Recent {
 public:
  std::shared_ptr<const T> find(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    const auto at = kept_.find(name);
    if (at == kept_.end()) return nullptr;
    at->second.asked = ++now_;
    return at->second.value;
  }
  /// Of two threads that made one the first is kept.
  std::shared_ptr<const T> keep(const std::string& name, std::shared_ptr<const T> value) {
    const std::scoped_lock lock(mutex_);
    const auto kept = kept_.try_emplace(name, Kept{std::move(value), ++now_}).first->second.value;
    if (kept_.size() > most)
      kept_.erase(std::ranges::min_element(kept_, {}, [](const auto& one) { return one.second.asked; }));
    return kept;
  }

 private:
  struct Kept {
    std::shared_ptr<const T> value;
    std::int64_t asked = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
  std::int64_t now_ = 0;
};

struct SpreadBound {
  double cost = 0;
  Bytes lacking;       ///< of any structure, at least; none: one may fit
  bool known = false;  ///< else nothing is said
};

/// What a candidate takes at least, what it lacks and would lack with all moved that may be, and the copies for each
/// byte that it lacks. `available`: of the device to a rank's allocator.
struct Guess {
  double time = 0, lacking = 0, moved = 0, ns_per_byte = 0, available = 0;
};

class SpreadBounds;

/// What is known of a spread with one kind of expert overlap.
struct OverlapBound {
  /// Kernels of its parallelism at any pipeline size; whether anything makes it fit; its own kernels, however they are
  /// split; as its splits run them, whether they fit or not; with what makes them fit. Each takes longer to find.
  enum class By : std::uint8_t { any_size, memory, kernels, splits, fit } by = By::any_size;
  double cost = 0;
  Bytes lacking;
  bool none = false;  ///< none of its structures has it, or nothing is known of those
};

/// A spread's bound, raised step by step: the least with any overlap, so that one alone is asked for more.
class RisingBound {
 public:
  void start(Overlap overlap, double any_size) { overlaps_[static_cast<std::size_t>(overlap)].cost = any_size; }
  double cost() const;    ///< 0: nothing is known, or nothing fits
  Bytes lacking() const;  ///< of any structure, at least; none: one may fit
  bool whole() const;     ///< there is nothing left to ask
  const OverlapBound& of(Overlap overlap) const { return overlaps_[static_cast<std::size_t>(overlap)]; }
  /// Precondition: it is not whole.
  void raise(SpreadBounds& bounds, const Spread& spread, double enough);

 private:
  const OverlapBound* least() const;
  ByOverlap<OverlapBound> overlaps_;
};

class SpreadBounds {
 public:
  /// Precondition: the options have `layers`, `spread_floor` and `split`.
  SpreadBounds(const Space& space, const Options& options, std::string objective)
      : space_(space), options_(options), objective_(std::move(objective)) {}

  /// What any of its structures lacks for its state alone, at least; none or less: nothing is known. The cheapest look.
  Bytes of_state(const Spread& spread) const;
  /// The next step of what is known of a spread with that overlap. `enough`: a cost that excludes it; no more is looked
  /// for.
  void raise(const Spread& spread, Overlap overlap, double enough, OverlapBound& bound);
  /// What makes one of its structures fit.
  SpreadBound of_structure(const Spread& spread, const Structure& structure, double enough);
  /// The same of a candidate that offloads nothing by choice.
  SpreadBound of_candidate(const Spread& spread, const Structure& structure, const Scenario& candidate);
  /// What no choice of offload undercuts beside the recompute of a candidate that offloads nothing and does not fit;
  /// or that choice alone, by modules, whatever its share of the layers.
  SpreadBound of_offload(const Spread& spread, const Structure& structure, const Scenario& without,
                         const Scenario* with = nullptr);
  /// What a candidate lacks with what it recomputes and offloads, by modules, as if they were offloaded in all layers.
  /// Its layers serve all structures. Nothing: nothing is known, as where layers are recomputed in full.
  std::optional<Bytes> lacking(const Spread& spread, const Structure& structure, const Scenario& candidate);
  // Guesses, not bounds; where nothing is guessed, nothing or the largest double.
  /// What a parallelism may come to: its kernels with nothing recomputed, and as much more as the share of a recompute
  /// that makes it fit; or less of it, and the copies that move the rest.
  double promise(const Spread& spread);
  /// Of a candidate that recomputes some modules, or none, and offloads nothing.
  std::optional<Guess> guess(const Spread& spread, const Structure& structure, const Scenario& candidate);

 private:
  /// Layers as they run, and what they keep with all moved that may.
  using Moved = std::pair<std::shared_ptr<const predict::Layers>, std::shared_ptr<const predict::Layers>>;
  /// A choice of recompute. Full recompute of some layers of every chunk is one with a number that each split decides.
  /// Its layers, of full recompute all of them in full, are built when they are first asked for.
  struct Choice {
    enum class Kind : std::uint8_t { modules, block, any_block, groups } kind = Kind::modules;
    int block = 0;
    Scenario with;
    std::vector<std::size_t> within;  ///< earlier choices of modules that do a part of what this one does
    mutable std::once_flag built, moved, priced;
    mutable std::shared_ptr<const predict::Layers> as_built, as_moved, as_priced;
  };
  struct Choices {
    Scenario of_bare;
    std::shared_ptr<const predict::Layers> bare, bare_kept;
    std::deque<Choice> all;
    mutable std::once_flag least_found;
    mutable std::shared_ptr<const predict::Layers> least;  ///< no set of modules keeps less; null: that is not known
    mutable const predict::Layers* in_full = nullptr;      ///< whole chunks; null: that is no choice
  };
  /// A split, and what its kernels cost at least; `ordered`: also in the order of the schedule.
  struct OfSplit {
    std::shared_ptr<const predict::Split> split;
    double bare = 0;
    bool ordered = false;
  };
  /// What is the same for all structures of a spread with one expert overlap.
  struct Kernels {
    Scenario example;
    std::shared_ptr<const predict::SpreadFloor> floor;
    mutable std::once_flag chosen, split;
    mutable std::shared_ptr<const Choices> choices;
    mutable std::vector<OfSplit> splits;
    mutable std::mutex mutex;
    mutable std::map<const Choice*, double> means;  ///< with a choice in all layers, however they are split
    double bare = 0, ns_per_cost = 1;
    Bytes of_state{INT64_MIN};  ///< what a rank lacks for good
  };
  const Choices& choices(const Spread& spread, const Kernels& kernels);
  std::shared_ptr<const Choices> choices(const Spread& spread, Overlap overlap, const Scenario& example);
  void make(Choices& choices, const Scenario& example, Overlap overlap) const;
  /// Null: nothing is known of them. Priced at once where that is worth it by what they keep.
  const predict::Layers* built(const Choices& choices, const Choice& choice,
                               const std::function<bool(const predict::Layers&)>& worth_a_price) const;
  const predict::Layers* timed(const Choices& choices, const Choice& choice) const;
  /// What any structure with that overlap lacks for its state and what its layers keep at least, whatever is recomputed
  /// and moved; none: one may fit.
  Bytes of_memory(const Spread& spread, Overlap overlap);
  std::optional<std::pair<predict::LeastMemory, Scenario>> memory(const Spread& spread, Overlap overlap) const;
  void find_least(const Choices& choices) const;
  /// What a split lacks whatever is recomputed and moved, at least; none or less: it may fit, or nothing is known.
  /// `Memory`: predict::LeastMemory or SpreadFloor.
  template <class Memory>
  Bytes lacking_of_any(const Memory& memory, const predict::Split& split, const Choices& choices) const;
  /// Ways to split layers, made for memory and asked again for time.
  std::shared_ptr<const std::vector<predict::Split>> shapes(const Spread& spread, Overlap overlap);
  const predict::Layers* kept(const Choices& choices, const Choice& choice) const;
  std::shared_ptr<const predict::Layers> kept(const Scenario& with,
                                              const std::shared_ptr<const predict::Layers>& timed) const;
  std::shared_ptr<const predict::Layers> unpriced(const Scenario& with) const;
  std::shared_ptr<const predict::Layers> priced(const Scenario& with) const;
  std::shared_ptr<const Moved> beside_offload(const Spread& spread, const Scenario& without);
  /// As if what it offloads were in all layers.
  std::shared_ptr<const predict::Layers> offloaded(const Spread& spread, const Scenario& candidate);
  static bool is_full(const Scenario& s);
  static int longest_chunk(const predict::Split& split);
  std::shared_ptr<const Kernels> make(const Scenario& example) const;
  std::shared_ptr<const Kernels> kernels(const Spread& spread, Overlap overlap);
  double mean(const Kernels& kernels, const Choice& choice, const predict::Layers& layers) const;
  /// The least of these splits, where it is less than `enough`.
  SpreadBound bound(const Spread& spread, const Kernels& kernels, std::vector<OfSplit> splits, double enough);
  SpreadBound bound(const Spread& spread, const Kernels& kernels, double enough);
  /// By what they cost at least. The order of the schedule is followed until one is the least, and below `enough`.
  const std::vector<OfSplit>& splits(const Spread& spread, const Kernels& kernels, double enough);
  void follow_order(const Kernels& kernels, OfSplit& one, double enough) const;
  double time(const Kernels& kernels, const predict::Split& split, const predict::Layers* layers,
              const std::vector<double>& part, double enough) const;

  /// `time`: of the kernels; that, or what the copies without which `all` does not fit take. `moved`: it with all moved
  /// that may be, made where it is asked for.
  SpreadBound with_copies(const predict::SpreadFloor& floor, const predict::Split& split, double time,
                          const predict::Replay& all, const std::function<predict::Replay()>& moved) const;
  double ns_per_byte(const predict::SpreadFloor& floor, predict::Split split, const predict::Replay& all,
                     const predict::Replay& moved) const;

  const Space& space_;
  const Options& options_;
  const std::string objective_;
  Recent<Choices> choices_;
  Recent<Moved> moved_;
  Recent<predict::Layers, 4096> offloaded_;  ///< small ones
  Recent<Kernels> kernels_;
  Recent<std::vector<predict::Split>, 128> shapes_;  ///< some 10 kB for each split
};

}  // namespace pipewright::plan
