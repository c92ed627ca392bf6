// The commands of the program, one file each (src/cli/<name>.cpp). A command adds its options to the application and a
// callback that runs it; it reports failure by throwing (UsageError: status 2) and "the answer is no" by Outcome.
#pragma once

#include <string>
#include <string_view>

#include "options.hpp"

namespace pipewright::cli {

/// Exit status of a command that ran to its end: 0 done, 1 the answer is no.
struct Outcome {
  int status = 0;
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
void add_trial(Command& app, Outcome& outcome);

/// Writes a result to a file, or to standard output for "-".
void write_result(const std::string& path, std::string_view text);

}  // namespace pipewright::cli
