// The table of commands, and what their exceptions mean for the shell.
#include "program.hpp"

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>

#include "commands.hpp"
#include "pipewright/base.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/profile_folders.hpp"
#include "pipewright/report.hpp"
#include "terminal.hpp"

namespace pipewright::cli {
namespace {

using AddCommand = void (*)(Command&, Outcome&);

/// In the order in which --help shows them.
constexpr std::array all_commands = {AddCommand{add_plan},     AddCommand{add_simulate},
                                     AddCommand{add_sweep},    AddCommand{add_explain},
                                     AddCommand{add_schedule}, AddCommand{add_check},
                                     AddCommand{add_merge},    AddCommand{add_validate},
                                     AddCommand{add_convert},  AddCommand{add_replay_allocator},
                                     AddCommand{add_list},     AddCommand{add_profile},
                                     AddCommand{add_capture},  AddCommand{add_import},
                                     AddCommand{add_trial},    AddCommand{add_diff},
                                     AddCommand{add_man},      AddCommand{add_completion}};

int run(int argc, char** argv) {
  Command program("pipewright", "Simulates and plans pipeline-parallel training with Megatron-LM and Megatron Bridge.");
  Outcome outcome;
  for (const AddCommand add : all_commands) add(program, outcome);
  for (Command& command : program.commands()) add_color_option(command);
  const Parsed parsed = parse(program, version_text(), argc, argv);
  return parsed.ran ? outcome.status : parsed.status;
}

}  // namespace

std::string version_text() {
  return fmt::format("pipewright {} (commit {})\nprofiles: {} (in {})", report::tool_version(), report::tool_commit(),
                     fmt::join(profile::known_profiles(), ", "), fmt::join(profile::profile_folders(), ", "));
}

int run_embedded(const std::vector<std::string>& words, Embedding& embedding) {
  const Embedded embedded(embedding);
  std::vector<std::string> line = {"pipewright"};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (auto& word : line) arguments.push_back(word.data());
  const int status = run(static_cast<int>(arguments.size()), arguments.data());
  stop_if_asked();  // what was found until then is not the answer
  return status;
}

int run_program(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is told as a full disk is
  try {
    if (const int columns = terminal_width(); columns > 0) report::set_line_width(columns);
    const int status = run(argc, argv);
    // Flushed before, a failure is only remembered.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw UsageError("standard output cannot be written");
    return status;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s\n", dressed_message(std::string("error: ") + error.what(), true).c_str());
    return 2;
  } catch (const Refused& refusal) {
    std::fprintf(stderr, "%s\n", refusal.what());
    return 1;
  } catch (const std::filesystem::filesystem_error& error) {  // a name too long, a folder that may not be read
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("error: the input asks for more memory than this machine gives\n", stderr);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "internal error: %s\n", error.what());
    return 3;
  }
}

}  // namespace pipewright::cli
