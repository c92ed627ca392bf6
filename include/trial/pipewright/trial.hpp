// The plan, run for real: candidates' flags and variables filled into a command of the user's, its step times and
// memory read from what it prints, one step of it recorded, and all of that beside the predictions.
//
//   PLAN.json ─► candidates ─► fill({flags}, {env}, {name}) ─► process, log, recording ─► Run ─► text, JSON, scenarios
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/predict.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::trial {

struct Candidate {
  std::string name;   ///< "best", "alternative-1", "given": files are called so
  std::string label;  ///< what it changes, in the plan's words
  scenario::Scenario scenario;
};

/// Of what `plan --json` wrote: the best, the alternatives after it until there are `top` of them, and the run as given
/// where the plan had one. Equal scenarios once. Throws UsageError: not a plan, nothing fits.
std::vector<Candidate> candidates_of_plan(const std::string& json, const std::string& file, int top);

// ---- The command

enum class Form { megatron, bridge, harness };  ///< what {flags} is: pretrain_gpt.py's, run_recipe.py's, the harness's

struct Command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;  ///< of the candidate; set for the process too
  std::vector<std::string> remarks;  ///< what {flags} does not say of the candidate, or Megatron refuses of it
};

/// A word that is one placeholder becomes as many words as it holds; inside a longer word (a shell line) its words are
/// quoted for a shell. {flags}, {env} (NAME=VALUE), {name}, {steps}. Throws UsageError for an unknown placeholder, and
/// where {flags} is nowhere.
Command fill(const std::vector<std::string>& command, const Candidate& candidate, Form form, int steps);
/// As a shell would want it typed.
std::string shell_line(const Command& command);

// ---- What it printed

struct RankMemory {
  int rank = 0;
  Bytes allocated, reserved;     ///< peaks so far
  std::optional<Bytes> outside;  ///< device memory in use beyond what is reserved
};
struct Log {
  std::vector<std::pair<int, double>> steps;  ///< number, as the program counts, each once; ms
  std::vector<int> unusual;  ///< of them: the optimizer did not step (a loss scale's overflow), or the loss was NaN
  std::vector<RankMemory> memory;  ///< the last line of each rank
};
/// Lines of Megatron-LM's and Megatron Bridge's training loops; anything else is skipped.
Log read_log(std::string_view text);

/// Steps 1 to 4 are not counted: first allocations, and the one that is recorded (3) with its writing.
constexpr int recorded_step = 3, first_counted_step = 5;

/// Of a run that may go on from a checkpoint: its first line is its first step.
struct Steps {
  int done = 0;
  int apart = 1;                   ///< of its lines; more: each is a mean of so many, and none is a sample
  std::vector<double> samples_ms;  ///< of those that count
  int unusual = 0;                 ///< of those that would count: Log::unusual
};
Steps steps_of(const Log& log);
/// Of an even number the mean of the two in the middle; none: of nothing.
std::optional<double> median(std::vector<double> values);

/// Where the arguments that the program prints are others than the scenario's: "micro_batch_size 4, not 1".
std::vector<std::string> not_of(const scenario::Scenario& scenario, std::string_view log);

enum class Status { ok, out_of_memory, failed, timed_out, interrupted, not_run };
std::string_view name(Status status);
/// What ends runs, by what their logs and exit statuses say of it.
enum class Cause {
  none,
  out_of_memory,  ///< the GPU's
  full_disk,      ///< or /dev/shm
  host_memory,
  unknown_flag,
  refused_value,
  missing,  ///< a file or module
  port_in_use,
  assertion,
  exception,  ///< any other
  cuda,
  time_limit,  ///< the scheduler's
  killed,
  crash,
  nccl_timeout,
  nccl,
  connection,
  aborted
};
std::string_view name(Cause cause);
/// Why a run ended: the line of its log that says so. Where several ranks tell several reasons, the one nearer to the
/// root: a rank that ran out of memory, not those that waited for it in vain.
struct Failure {
  Status status = Status::failed;
  Cause cause = Cause::none;
  std::string reason;
  std::vector<std::string> lines = {};  ///< what the same process said before it, a traceback's end for instance
  bool named = false;                   ///< by a line of its log, not by its exit status alone
  std::string unfused = {};             ///< what shows that its attention ran unfused, a traceback or TE's own words
};
Failure failure_of(std::string_view text, int exit_status);

// ---- Running

struct Options {
  std::vector<std::string> command;
  Form form = Form::megatron;
  int steps = 8;
  double limit_s = 900;  ///< of one run; then it is killed, with everything that it started
  bool record = true;
  bool resume = false;  ///< what an earlier trial in the folder has run by the same command is not run again
  std::string step_kernel, step_range;  ///< what ends a step, for the recorder (capture::Attach)
  std::string folder;                   ///< logs, recordings and scenario files
};

struct Run {
  Candidate candidate;
  predict::Prediction prediction;
  Status status = Status::not_run;
  Cause cause = Cause::none;  ///< of a failure, as are the next two
  std::string reason;
  std::vector<std::string> lines;
  std::string log;  ///< file
  Steps steps;
  std::optional<double>
      step_ms;  ///< median of their samples; of a program that prints no times, the recorded step's span
  bool from_recording = false;        ///< ... that
  std::optional<double> host_factor;  ///< cluster.host_time_factor that meets it (validate::host_factor_of)
  std::vector<RankMemory> memory;
  std::vector<std::pair<int, scenario::TraceSummary>> recorded;  ///< by rank
  std::vector<std::string> notes;
};

/// A trial's folder, made and held: throws UsageError where it cannot be, and where another trial writes to it, which
/// would take its files and share its GPUs.
class HeldFolder {
 public:
  explicit HeldFolder(const std::string& folder);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

 private:
  int file_;
};

/// Throws UsageError where the folder holds the measurement of another run under a candidate's name. Names of
/// measurements of other candidates.
std::vector<std::string> open_folder(const std::string& folder, const std::vector<Candidate>& candidates, bool replace);

/// Runs one candidate; writes NAME.log, of a run that ended well or out of memory NAME.ended.json, and NAME.yaml with
/// `measured:` where a step time came out. While it runs they are NAME.new.*; they stay so where an earlier run has
/// measured something and this one has not. `stop` ends the run as a launcher is ended, `at_once` kills it.
Run run(const Candidate& candidate, const profile::Profiles& profiles, const Options& options, std::stop_token stop,
        std::stop_token at_once);

/// One kind of work on one rank, ms. What was recorded is told as it was: a kernel takes no longer where the recorder
/// slows the hosts. `idle`: what is left of the unrecorded step beside computing and exposed work, hosts and the
/// bubble.
struct Difference {
  int rank = 0;
  std::string kind;
  double busy_ms = 0, predicted_busy_ms = 0, exposed_ms = 0, predicted_exposed_ms = 0;
};
std::vector<Difference> differences(const Run& run);

std::string text(const std::vector<Run>& runs);
std::string json(const std::vector<Run>& runs);
/// What would run.
std::string text(const std::vector<Candidate>& candidates, const std::vector<Command>& commands);
std::string json(const std::vector<Candidate>& candidates, const std::vector<Command>& commands);

}  // namespace pipewright::trial
