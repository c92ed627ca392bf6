// What quick looks share: limits, memory outside the allocator, a prediction of times alone.
#pragma once

#include <algorithm>
#include <vector>

#include "pipewright/predict.hpp"

namespace pipewright::predict {

void set_limits(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles);

/// Memory outside the allocator: what is between the ends is alike.
class Outside {
 public:
  Outside(const scenario::Scenario& scenario, const profile::Profiles& profiles)
      : last_(static_cast<int>(scenario.settings.pipeline_model_parallel_size) - 1) {
    for (const int rank : {0, std::min(1, last_), last_})
      bytes_.push_back(model::outside_allocator(scenario, profiles, rank));
  }
  Bytes of(int rank) const { return rank == 0 ? bytes_[0] : rank == last_ ? bytes_[2] : bytes_[1]; }

 private:
  const int last_;
  std::vector<Bytes> bytes_;
};

Prediction quick_look(const scenario::Scenario& scenario, const profile::Profiles& profiles,
                      const timeline::Estimate& times);

/// A rank that holds for good what the mean of all does: one holds as much, however the layers are split.
void add_mean_rank(Prediction& result, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                   const model::Stages& stages, const schedule::Config& config);

}  // namespace pipewright::predict
