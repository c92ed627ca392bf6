// The space of candidates in three levels: spreads (parallelism, micro batch and stated fields), in one of them
// structures (interleaving, layer split, expert overlap) and, within one of those, the choices that only add work or
// move memory (recompute, offload, allocator). A structure without recompute and offload is a lower bound of the time
// of everything in it; the kernels of a spread's model, however they are split, one of all its structures.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "candidates.hpp"
#include "rules.hpp"

namespace pipewright::plan {

struct Spread {
  Scenario partial;
  std::vector<Value> chosen;
  std::string label;
  std::int64_t structures = 1, holds = 1;  ///< of it, and candidates in those, legal or not
};

struct Structure {
  Scenario partial;
  std::vector<Value> chosen;
  std::string label;
  std::int64_t holds = 1;  ///< candidates in it, legal or not
  std::size_t spread = 0;  ///< its number among all
};

/// What expert-parallel overlap makes of layers: with weight gradients apart their halves run in another order.
enum class Overlap : std::uint8_t { none, experts, delayed };
inline constexpr std::array all_overlaps = {Overlap::delayed, Overlap::experts, Overlap::none};
/// What is known of each of them, by its number.
template <typename T>
using ByOverlap = std::array<T, all_overlaps.size()>;
inline Overlap overlap_of(const Scenario& s) {
  if (!s.settings.overlap_moe_expert_parallel_comm) return Overlap::none;
  return s.settings.delay_wgrad_compute ? Overlap::delayed : Overlap::experts;
}

/// A choice of recompute or offload. It does the work of `after`, and more, so it is worth a look only where that does
/// not fit.
struct Step {
  Value value;
  std::optional<std::size_t> after;
  bool operator==(const Step&) const = default;
};
using Steps = std::shared_ptr<const std::vector<Step>>;

class Space {
 public:
  Space(const Scenario& base, const std::vector<Dimension>& dimensions, LeftOut& left_out);

  /// The scenario as it stands; none where a rule refuses it.
  std::optional<Trial> given();

  std::vector<Spread> spreads();
  /// A spread's structures: those that Megatron Core can run, and the others. Many may be opened at a time.
  struct Opened {
    std::vector<Structure> structures;
    std::vector<Rejected> rejected;
    std::int64_t illegal = 0, not_modelled = 0;  ///< candidates of those
    LeftOut left_out;
  };
  Opened open(const Spread& spread) const;
  /// Equal for spreads that give a GPU the same work: they differ in the pipeline's size alone.
  std::string work_of(const Spread& spread) const;
  /// Of what a spread, or one of its structures, was chosen.
  std::string name_of_spread(const std::vector<Value>& chosen) const;
  /// ... what that leaves out and rejects.
  void add(Opened& opened);
  /// All structures of all spreads.
  std::vector<Structure> structures();
  /// Offers structures of a spread with that expert overlap until one is taken: without_work() of all of them runs the
  /// same kernels. False: there is none.
  bool example(const Spread& spread, Overlap overlap, const std::function<bool(const Scenario&)>& take) const;
  /// The legal candidates of a structure that are not equal to earlier ones.
  std::vector<Trial> candidates(const Structure& structure);
  /// The same bit by bit: the choices of recompute, the candidates of one that offload nothing, what may be offloaded
  /// of one of those, and the candidates of that.
  std::vector<Step> steps(const Structure& structure);
  std::vector<Trial> without_offload(const Structure& structure, const Step& step);
  Steps offload_steps(const Trial& without);
  std::vector<Trial> with_offload(const Structure& structure, const Step& recompute, const Step& offload);
  bool same_spread(const Structure& a, const Structure& b) const;
  std::size_t structural() const { return structural_; }  ///< dimensions that make a structure
  bool searches_offload() const { return offload_ < dimensions_.size(); }
  /// Without what is searched below a structure: nothing in the structure does less.
  Scenario bare(const Scenario& partial) const;

  bool searches_recompute() const { return recompute_ < dimensions_.size(); }
  /// How much of a given recompute there is depends on the layer split: without it, and without offload.
  static Scenario without_work(Scenario scenario);

  // What a spread's bound goes by (spread_bounds.cpp); legal or not.
  /// Ways to split the layers, one for each interleaving, group size and layout.
  std::vector<Scenario> splits(const Spread& spread, Overlap overlap) const;
  /// A structure with each choice of recompute, one of full recompute for all where it is searched, with none; what is
  /// offloaded stays as given, or nothing is.
  std::vector<Scenario> recomputed(const Scenario& partial) const;
  Scenario none_recomputed(const Scenario& partial) const;
  /// With as much offload as is searched beside; none where whole layers are.
  std::optional<Scenario> most_offloaded(const Scenario& partial) const;

  std::vector<Rejected> rejected;
  std::int64_t enumerated = 0, duplicates = 0, illegal = 0, not_modelled = 0;

 private:
  /// The values of a dimension that are wanted; empty: all.
  using Narrow = std::function<std::vector<Value>(std::size_t dimension, const Scenario& partial)>;
  /// Stops where `sink` returns false.
  template <typename Sink>
  bool decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
              LeftOut& left_out, const Sink& sink, const Narrow& narrow = {}) const;
  std::vector<Trial> narrowed(const Structure& structure, const Narrow& narrow);
  std::int64_t size_of(const Scenario& partial) const;
  std::pair<std::int64_t, std::int64_t> size_of_spread(const Scenario& partial) const;
  std::optional<Trial> finished(const Scenario& decided, const std::vector<Value>& chosen);
  std::optional<Finding> refused(const Scenario& scenario, bool structural = false) const;
  /// What the model refuses of all that a structure holds; empty: nothing.
  std::string not_modelled_of(const Scenario& partial) const;

  const Scenario& base_;
  const std::vector<Dimension>& dimensions_;
  LeftOut& left_out_;
  std::size_t spread_ = 0, structural_ = 0;  ///< dimensions that make a spread, a structure
  std::size_t recompute_ = 0, offload_ = 0;  ///< the dimensions of these names, or none: their number
  Scenario kept_as_given(const Scenario& partial) const;

  mutable std::mutex mutex_;
  mutable std::map<std::string, std::int64_t> sizes_;
  std::set<std::string> seen_;
  std::vector<Steps> offload_choices_;  ///< few lists serve all trials
  std::string given_;  ///< identity of the scenario as it stands, until its place in the space was reached
};

template <typename Sink>
bool Space::decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
                   LeftOut& left_out, const Sink& sink, const Narrow& narrow) const {
  if (depth == until) return sink(partial, chosen);
  std::vector<Value> values;
  if (narrow) values = narrow(depth, partial);
  if (values.empty()) values = dimensions_[depth].values(partial, left_out);
  if (values.empty()) values.push_back({"", {}, {}});  // nothing to decide here: as given
  return std::ranges::all_of(values, [&](Value& value) {
    Scenario next = partial;
    auto choice = chosen;
    choice.push_back(std::move(value));
    apply(choice.back(), next);
    return decide(depth + 1, until, next, choice, left_out, sink, narrow);
  });
}

/// Equal for scenarios that are; `of_time`: also for those that differ in the allocator's configuration only.
struct Identity {
  std::string of_time, whole;
};
Identity identity(const Scenario& scenario);
/// May a rule's verdict change with recompute, offload or allocator? By the settings that it names.
bool judges_structures(const Rule& rule);
/// Keeps the last assignment of every name, in the order of first mention.
void merge(Assignments& into, const Assignments& more);

}  // namespace pipewright::plan
