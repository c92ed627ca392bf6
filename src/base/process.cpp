#include "pipewright/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "pipewright/base.hpp"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto tick = std::chrono::milliseconds(50);
/// What a run leaves that ends by itself (a pipe's reader, a tracker of resources) has this long.
constexpr auto leave = std::chrono::seconds(2);
/// As long as torchrun and Slurm give to what they end.
constexpr auto patience = std::chrono::seconds(30);

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

/// What posix_spawnp takes, made before a fork: after one, a process of many threads may not allocate.
class Spawn {
 public:
  explicit Spawn(const Command& command) : words_(command.words), variables_(merged(command.environment)) {
    if (command.log) {  // posix_spawn would blame the program
      const int file = ::open(command.log->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
      if (file < 0) throw UsageError({*command.log, 0}, {}, std::string("cannot write: ") + std::strerror(errno));
      ::close(file);
    }
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    short flags = POSIX_SPAWN_SETSIGDEF;
    sigset_t usual;
    sigemptyset(&usual);
    for (const int signal : {SIGINT, SIGTERM, SIGXFSZ}) sigaddset(&usual, signal);
    struct sigaction hangup {};
    if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&usual, SIGHUP);  // nohup
    posix_spawnattr_setsigdefault(&attributes_, &usual);
    if (command.log) {
      posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
      posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, command.log->c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0644);
      posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
      posix_spawnattr_setpgroup(&attributes_, 0);
      flags |= POSIX_SPAWN_SETPGROUP;
    }
    posix_spawnattr_setflags(&attributes_, flags);
    word_pointers_ = pointers(words_);
    variable_pointers_ = pointers(variables_);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  /// 0, or the number of what went wrong.
  int start(pid_t& pid) const {
    return posix_spawnp(&pid, words_.front().c_str(), &actions_, &attributes_, word_pointers_.data(),
                        variable_pointers_.data());
  }
  void require(int problem) const {
    if (problem == 0) return;
    const std::string& name = words_.front();
    std::string hint;
    if ((problem == ENOENT || problem == ENAMETOOLONG) && name.find(' ') != std::string::npos)
      hint = " (it is one word: leave out the quotes around the command, or say sh -c '...')";
    else if (problem == ENOENT && name.find('=') != std::string::npos)
      hint = " (env sets variables: env " + name + " COMMAND)";
    throw UsageError(
        {"command line", 0}, "--",
        "cannot run " + name.substr(0, 80) + (name.size() > 80 ? "...: " : ": ") + std::strerror(problem) + hint);
  }

 private:
  std::vector<std::string> words_, variables_;
  std::vector<char*> word_pointers_, variable_pointers_;
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// Everything below a process, itself left out.
std::vector<pid_t> descendants(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry("/proc", gone), end; entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string line;
    std::getline(std::ifstream(entry->path() / "stat"),
                 line);  // "pid (name) state parent ...", the name has any letter
    const auto at = line.rfind(") ");
    if (at != std::string::npos && at + 4 < line.size())
      children.emplace(std::atoi(line.c_str() + at + 4), std::atoi(name.c_str()));
  }
  std::vector<pid_t> result = {root};
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto [first, last] = children.equal_range(result[i]);
    for (auto child = first; child != last; ++child) result.push_back(child->second);
  }
  result.erase(result.begin());
  return result;
}

