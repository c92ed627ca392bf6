// One scenario through model, schedule, timeline and memory: the prediction that every command prints or ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::predict {

struct OwnerBytes {
  std::string owner;
  Bytes bytes;
};

struct RankPrediction {
  int pp_rank = 0;
  timeline::Account account;
  Bytes static_bytes, peak_allocated, peak_reserved, outside_allocator;
  Bytes graph_pool;                      ///< part of peak_reserved: private pools of CUDA graphs
  std::string peak_at;                   ///< "B 3.1"
  std::vector<OwnerBytes> peak_owners;   ///< largest first
  std::vector<Bytes> after_instruction;  ///< allocated after each instruction of the program
  std::int64_t slack_ns = 0;  ///< by how much its computation may be late without the step being so; find_levers
  bool fits = true;
  bool retried = false;          ///< fits only because the allocator gives cached blocks back to the device
  std::string out_of_memory_at;  ///< where it runs out under the limit; empty: it survives
};

struct Prediction {
  std::string scenario;
  std::string profile, origin;  ///< name and weakest origin of the times used
  std::string megatron_core;
  std::int64_t forward_backward_ns = 0, optimizer_ns = 0, step_ns = 0;
  std::int64_t interval_low_ns = 0, interval_high_ns = 0;  ///< 90 % interval of the step
  double tflops_per_gpu = 0, tokens_per_s_per_gpu = 0;
  int last_rank = 0;
  std::vector<RankPrediction> ranks;
  std::vector<timeline::Boundary> boundaries;
  std::vector<timeline::CriticalStep> critical_path;
  std::vector<timeline::Lever> levers;  ///< what would shorten the step; find_levers
  bool fits = true;
  Bytes memory_limit, memory_margin;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> time_sources;  ///< kernel family -> profile, origin (for reports)
};

/// Loads the profiles a scenario names (cluster.profile, or those given by --profile, first has precedence).
profile::Profiles profiles_of(const scenario::Scenario& scenario, const std::vector<std::string>& overrides = {});

/// What stands behind a prediction: for traces, timelines and `explain`.
struct Run {
  model::Stages stages;
  schedule::Program program;
  timeline::Result timeline;
};

/// `run`, where given, receives what the prediction was made from.
Prediction predict(const scenario::Scenario& scenario, const profile::Profiles& profiles, Run* run = nullptr);

/// Fills `levers` and every rank's slack: simulates the step again for each change.
void find_levers(Prediction& prediction, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                 const Run& run);

/// The memory part anew for a scenario whose times are those of `same` (another PYTORCH_CUDA_ALLOC_CONF).
Prediction predict_memory(const scenario::Scenario& scenario, const profile::Profiles& profiles, Prediction same);

}  // namespace pipewright::predict
