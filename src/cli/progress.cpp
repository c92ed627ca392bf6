// Progress on standard error.
#include "progress.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace pipewright::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
}

void Progress::operator()(std::int64_t done, std::int64_t total) {
  using Seconds = std::chrono::duration<double>;
  const double elapsed = Seconds(std::chrono::steady_clock::now() - begin_).count();
  const double left = done == 0 ? 0 : elapsed * static_cast<double>(total - done) / static_cast<double>(done);
  constexpr double patience_s = 2;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s: %lld of %lld", what_.c_str(), static_cast<long long>(done),
                 static_cast<long long>(total));
    if (done > 0) std::fprintf(stderr, ", about %.0f s left", left);
    std::fflush(stderr);
    shown_ = true;
  } else if (elapsed > patience_s && total > 0 && 10 * done / total > tenth_) {
    tenth_ = 10 * done / total;
    std::fprintf(stderr, "%s: %lld of %lld, about %.0f s left\n", what_.c_str(), static_cast<long long>(done),
                 static_cast<long long>(total), left);
  }
}

Interruptible::Interruptible() {
  interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

Interruptible::~Interruptible() { std::signal(SIGINT, SIG_DFL); }

void Interruptible::poll() {
  if (interrupted != 0) source_.request_stop();
}

}  // namespace pipewright::cli
