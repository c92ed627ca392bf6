// --tokens: what a whole training costs at the predicted pace.
#pragma once

#include <cstdint>
#include <string>

#include "options.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::cli {

class Training {
 public:
  void add_to(Command& command) {
    command.add_option("--tokens", text_, "tokens to train on (15T, 300B, 2e12): steps, days and GPU-hours");
  }
  bool asked() const { return !text_.empty(); }
  /// Throws UsageError for what is no positive number with K, M, B or T.
  double tokens() const;

  /// "15T tokens: 3,576,279 steps, 103.5 days, 2,543,616 GPU-hours at this pace, without restarts and checkpoints".
  std::string line(const scenario::Scenario& scenario, std::int64_t step_ns) const;
  /// `json` with the member "training" added.
  std::string with(const std::string& json, const scenario::Scenario& scenario, std::int64_t step_ns) const;

 private:
  struct Cost {
    double tokens, steps, days, gpu_hours;
  };
  Cost cost(const scenario::Scenario& scenario, std::int64_t step_ns) const;

  std::string text_;
};

}  // namespace pipewright::cli
