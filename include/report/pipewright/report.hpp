// What a run looks like to people and to programs: text, the JSON of the contract, HTML, Chrome traces. Listeners only:
// nothing here decides anything. All text ends with a newline; the same input gives the same bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/schedule.hpp"
#include "pipewright/validate.hpp"

namespace pipewright::report {

// ---- What every result says of itself

const char* tool_version();
const char* tool_commit();

/// The configuration as a header: GPUs, parallelism, batch, sequence, precision, versions, profile; what was ignored as
/// asked, and what the input did not say and was assumed.
std::string configuration_text(const scenario::Scenario& scenario, const std::vector<std::string>& assumed = {});

/// For the head of a JSON: schema, tool, and (with a scenario) configuration and assumed.
struct Stamp {
  const scenario::Scenario* scenario = nullptr;
  std::vector<std::string> assumed;
};

/// A count as every text prints it: "12,345,678".
std::string grouped(std::int64_t count);

/// The head before a JSON that another room wrote.
std::string stamped(const std::string& json);

/// Prose is broken at this column (120 unless a terminal is narrower or wider).
void set_line_width(int columns);

// ---- simulate

std::string simulate_text(const predict::Prediction& prediction);
std::string simulate_json(const predict::Prediction& prediction, const Stamp* stamp = nullptr);

// ---- plan

/// Flags are shown in these forms: "megatron", "bridge", "harness", "env"; empty: none.
std::string plan_text(const plan::Plan& plan, const std::vector<std::string>& emit_forms);
std::string plan_json(const plan::Plan& plan, const Stamp* stamp = nullptr);
/// The flags of one scenario in the forms asked for, commented, ready to paste.
std::string flags_text(const scenario::Scenario& scenario, const std::vector<std::string>& emit_forms);

// ---- sweep

std::string sweep_text(const plan::Sweep& sweep);
/// `part`: of a sweep over several machines, for merged_sweeps().
std::string sweep_json(const plan::Sweep& sweep, const Stamp* stamp = nullptr,
                       const std::optional<plan::Part>& part = {});
/// What one process would have written, from the JSON of all parts (name and text). Throws UsageError where one is
/// missing, was interrupted or is of another sweep.
std::string merged_sweeps(const std::vector<std::pair<std::string, std::string>>& files);
std::string sweep_csv(const plan::Sweep& sweep);

// ---- check

std::string check_text(const std::vector<plan::Finding>& findings);
std::string check_json(const std::vector<plan::Finding>& findings, const Stamp* stamp = nullptr);

// ---- schedule

std::string schedule_text(const schedule::Program& program, bool hooks, bool frees);
std::string schedule_json(const schedule::Program& program, bool hooks, bool frees, const Stamp* stamp = nullptr);

// ---- explain

/// Who owns a rank's bytes at its peak.
std::string explain_peak_text(const predict::Prediction& prediction, int rank);
std::string explain_peak_json(const predict::Prediction& prediction, int rank, const Stamp* stamp = nullptr);
/// What an op ("F 3.1", "B 0.0") did and waited for. Throws UsageError if the rank has no such op.
std::string explain_op_text(const predict::Run& run, int rank, const std::string& op);
std::string explain_op_json(const predict::Run& run, int rank, const std::string& op, const Stamp* stamp = nullptr);

// ---- validate

/// `traces`: also what profilers showed on each rank.
std::string validate_text(const validate::Validation& validation, bool traces = false);
std::string validate_markdown(const validate::Validation& validation);  ///< tables of every run
std::string validate_json(const validate::Validation& validation, const Stamp* stamp = nullptr);

}  // namespace pipewright::report