/// Runs a command below a process that stands for init: launchers start workers in sessions of their own, and whoever
/// outlives its parent becomes that process's child. It tells how the command began and ended, and ends when nothing is
/// left of the run. Where it can tell nobody any more (who asked was killed), it ends the run itself.
class Keeper {
 public:
  explicit Keeper(const Command& command) {
    const Spawn spawn(command);
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) spawn.require(errno);
    pid_ = fork();
    if (pid_ == 0) ::close(ends[0]), keep(spawn, ends[1]);
    const int problem = pid_ < 0 ? errno : 0;
    ::close(ends[1]);
    news_ = ends[0];
    int began = problem;
    if (problem != 0 || !hear(began)) began = problem != 0 ? problem : EAGAIN;
    if (began == 0) return;
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    ::close(news_);
    spawn.require(began);
  }
  ~Keeper() {
    ::close(news_);
    waitpid(pid_, nullptr, gone_ ? 0 : WNOHANG);
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The command itself.
  bool ended_within(Clock::duration time) { return status_ || wait_for_news(Clock::now() + time) || gone_; }
  /// It and everything that it started.
  bool gone_within(Clock::duration time, const std::stop_token& at_once = {}) {
    const auto until = Clock::now() + time;
    while (!gone_ && !at_once.stop_requested() && Clock::now() < until)
      wait_for_news(std::min(until, Clock::now() + tick));
    return gone_;
  }
  /// Asks, and kills what does not hear; how many cannot be killed.
  int end(const std::stop_token& at_once) {
    for (const pid_t pid : descendants(pid_)) kill(pid, SIGTERM);
    gone_within(patience, at_once);
    const auto until = Clock::now() + patience;
    while (!gone_ && Clock::now() < until) {
      for (const pid_t pid : descendants(pid_)) kill(pid, SIGKILL);  // again: one may have just started another
      gone_within(tick);
    }
    return gone_ ? 0 : static_cast<int>(descendants(pid_).size());
  }
  int status() const { return status_.value_or(SIGKILL); }

 private:
  [[noreturn]] static void keep(const Spawn& spawn, int pipe) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setpgid(0, 0);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(signal, SIG_IGN);
    std::signal(SIGCHLD, SIG_DFL);  // where it is ignored, nobody learns how a child ended
    const auto tell = [&](int news) { return ::write(pipe, &news, sizeof news) == sizeof news; };
    pid_t first = 0;
    const int problem = spawn.start(first);
    if (!tell(problem) || problem != 0) _exit(0);
    const int nowhere = ::open("/dev/null", O_RDWR);  // readers of our output wait for no keeper
    for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, file);
    std::signal(SIGPIPE, SIG_IGN);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, nullptr);
    pollfd waits[] = {{signalfd(-1, &children, SFD_CLOEXEC), POLLIN, 0}, {pipe, 0, 0}};
    std::optional<Clock::time_point> alone;  // since nobody can hear: killed itself, it never ends the run any more
    for (;;) {
      int status = 0;
      pid_t ended = 0;
      while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
        if (ended == first) tell(status);
      if (ended < 0 && errno == ECHILD) _exit(0);
      poll(waits, alone ? 1 : 2, alone ? static_cast<int>(tick / std::chrono::milliseconds(1)) : -1);
      signalfd_siginfo news;
      if ((waits[0].revents & POLLIN) != 0 && ::read(waits[0].fd, &news, sizeof news) < 0) continue;
      if (!alone && (waits[1].revents & POLLERR) != 0) {
        alone = Clock::now();
        for (const pid_t pid : descendants(getpid())) kill(pid, SIGTERM);
      } else if (alone && Clock::now() - *alone > patience) {
        for (const pid_t pid : descendants(getpid())) kill(pid, SIGKILL);
      }
    }
  }

  bool hear(int& news) const {
    ssize_t got = 0;
    do got = ::read(news_, &news, sizeof news);
    while (got < 0 && errno == EINTR);
    return got == sizeof news;
  }
  /// Did the command end?
  bool wait_for_news(Clock::time_point until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd news = {news_, POLLIN, 0};
    if (poll(&news, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) <= 0) return false;
    if (int status = 0; hear(status))
      status_ = status;
    else
      gone_ = true;
    return status_.has_value();
  }

  pid_t pid_ = -1;
  int news_ = -1;
  std::optional<int> status_;
  bool gone_ = false;
};

int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

Process::Process(const Command& command) {
  const Spawn spawn(command);
  spawn.require(spawn.start(pid_));
}

void Process::wait() {
  while (!ended_ && (waitpid(pid_, &status_, 0) == pid_ || errno != EINTR)) ended_ = true;
}

int Process::status() const { return status_of(status_); }

Ended run_process(const Command& command, double limit_s, const std::stop_token& stop, const std::stop_token& at_once) {
  constexpr double most_s = 1e9;  // beyond, clocks overflow
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(std::min(limit_s, most_s)));
  Keeper run(command);
  Ended result;
  while (!run.ended_within(tick) && !result.interrupted && !result.timed_out) {
    result.interrupted = stop.stop_requested();
    result.timed_out = !result.interrupted && Clock::now() > limit;
  }
  if (result.interrupted || result.timed_out) {
    std::error_code unknown;
    if (const auto bytes = std::filesystem::file_size(*command.log, unknown); !unknown) result.log_bytes = bytes;
    result.unkillable = run.end(at_once);
  } else if (!run.gone_within(leave, stop)) {
    result.left_behind = true;
    result.unkillable = run.end(at_once);
  }
  result.status = status_of(run.status());
  return result;
}

}  // namespace pipewright
