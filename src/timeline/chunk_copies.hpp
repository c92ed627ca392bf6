// Copies of activation offload in the chunk-level engine: at each hook what the plan says (offload.hpp), by the rules
// of offload_copies.hpp. What a group of fine-grained offload copies together is one copy.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collapse.hpp"
#include "pipewright/offload.hpp"

namespace pipewright::timeline {

/// Of every group, made once for all rounds: [piece][group].
struct CopyPrices {
  struct Copy {
    double ns = 0, gaps = 0;  ///< gaps: those between its kernels, which nothing slows
    double host = 0;          ///< launches
    double behind_host = 0;   ///< the longest way from before its first launch to its end
    std::uint32_t after = model::OffloadGroup::none;
  };
  struct Group {
    Copy out, in;
    std::vector<Copy> outs;  ///< whole layers: each by itself, once its tensor is there
  };
  std::vector<std::vector<Group>> groups;
};
CopyPrices price_copies(const model::Stages& stages, const Prices& prices, std::int64_t gap_ns);

/// What takes time at a rank's hooks.
class CopyPlan {
 public:
  CopyPlan() = default;
  CopyPlan(const CopyPrices& prices, const offload::Plan& plan);

  struct Act {
    offload::Action::Kind kind;
    std::uint32_t unit, position;
    const CopyPrices::Group* group;
  };
  std::span<const Act> at(std::size_t hook, std::size_t hooks) const {
    return {acts_.data() + first_[hook], acts_.data() + first_[hook + hooks]};
  }
  bool empty() const { return first_.empty(); }
  std::size_t units() const { return units_; }
  bool whole_layer() const { return whole_layer_; }
  bool stash() const { return stash_; }

 private:
  std::vector<Act> acts_;
  std::vector<std::uint32_t> first_;  ///< by hook, and the end
  std::size_t units_ = 0;
  bool whole_layer_ = false, stash_ = false;
};

/// When a copy ran. A rank's in a round, by direction: D2H, H2D; one after the other.
using CopySpan = std::pair<double, double>;
using CopySpans = std::array<std::vector<CopySpan>, 2>;
/// Time of each over its time alone.
using CopySlowdowns = std::array<std::vector<double>, 2>;

/// One rank's copies in a round.
class ChunkCopies {
 public:
  /// `slower`: by the round before.
  ChunkCopies(const CopyPlan& plan, CopySlowdowns slower);

  /// Whether anything happens at one of the next hooks.
  bool act(std::uint32_t hooks) const { return hooks > 0 && !plan_.at(next_, hooks).empty(); }
  /// The next hooks, on the queue `own`.
  void hooks(std::uint32_t count, QueueTimes& at, std::size_t own);
  void skip(std::uint32_t count) { next_ += count; }
  /// Whole layers: the forward pass comes to a piece, and has launched a kernel of it that ends then.
  void enter(std::size_t position, double at);
  void launched(std::uint32_t kernel, double end);

  CopySpans leave() { return std::move(spans_); }
  CopySlowdowns slowdowns() { return std::move(slower_); }

 private:
  using Copy = CopyPrices::Copy;
  double copy_out(QueueTimes& at, std::size_t own, const CopyPlan::Act& act);
  double copy_in(QueueTimes& at, std::size_t own, const CopyPlan::Act& act);
  double run(QueueTimes& at, const Copy& copy, std::size_t queue, double ready, std::size_t way);

  struct Present {
    double start = 0;
    std::vector<double> kernels;
  };
  const CopyPlan& plan_;
  std::size_t next_ = 0;
  std::vector<double> out_, in_;  ///< by unit: when its last copy ends; below 0: none
  std::vector<Present> present_;  ///< whole layers: by position, of the current microbatch
  std::size_t position_ = 0;
  CopySlowdowns slower_;
  CopySpans spans_;
};

}  // namespace pipewright::timeline
