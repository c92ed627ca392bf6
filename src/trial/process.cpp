#include "process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "pipewright/base.hpp"

namespace pipewright::trial {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto tick = std::chrono::milliseconds(50);
constexpr auto patience = std::chrono::seconds(5);

std::vector<std::string> merged(const std::vector<std::pair<std::string, std::string>>& own) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (std::none_of(own.begin(), own.end(), [&](const auto& each) { return text.starts_with(each.first + "="); }))
      result.push_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& each : strings) result.push_back(each.data());
  result.push_back(nullptr);
  return result;
}

class Child {
 public:
  Child(std::vector<std::string> words, std::vector<std::string> variables, const std::string& log) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGTERM);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    const int problem = posix_spawnp(&pid_, words.front().c_str(), &actions, &attributes, pointers(words).data(),
                                     pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (problem != 0)
      throw UsageError({"command line", 0}, "--", "cannot run " + words.front() + ": " + std::strerror(problem));
  }

  bool ended() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return ended_;
  }
  int status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }

  /// Workers that outlive their launcher are in its group.
  void end() {
    kill(-pid_, SIGTERM);
    for (const auto begin = Clock::now(); !ended() && Clock::now() - begin < patience;)
      std::this_thread::sleep_for(tick);
    kill(-pid_, SIGKILL);
    if (!ended_) {
      waitpid(pid_, &status_, 0);
      ended_ = true;
    }
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace

Ended run_process(const std::vector<std::string>& words,
                  const std::vector<std::pair<std::string, std::string>>& environment, const std::string& log,
                  double limit_s, const std::stop_token& stop) {
  Child child(words, merged(environment), log);
  Ended result;
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  while (!child.ended()) {
    result.interrupted = stop.stop_requested();
    result.timed_out = !result.interrupted && Clock::now() > limit;
    if (result.interrupted || result.timed_out)
      child.end();
    else
      std::this_thread::sleep_for(tick);
  }
  result.status = child.status();
  return result;
}

}  // namespace pipewright::trial
