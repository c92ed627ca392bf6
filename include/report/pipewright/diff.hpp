// Two results side by side: what was set otherwise, where the time goes, who holds the memory.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "pipewright/scenario/measured.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::report {

/// A prediction, or a traced run.
struct DiffSide {
  std::string name;
  std::string prediction;                        ///< what `simulate --json` writes; empty: a trace
  const scenario::Scenario* scenario = nullptr;  ///< where it is known; settings are compared where both are
  std::map<int, scenario::TraceSummary> traced;  ///< pipeline rank -> what its trace shows
};

/// What `simulate --json` wrote, or of what `plan --json` wrote the best, with its scenario (else empty). nullopt: the
/// JSON is neither. Throws UsageError naming the key whose value cannot be one of ours.
struct ReadPrediction {
  std::string prediction, scenario;
};
std::optional<ReadPrediction> read_prediction(const std::string& json, const std::string& file);

/// Throws UsageError where they cannot be compared (two traces; a trace of other pipeline ranks).
std::string diff_json(const DiffSide& a, const DiffSide& b);
/// Of what diff_json wrote.
std::string diff_text(const std::string& json);

}  // namespace pipewright::report
