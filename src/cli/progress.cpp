// Progress on standard error.
#include "progress.hpp"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "embedded.hpp"

namespace pipewright::cli {
namespace {

std::atomic<bool> interrupted = false;  // set by the signal's handler, read by the watch
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)),
      quiet_(embedding() != nullptr),
      terminal_(!quiet_ && isatty(STDERR_FILENO) == 1),
      begin_(Clock::now()),
      phase_began_(begin_) {}

Progress::~Progress() {
  if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
}

void Progress::operator()(std::int64_t done, std::int64_t total, const std::string& phase) {
  if (quiet_) return;
  constexpr std::chrono::milliseconds terminal_pause(100);
  constexpr std::chrono::seconds patience(2), file_pause(10);
  const auto now = Clock::now();
  if (phase != phase_) phase_ = phase, phase_began_ = now;
  if (terminal_ ? shown_ && now - last_ < terminal_pause
                : now - begin_ < patience || (shown_ && now - last_ < file_pause))
    return;
  std::string text = what_ + ": " + (phase_.empty() ? "" : phase_ + ", ") + std::to_string(done);
  if (total > 0 && done > 0) {
    const std::chrono::duration<double> elapsed = now - phase_began_;
    const double left = elapsed.count() * static_cast<double>(total - done) / static_cast<double>(done);
    text += " of " + std::to_string(total) + ", about " + std::to_string(std::llround(left)) + " s left";
  } else {
    text += " done in " + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - begin_).count()) + " s";
  }
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  shown_ = true;
  last_ = now;
}

Interruptible::Interruptible(std::optional<double> limit_s) : host_(embedding()) {
  if (host_ == nullptr) {
    interrupted = false;
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  }
  const std::atomic<bool>& asked = host_ == nullptr ? interrupted : host_->stop;
  watch_ = std::jthread([this, limit_s, &asked](const std::stop_token& done) {
    constexpr std::chrono::milliseconds tick(20);
    const auto begin = std::chrono::steady_clock::now();
    while (!done.stop_requested() && !source_.stop_requested()) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (asked || (limit_s && elapsed.count() >= *limit_s)) source_.request_stop();
      std::this_thread::sleep_for(tick);
    }
  });
}

Interruptible::~Interruptible() {
  if (host_ == nullptr)
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

}  // namespace pipewright::cli
