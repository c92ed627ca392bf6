// Programs that are run: what they start ends with them.
#include "pipewright/process.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "pipewright/base.hpp"

namespace process_test {

using namespace pipewright;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

/// A folder whose `log` is a run's.
struct Folder {
  Folder() {
    std::string name = fs::temp_directory_path() / "process.XXXXXX";
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  Command shell(const std::string& script) const {
    return {{"sh", "-c", "cd " + path.string() + "; " + script}, {}, (path / "log").string()};
  }
  /// How many of the processes that wrote their numbers to `pids` are still there.
  int alive() const {
    int count = 0;
    std::ifstream pids(path / "pids");
    for (pid_t pid = 0; pids >> pid;) count += kill(pid, 0) == 0 ? 1 : 0;
    return count;
  }
  int lines() const {
    std::ifstream pids(path / "pids");
    int count = 0;
    for (std::string line; std::getline(pids, line);) ++count;
    return count;
  }
  fs::path path;
};

/// Workers as torchrun starts them (a session each), one deaf to SIGTERM, one whose parent is gone already.
const std::string workers =
    ": >pids; setsid sh -c 'echo $$ >>pids; exec sleep 600' & setsid sh -c 'trap \"\" TERM; echo $$ >>pids; while :; "
    "do sleep "
    "1; "
    "done' & (setsid sh -c 'echo $$ >>pids; exec sleep 600' &) ; until [ $(wc -l <pids) = 3 ]; do sleep 0.05; done; ";

}  // namespace

TEST_CASE("a program's exit status, and why it cannot run") {
  const Folder folder;
  CHECK(run_process(folder.shell("exit 7"), 60, {}).status == 7);
  CHECK(run_process(folder.shell("kill -9 $$"), 60, {}).status == 137);
  CHECK_FALSE(run_process(folder.shell("exit 0"), 60, {}).left_behind);
  CHECK_THROWS_WITH_AS(run_process({{"/no/program"}, {}, (folder.path / "log").string()}, 60, {}),
                       "command line: --: cannot run /no/program: No such file or directory", UsageError);
}

TEST_CASE("no limit is too long") {
  const Folder folder;
  for (const double limit : {1e300, std::numeric_limits<double>::infinity()})
    CHECK_FALSE(run_process(folder.shell("sleep 0.2"), limit, {}).timed_out);
}

TEST_CASE("a run ends when its caller is killed, and can end it no more") {
  const Folder folder;
  const pid_t caller = fork();
  if (caller == 0) {
    run_process(folder.shell(": >pids; setsid sh -c 'echo $$ >>pids; exec sleep 600' & "
                             "(setsid sh -c 'echo $$ >>pids; exec sleep 600' &) ; echo $$ >>pids; sleep 600"),
                600, {});
    _exit(0);
  }
  const auto within = [](std::chrono::seconds time, const auto& condition) {
    for (const auto until = Clock::now() + time; !condition() && Clock::now() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return condition();
  };
  REQUIRE(within(std::chrono::seconds(30), [&] { return folder.lines() == 3; }));
  kill(caller, SIGKILL);
  waitpid(caller, nullptr, 0);
  CHECK(within(std::chrono::seconds(20), [&] { return folder.alive() == 0; }));
}

TEST_CASE("all that a run started ends with it, in whatever session: at its limit, when asked, at once, by itself") {
  std::stop_source haste;
  haste.request_stop();
  SUBCASE("at its limit") {
    const Folder folder;
    const auto ended = run_process(folder.shell(workers + "echo said; sleep 600"), 1, {}, haste.get_token());
    CHECK(ended.timed_out);
    CHECK(ended.log_bytes == 5);
    CHECK(folder.lines() == 3);
    CHECK(folder.alive() == 0);
  }
  SUBCASE("when asked") {
    const Folder folder;
    std::stop_source asked;
    const std::jthread ask([&] {
      while (folder.lines() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      asked.request_stop();
    });
    const auto begin = Clock::now();
    const auto ended = run_process(folder.shell(workers + "sleep 600"), 600, asked.get_token(), haste.get_token());
    CHECK(ended.interrupted);
    CHECK(Clock::now() - begin < std::chrono::seconds(20));
    CHECK(folder.alive() == 0);
  }
  SUBCASE("by itself") {
    const Folder folder;
    const auto ended = run_process(folder.shell(workers + "exit 3"), 600, {}, haste.get_token());
    CHECK(ended.status == 3);
    CHECK(ended.left_behind);
    CHECK(folder.lines() == 3);
    CHECK(folder.alive() == 0);
  }
  SUBCASE("what ends soon is not cut off") {
    const Folder folder;
    CHECK_FALSE(run_process(folder.shell("(sleep 0.5; echo late) & exit 0"), 600, {}).left_behind);
    CHECK(read_file((folder.path / "log").string()) == "late\n");
  }
}

}  // namespace process_test
