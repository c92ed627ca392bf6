// One scenario through model, schedule, timeline and memory: the prediction that every command prints or ranks.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::predict {

/// How near a rank comes to running out of memory, and why; asked of predict().
struct Pressure {
  enum class Verdict : std::uint8_t { fits, fits_expandable, does_not_fit } verdict = Verdict::fits;
  Bytes needed;                       ///< device memory, what lies outside the allocator included
  std::optional<double> probability;  ///< that it fits without the margin; none where no profile knows the errors
  memory::Fragmentation as_configured, expandable;
  std::optional<memory::Failure> failure;  ///< where the step runs out of memory, the margin used up
  std::string message;                     ///< then: PyTorch's own words
};

struct RankPrediction {
  int pp_rank = 0;
  timeline::Account account;
  memory::Walk walk;          ///< under limit and margin; of quick looks only static_bytes, peaks and graph_pool
  Bytes outside_allocator;    ///< device memory besides
  std::int64_t slack_ns = 0;  ///< by how much its computation may be late without the step being so; find_levers
  bool fits = true;
  std::optional<Pressure> pressure;  ///< asked of predict()
};

/// Shares of time by where it comes from; they add up to 1.
struct OriginShares {
  double measured = 0, interpolated = 0, published = 0, derived = 0;
  std::string text() const;          ///< "96 % measured, 4 % derived"
  std::string_view weakest() const;  ///< "derived": the weakest that makes up a thousandth
};

/// A cause of the interval: by how much it alone would move the step's 90 % ends. Their squares add up.
struct IntervalPart {
  std::string cause;
  double minus_ns = 0, plus_ns = 0;
  std::string source;
};

struct Prediction {
  std::string scenario;
  std::string profile;
  OriginShares origins;  ///< of the kernels' time on the rank that finishes last
  std::string megatron_core;
  std::int64_t forward_backward_ns = 0, optimizer_ns = 0, step_ns = 0;
  std::int64_t interval_low_ns = 0, interval_high_ns = 0;  ///< 90 % interval of the step
  std::vector<IntervalPart> interval_parts;                ///< what it is made of
  double tflops_per_gpu = 0, tokens_per_s_per_gpu = 0;
  std::optional<double> mfu;  ///< of the part's dense bf16 peak; none where that is not known
  int last_rank = 0;
  std::vector<RankPrediction> ranks;
  std::vector<timeline::Boundary> boundaries;
  std::vector<timeline::CriticalStep> critical_path;
  std::vector<timeline::Lever> levers;  ///< what would shorten the step; find_levers
  bool fits = true;
  Bytes memory_limit, memory_margin;
  std::vector<std::string> ignored;  ///< names that are not modelled and were let through: the interval does not hold
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> time_sources;  ///< kernel family -> profile, origin (for reports)

  // The most that one of the ranks has:
  Bytes most_allocated() const;
  Bytes most_reserved() const;
  Bytes most_needed() const;  ///< of its device: reserved, and outside the allocator
};

/// Loads the profiles a scenario names (cluster.profile, or those given by --profile, first has precedence).
profile::Profiles profiles_of(const scenario::Scenario& scenario, const std::vector<std::string>& overrides = {});

/// Tells the scenario's rules what GPU it runs on (Cluster::compute_capability).
void name_gpu(scenario::Scenario& scenario, const profile::Device& gpu);

/// What stands behind a prediction: for traces, timelines and `explain`.
struct Run {
  model::Stages stages;
  schedule::Program program;
  timeline::Result timeline;
};

/// Some of the pipeline's ranks.
using Ranks = std::function<bool(int pp_rank)>;
inline bool every_rank(int /*pp_rank*/) { return true; }

/// `run`, where given, receives what the prediction was made from. `pressed`: ranks whose pressure is told, too; it
/// replays their memory once to several times more.
Prediction predict(const scenario::Scenario& scenario, const profile::Profiles& profiles, Run* run = nullptr,
                   const Ranks& pressed = {});

/// Fills `levers` and every rank's slack: simulates the step again for each change.
void find_levers(Prediction& prediction, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                 const Run& run);

