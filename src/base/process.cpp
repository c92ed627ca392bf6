#include "pipewright/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "pipewright/base.hpp"

namespace pipewright {
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

}  // namespace

Process::Process(const Command& command) {
  if (command.log) {  // posix_spawn would blame the program
    const int file = ::open(command.log->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) throw UsageError({*command.log, 0}, {}, std::string("cannot write: ") + std::strerror(errno));
    ::close(file);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  short flags = POSIX_SPAWN_SETSIGDEF;
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGINT);
  sigaddset(&usual, SIGTERM);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  if (command.log) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, command.log->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_setpgroup(&attributes, 0);
    flags |= POSIX_SPAWN_SETPGROUP;
  }
  posix_spawnattr_setflags(&attributes, flags);
  auto words = command.words;
  auto variables = merged(command.environment);
  const int problem = posix_spawnp(&pid_, words.front().c_str(), &actions, &attributes, pointers(words).data(),
                                   pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (problem != 0)
    throw UsageError({"command line", 0}, "--", "cannot run " + words.front() + ": " + std::strerror(problem));
}

bool Process::ended() {
  if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  return ended_;
}

void Process::wait() {
  while (!ended_ && (waitpid(pid_, &status_, 0) == pid_ || errno != EINTR)) ended_ = true;
}

void Process::end(const std::stop_token& at_once) {
  kill(-pid_, SIGTERM);
  for (const auto begin = Clock::now(); !ended() && !at_once.stop_requested() && Clock::now() - begin < patience;)
    std::this_thread::sleep_for(tick);
  kill(-pid_, SIGKILL);  // workers that outlive their launcher are in its group
  wait();
}

int Process::status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }

Ended run_process(const Command& command, double limit_s, const std::stop_token& stop, const std::stop_token& at_once) {
  Process process(command);
  Ended result;
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  while (!process.ended()) {
    result.interrupted = stop.stop_requested();
    result.timed_out = !result.interrupted && Clock::now() > limit;
    if (result.interrupted || result.timed_out)
      process.end(at_once);
    else
      std::this_thread::sleep_for(tick);
  }
  result.status = process.status();
  return result;
}

}  // namespace pipewright
