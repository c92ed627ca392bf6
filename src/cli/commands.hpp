// The commands of the program, one file each (src/cli/<name>_command.cpp). A command adds its options to the
// application and a callback that runs it; it reports failure by throwing (UsageError: status 2) and "the answer is no"
// by Outcome.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options.hpp"
#include "pipewright/base.hpp"

namespace pipewright::cli {

/// Exit status of a command that ran to its end: 0 done, 1 the answer is no.
struct Outcome {
  int status = 0;
};

/// The answer is no before anything is computed: status 1, what() on standard error.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void add_plan(Command& app, Outcome& outcome);
void add_simulate(Command& app, Outcome& outcome);
void add_sweep(Command& app, Outcome& outcome);
void add_explain(Command& app, Outcome& outcome);
void add_schedule(Command& app, Outcome& outcome);
void add_check(Command& app, Outcome& outcome);
void add_validate(Command& app, Outcome& outcome);
void add_convert(Command& app, Outcome& outcome);
void add_replay_allocator(Command& app, Outcome& outcome);
void add_capture(Command& app, Outcome& outcome);
void add_import(Command& app, Outcome& outcome);
void add_list(Command& app, Outcome& outcome);
void add_profile(Command& app, Outcome& outcome);
void add_diff(Command& app, Outcome& outcome);
void add_trial(Command& app, Outcome& outcome);
void add_merge(Command& app, Outcome& outcome);
void add_man(Command& app, Outcome& outcome);
void add_completion(Command& app, Outcome& outcome);

/// Outputs that many commands have: --json and --report, each a file's path.
void add_json_option(Command& command, std::string& file);
void add_report_option(Command& command, std::string& file);

/// A profile or a scenario that is written: what stands there is hours of measuring or somebody's own words, replaced
/// only where --force says so.
struct KeptFile {
  std::string path;  ///< "-": standard output
  bool force = false;

  void add_to(Command& command, const std::string& what);  ///< --out, required, and --force
  /// Throws UsageError for a file that is there or that cannot be written, before there is anything to write.
  void require_free() const { require_free(path); }
  void require_free(const std::string& other) const;  ///< the same for a file that is named after it
};

/// Is one of these outputs (option and path, "" where it is not asked for) standard output, "-"? Then nothing else goes
/// there. Throws UsageError, before there is anything to write, for two that are one file or standard output, and for a
/// file that cannot be written.
bool on_standard_output(const std::vector<std::pair<std::string, std::string>>& outputs);

/// Throws UsageError for the value of `option` that is no regular expression.
void require_regex(const std::string& option, const std::string& text);

/// What ended a command whose `--json -` has written nothing yet, as JSON: {"error": {"kind", "message"}}.
void answer_with_error(const Command& command, std::string_view kind, std::string_view message);
/// Writes a result to a file, or to standard output for "-".
void write_result(const std::string& path, std::string_view text);

/// Files are written before the answer is told. One that cannot be (a full disk, after a search of an hour) is an error
/// only behind the answer.
class Files {
 public:
  template <class Write>
  void write(const Write& write) {
    try {
      write();
    } catch (const UsageError&) {
      if (!failed_) failed_ = std::current_exception();
    }
  }
  /// Throws what failed first.
  void done() const {
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  std::exception_ptr failed_;
};

}  // namespace pipewright::cli
