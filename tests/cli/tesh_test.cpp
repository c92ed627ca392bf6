// Runs the program over files of situations (*.tesh). A situation is a command and what must come of it:
//
//   $ simulate small.yaml --set tensor_model_parallel_size=3      arguments as for a shell; working folder: data/
//   = 2                                                           exit status (0 if not given)
//   > text                                                        the next line of standard output
//   ! error: small.yaml: ...                                      the next line of standard error
//   > text...                                                     a line that begins so
//   json                                                          standard output is one JSON value, nothing on stderr
//   twice                                                         another run prints the same bytes
//   # comment
//
// Lines beyond those given may follow; with "=" other than 0 a single line of error is all that may be on stderr.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "pipewright/base.hpp"

using namespace pipewright;

namespace {

struct Situation {
  int line = 0, status = 0;
  std::string command;
  std::vector<std::string> out, err;
  bool json = false, twice = false;
};

struct Outcome {
  int status = 0;
  std::string out, err;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  REQUIRE_MESSAGE(value != nullptr, name);
  return value;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

std::vector<Situation> read(const std::string& path) {
  std::vector<Situation> out;
  int number = 0;
  for (const auto& line : lines(read_file(path))) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::string rest = line.size() > 2 ? line.substr(2) : "";
    if (line[0] == '$') {
      out.push_back({number, 0, rest, {}, {}, false, false});
      continue;
    }
    REQUIRE_MESSAGE(!out.empty(), path << ":" << number << ": no command yet");
    if (line[0] == '=') {
      out.back().status = std::stoi(rest);
    } else if (line[0] == '>') {
      out.back().out.push_back(rest);
    } else if (line[0] == '!') {
      out.back().err.push_back(rest);
    } else if (line == "json") {
      out.back().json = true;
    } else if (line == "twice") {
      out.back().twice = true;
    } else {
      FAIL(path << ":" << number << ": not understood: " << line);
    }
  }
  return out;
}

Outcome run(const std::string& command) {
  const auto folder = std::filesystem::temp_directory_path() / ("pipewright_tesh_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string out = (folder / "out").string(), err = (folder / "err").string();
  const std::string line = "TMP='" + folder.string() + "'; { '" + environment("PIPEWRIGHT_PROGRAM") + "' " + command +
                           "; } >'" + out + "' 2>'" + err + "' </dev/null";
  const int result = std::system(line.c_str());
  Outcome outcome{WIFEXITED(result) ? WEXITSTATUS(result) : 128, read_file(out), read_file(err)};
  std::filesystem::remove_all(folder);
  return outcome;
}

void expect_lines(const Situation& situation, const std::string& where, const std::vector<std::string>& expected,
                  const std::string& text) {
  const auto got = lines(text);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string line = i < got.size() ? got[i] : "(nothing)";
    const std::string& want = expected[i];
    const bool same = want.ends_with("...") ? line.starts_with(want.substr(0, want.size() - 3)) : line == want;
    CHECK_MESSAGE(same, "line " << situation.line << ": " << situation.command << "\n"
                                << where << "\nexpected: " << want << "\n     got: " << line);
  }
}

}  // namespace

TEST_CASE("situations") {
  const std::string path = environment("PIPEWRIGHT_SITUATIONS");
  std::filesystem::current_path(environment("PIPEWRIGHT_TEST_DATA"));
  for (const auto& situation : read(path)) {
    CAPTURE(situation.line);
    CAPTURE(situation.command);
    const Outcome outcome = run(situation.command);
    CHECK_MESSAGE(outcome.status == situation.status, outcome.err);
    expect_lines(situation, "standard output", situation.out, outcome.out);
    expect_lines(situation, "standard error", situation.err, outcome.err);
    if (situation.status > 1) {
      CHECK_MESSAGE(lines(outcome.err).size() == 1, outcome.err);
      CHECK_MESSAGE(outcome.out.empty(), outcome.out);
    }
    if (situation.json) {
      CHECK_MESSAGE(nlohmann::json::accept(outcome.out), outcome.out);
      CHECK_MESSAGE(outcome.err.empty(), outcome.err);
    }
    if (situation.twice) CHECK(run(situation.command).out == outcome.out);
  }
}
