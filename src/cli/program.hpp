// The program as functions: what main() calls, and what other doors (the Python module) call.
#pragma once

#include <string>
#include <vector>

#include "embedded.hpp"
#include "options.hpp"

namespace pipewright::cli {

/// A command line as a shell gives it; errors go to standard error. Exit status: 0 done, 1 the answer is no, 2 the
/// input is wrong, 3 an internal error.
int run_program(int argc, char** argv);

/// A command line without the program's name, within `embedding`; throws what is wrong: UsageError, Refused,
/// Interrupted. 0 or 1.
int run_embedded(const std::vector<std::string>& words, Embedding& embedding);

/// What --version prints: version and commit, the profiles that are found and where.
std::string version_text();

}  // namespace pipewright::cli
