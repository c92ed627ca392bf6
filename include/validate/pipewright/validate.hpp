// Measured runs beside their predictions: errors, order, choices, what a trace showed; and calibration, the speed of a
// machine from a few measured steps. Errors are predicted / measured - 1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/predict.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::validate {

/// A measured run beside its prediction.
struct Case {
  scenario::Scenario scenario;  ///< with `measured`
  predict::Prediction prediction;
  std::vector<std::string> calibrated_by = {};  ///< the other runs that the machine's speed came from
  bool cold = false;                            ///< they were asked for it, and none could tell
};
struct Refusal {
  std::string name, reason;
};
struct Errors {
  double mean_abs = 0, max_abs = 0, bias = 0;
};

/// Forward-backward; the whole step where the measured run tells no more (published runs). All times here are that.
double predicted_ms(const scenario::Scenario& run, const predict::Prediction& prediction);
double measured_ms(const scenario::Scenario& run);
double predicted_ms(const Case& c);
double measured_ms(const Case& c);
double time_error(const Case& c);
/// The 90 % interval of the step; of forward-backward it is moved there: the optimizer's own uncertainty stays with it.
double low_ms(const Case& c);
double high_ms(const Case& c);
/// Model TFLOP/s of a GPU in a whole step, Megatron's count; nullopt where only forward-backward was measured.
std::optional<double> measured_tflops(const Case& c);
bool is_mixture(const Case& c);  ///< of experts

/// Peak allocated bytes of one measured rank; reserved ones and those outside the allocator where they were measured.
struct RankError {
  std::int64_t rank = 0, pp_rank = 0;
  Bytes measured_peak, predicted_peak, predicted_reserved, predicted_outside;
  std::optional<Bytes> measured_reserved, measured_outside;
  double error() const;
};
std::vector<RankError> rank_errors(const Case& c);

/// What a profiler showed on a rank (measured/README.md: trace_summary) and what the prediction says it would show.
/// Traced figures are scaled by the untraced over the traced step. Exposed: no compute kernel at that moment.
struct Traced {
  int rank = 0;
  std::string kind;  ///< "comp", "p2p", "ep", "coll", "d2h", "h2d"
  double measured_busy_ms = 0, predicted_busy_ms = 0, measured_exposed_ms = 0, predicted_exposed_ms = 0;
};
std::vector<Traced> traced(const Case& c);

/// The fastest of comparable runs by prediction, against the fastest measured one.
struct Choice {
  std::string chosen, best;
  int of = 0;  ///< how many there were to choose from
  double regret = 0;
};

/// Times of some of the runs.
struct Group {
  int runs = 0;
  Errors time;
  std::optional<double> in_interval;  ///< share of times inside their predicted 90 % interval, of those that have one
  std::optional<double> half_width;   ///< median of half that interval over the prediction
  /// Kendall's tau of the TFLOP/s of different configurations, each once (its first run): which is the better use of
  /// a GPU. nullopt: fewer than two configurations whose step was measured.
  std::optional<double> tau_of_tflops;
};

struct Validation {
  std::string mode;  ///< "cold": only the profiles; "calibrated": with a real run's knowledge of the machine
  std::vector<Case> cases;
  std::vector<Refusal> refused;

  Errors time() const;
  // None: nothing of it was measured.
  std::optional<Errors> memory() const;    ///< peak allocated, over all measured ranks
  std::optional<Errors> reserved() const;  ///< ... reserved
  std::optional<Errors> outside() const;   ///< ... outside the allocator
  /// Order of runs that differ only in settings (same model, machine and batch).
  std::optional<double> kendall_tau() const;
  std::vector<Choice> choices() const;  ///< one for each group of such runs
  Group all() const;
  Group dense() const;
  Group mixtures() const;
  /// Dense runs or mixtures, by the profile that their scenarios name.
  std::map<std::string, Group> by_profile(bool mixtures) const;
  double largest_error() const;  ///< over times and peaks
};

/// The factor on compute kernels at which the prediction of a measured run meets its forward-backward time: how much
/// slower this machine is than the profiled one (cooling, chip, clocks). Kernels' times only: transfers, host and the
/// schedule stay. `cold`: the run's prediction with these profiles.
double slowdown_of(const scenario::Scenario& measured, const profile::Profiles& profiles,
                   const predict::Prediction& cold);

/// What slowdown_of() looks between: a run beyond them is at one of them.
constexpr double least_slowdown = 0.5, most_slowdown = 2;

/// Machines with one part differ by machine.spread; what is off by more than five times that has another cause.
bool explains_speed(double slowdown, const profile::Profiles& profiles);

/// cluster.host_time_factor at which the prediction of a measured run meets its time. nullopt: none between 1/4 and 4
/// does, or the step hardly depends on its host (less than 0.4 % a percent) and so tells nothing of it.
std::optional<double> host_factor_of(const scenario::Scenario& measured, const profile::Profiles& profiles,
                                     const predict::Prediction& cold);
/// host.time_factor from such runs (one at least): the geometric mean; its spread is theirs, host.run_spread at least.
profile::Scalar host_factor(const std::vector<double>& factors, const profile::Profiles& profiles,
                            const std::string& source);

/// What one measured run says about its machine.
struct Observation {
  double slowdown = 1;  ///< slowdown_of the run
  double spread = 0;    ///< relative, of its cold prediction, the machine's own part left out
  int model = 0;        ///< runs of one model share what is wrong with its kernels' times
};
struct Speed {
  double slowdown = 1, spread = 0;  ///< of the next run of that machine and model, without its kernels' own spread
};
/// The speed to expect of a run of `model` (of none of the observed: -1) whose kernels are known to `spread`.
Speed expected_speed(const std::vector<Observation>& observed, int model, double spread, double machine_spread);

/// The profiles with `machine.slowdown` and `machine.spread` in front.
profile::Profiles with_speed(const profile::Profiles& profiles, const Speed& speed, const std::string& source);

/// Relative spread of a cold prediction, the machine's own part left out.
double own_spread(const predict::Prediction& prediction, const profile::Profiles& profiles);

/// Every case anew, its machine's speed known from all other runs on the same part that explain one; never from itself.
void calibrate_without_itself(Validation& validation, const std::vector<profile::Profiles>& profiles_of_cases);

/// Predicts a measured run. A run that cannot be predicted goes to `refused`; false then.
bool add(Validation& validation, const scenario::Scenario& scenario, const profile::Profiles& profiles);

}  // namespace pipewright::validate
