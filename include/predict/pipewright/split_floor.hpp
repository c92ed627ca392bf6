// Floors of many structures at a time: what the layers of a parallelism take and keep under one choice of recompute,
// however they are split over ranks and chunks.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pipewright/predict.hpp"

namespace pipewright::predict {

/// Layers under one choice of recompute: the same for all pipeline sizes. `works`: where they are priced.
struct Layers {
  std::shared_ptr<const timeline::LayerWorks> works;
  /// Of the layer of that number: what a forward leaves for its backward. Under full recompute, each layer for itself.
  std::vector<std::int64_t> kept;
  std::int64_t embedding = 0, head = 0;                ///< what these leave
  std::int64_t added_by_layer = 0, added_by_head = 0;  /// what a backward that begins there makes besides, at least
  /// Under expert-parallel overlap: layers that are alike by number of their kind, and what two kinds take that take
  /// turns, [forward][backward], in either of them kind 0: no layer. Else empty.
  std::vector<std::uint32_t> kind;
  std::vector<std::vector<memory::Grown>> grown;
};
/// Layers that are built and may be priced, which takes as long again: what does not fit need not be.
class LayersDraft {
 public:
  LayersDraft(scenario::Scenario scenario, const profile::Profiles& profiles);
  /// Without `works` until price() was called.
  const std::shared_ptr<Layers>& layers() const { return layers_; }
  void price();

 private:
  scenario::Scenario scenario_;
  const profile::Profiles& profiles_;
  model::Stages stages_;
  std::shared_ptr<Layers> layers_ = std::make_shared<Layers>();
};
/// Without prices: of two choices the less of what each layer keeps.
Layers least_of(const Layers& one, const Layers& other);
/// No layer keeps anything.
Layers nothing_kept(const scenario::Scenario& scenario);

using Split = timeline::LayerSplit;
/// Splits of many structures, whose schedules they share.
class Splits {
 public:
  explicit Splits(const profile::Profiles& profiles) : profiles_(profiles) {}
  Split of(const scenario::Scenario& structure);

 private:
  std::shared_ptr<const Split::Schedule> schedule_of(const schedule::Config& config);
  const profile::Profiles& profiles_;
  std::mutex mutex_;
  std::map<std::array<int, 5>, std::shared_ptr<const Split::Schedule>> known_;
};

/// A choice of recompute as memory sees it: `layers` as they are, but of every chunk the first `block` as `replayed`
/// has them, or with `groups` one checkpoint for the whole chunk.
struct Replay {
  const Layers* layers = nullptr;
  const Layers* replayed = nullptr;
  int block = 0;
  bool groups = false;
};

/// What ranks of a parallelism hold at least: no model is built for it, and nothing priced.
class LeastMemory {
 public:
  /// `example`: any of its structures.
  LeastMemory(const scenario::Scenario& example, const profile::Profiles& profiles);
  /// What some rank lacks at least for what it holds for good, however the layers are split; none or less: all may hold
  /// it.
  Bytes lacking() const;
  /// What a rank of a split lacks at least, whatever the split says of memory available; none or less: it may fit.
  Bytes lacking(const Split& split, const Replay& replay) const;
  const model::LeastState& state() const { return state_; }

 private:
  model::LeastState state_;
  int ranks_;
  Bytes available_;  ///< of a device to the allocator of the rank that has most of it
};

/// A parallelism.
class SpreadFloor {
 public:
  /// `example`: any of its structures, without recompute and offload.
  SpreadFloor(const scenario::Scenario& example, const profile::Profiles& profiles);
  SpreadFloor(const SpreadFloor&) = delete;
  SpreadFloor& operator=(const SpreadFloor&) = delete;
  ~SpreadFloor() = default;
  /// As floor_of_any_split: with the example's own layers, and the memory of a rank; times with other layers; of each
  /// layer with so much of the others'.
  Prediction least() const { return least(nullptr, {}); }
  Prediction least(const Layers& all) const { return least(&all, {}); }
  Prediction least(const Layers& some, const std::vector<double>& part) const { return least(&some, part); }
  /// The same of one split, whose busiest rank may have more to do than the mean of all; `layers`: null for its own.
  /// `enough`, ns: what takes as long by that rank is not followed through the order of the schedule.
  Prediction least(const Split& split, const Layers* layers = nullptr, const std::vector<double>& part = {},
                   double enough = std::numeric_limits<double>::max()) const;
  /// What a rank lacks at least; none or less: it may fit.
  Bytes lacking(const Split& split, const Replay& replay) const;
  /// Where a rank lacks memory with `kept` and activation offload may leave no more than `moved` of it: the copies
  /// without which it does not fit. What is moved of a layer is moved of all layers alike on the rank, in every
  /// microbatch, and makes free what forwards on the way keep of it. Nothing: it does not fit.
  std::optional<Prediction> moving(const Split& split, const Replay& kept, const Replay& moved) const;

 private:
  Prediction least(const Layers* other, const std::vector<double>& part) const;
  /// At one of them, where it lacks `left`: bytes of a microbatch that leave the device.
  std::optional<double> moving(const Split::Rank& rank, const std::vector<int>& in_flight, std::int64_t left,
                               const Replay& kept, const Replay& moved) const;
  scenario::Scenario example_;
  const profile::Profiles& profiles_;
  model::Stages stages_;
  schedule::Config config_;
  timeline::Prices prices_;
  timeline::SplitFloor floor_;
  LeastMemory memory_;
  timeline::LeastCopies copies_;
};

}  // namespace pipewright::predict
