// The commands of the program, one file each (src/cli/<name>.cpp). A command adds its options to the application and a
// callback that runs it; it reports failure by throwing (UsageError: status 2) and "the answer is no" by Outcome.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace pipewright::cli {

/// Exit status of a command that ran to its end: 0 done, 1 the answer is no.
struct Outcome {
  int status = 0;
};

void add_plan(CLI::App& app, Outcome& outcome);
void add_simulate(CLI::App& app, Outcome& outcome);
void add_sweep(CLI::App& app, Outcome& outcome);
void add_explain(CLI::App& app, Outcome& outcome);
void add_schedule(CLI::App& app, Outcome& outcome);
void add_check(CLI::App& app, Outcome& outcome);
void add_validate(CLI::App& app, Outcome& outcome);
void add_convert(CLI::App& app, Outcome& outcome);
void add_replay_allocator(CLI::App& app, Outcome& outcome);
void add_capture(CLI::App& app, Outcome& outcome);
void add_import(CLI::App& app, Outcome& outcome);
void add_list(CLI::App& app, Outcome& outcome);
void add_profile(CLI::App& app, Outcome& outcome);

/// Writes a result to a file, or to standard output for "-".
void write_result(const std::string& path, std::string_view text);

}  // namespace pipewright::cli