/// That a rank fits, from the measured errors of reserved memory and of what lies outside the allocator; none where no
/// profile knows them. `spare`: what the device has beyond both.
std::optional<double> probability_to_fit(Bytes reserved, Bytes spare, const profile::Profiles& profiles);
/// Of the rank that is least likely to; ranks err together.
std::optional<double> probability_to_fit(const Prediction& prediction, const profile::Profiles& profiles);

/// The largest moe_load_imbalance with which a mixture still fits; `any`: whatever the routing.
struct Imbalance {
  double largest = 1;
  bool any = false;
};
/// Nothing for models without experts on several ranks, with a capacity, or that do not fit as they are.
std::optional<Imbalance> find_imbalance(const Prediction& prediction, const scenario::Scenario& scenario,
                                        const profile::Profiles& profiles, const Run& run);

/// Packed sequences by other rules, by the chunk-level engine.
struct PackingGain {
  double balanced = 0;  ///< change of the step with pack_order balanced, relative
  double padded = 1;    ///< time for the same sequences, each padded to a row of its own, over that of the packed ones
};
/// Nothing where no sequences are packed.
std::optional<PackingGain> find_packing(const scenario::Scenario& scenario, const profile::Profiles& profiles);

// ---- Quick looks, for the search

/// Times by the chunk-level engine, or where it cannot express the scenario by the exact one on a shortened schedule:
/// step, throughput; no accounts, memory, interval. Within estimate_bounds() of predict() (bounds.hpp).
Prediction estimate(const scenario::Scenario& scenario, const profile::Profiles& profiles);
/// The same where nothing slows what runs beside it: within estimate_bounds() no more than predict(), several times
/// faster. step_ns 0: the chunk-level engine does not express it.
Prediction glance(const scenario::Scenario& scenario, const profile::Profiles& profiles);

/// What no prediction of this scenario undercuts, in a millisecond: the least step (timeline::floor) and each rank's
/// least peak (memory::floor); `static_bytes` is the part of it that a rank holds for good. `fits` false: it certainly
/// does not.
Prediction floor(const scenario::Scenario& scenario, const profile::Profiles& profiles);

/// Whether memory rules a scenario out as its floor() would, without its times. `state`: what its ranks hold for good,
/// of the floor of one that differs in recompute and offload alone.
bool fits_by_floor(const scenario::Scenario& scenario, const profile::Profiles& profiles,
                   const std::vector<Bytes>& state);
std::vector<Bytes> state_of(const Prediction& floor);

/// What no prediction undercuts that differs from this one in how layers are spread over the pipeline's ranks, chunks
/// and groups of microbatches, without recompute and offload; a rank's state is the mean of all, of which one has as
/// much. `any_size`: nor one with longer pipelines and fewer copies of them; its times only.
Prediction floor_of_any_split(const scenario::Scenario& scenario, const profile::Profiles& profiles,
                              bool any_size = false);

/// How far a quick look at memory goes: the peak of the first two ranks and the last one; of all.
enum class Depth : std::uint8_t { ends, ranks };
/// Fills an estimate's ranks with allocated bytes. `fits` false: it certainly does not, reserved memory can only be
/// more; otherwise predict() decides.
void scout_memory(const scenario::Scenario& scenario, const profile::Profiles& profiles, Depth depth,
                  Prediction& estimate);

/// Two scenarios by the chunk-level engine, with every family of kernels slower by a little in turn: errors that both
/// share cancel.
struct Comparison {
  double difference_ns = 0;  ///< step of the second less the first
  double spread_ns = 0;      ///< one standard deviation of that difference, from the measurements' spreads
  std::string family;        ///< the one whose error turns the order soonest; empty: none does
  double error_to_turn = 0;  ///< relative error of that family's times that makes both equal
  double family_spread = 0;  ///< the relative spread that it has
  double half_interval_ns() const { return sigmas_of_90_percent * spread_ns; }  ///< of 90 %, to either side
  bool tied() const { return std::abs(difference_ns) <= half_interval_ns(); }
};
/// One with each of some others. Zero difference and spread where one of them has no estimate.
std::vector<Comparison> compare(const scenario::Scenario& first, const std::vector<const scenario::Scenario*>& others,
                                const profile::Profiles& profiles);

/// The memory part anew for a scenario whose times are those of `same` (another PYTORCH_CUDA_ALLOC_CONF).
Prediction predict_memory(const scenario::Scenario& scenario, const profile::Profiles& profiles, Prediction same);

}  // namespace pipewright::predict
