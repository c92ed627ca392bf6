// Progress on standard error.
#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "embedded.hpp"
#include "terminal.hpp"

namespace pipewright::cli {
namespace {

std::atomic<int> interrupts = 0;  // counted by the signal's handler, read by the watch
static_assert(std::atomic<int>::is_always_lock_free);

/// A lost terminal stops what runs behind it as Ctrl-C does, but for nohup.
bool ignores_hangup() {
  struct sigaction now = {};
  return sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Progress::Progress(std::string what)
    : what_(std::move(what)),
      quiet_(embedding() != nullptr),
      terminal_(!quiet_ && is_capable_terminal(STDERR_FILENO)),
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
  // A line that goes on below cannot be taken back.
  if (const int columns = columns_of(STDERR_FILENO); terminal_ && columns > 0)
    text.resize(std::min(text.size(), static_cast<std::size_t>(columns - 1)));
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  shown_ = true;
  last_ = now;
}

Interruptible::Interruptible(std::optional<double> limit_s, Second second) : host_(embedding()) {
  if (host_ == nullptr) {
    interrupts = 0;
    struct sigaction action = {};
    action.sa_flags = SA_RESTART;
    if (second == Second::ends) {
      action.sa_handler = [](int) { ++interrupts; };
      action.sa_flags |= SA_RESETHAND;
    } else {
      action.sa_handler = [](int signal) {
        if (++interrupts == 2) std::signal(signal, SIG_DFL);
      };
    }
    for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
    if (!ignores_hangup()) sigaction(SIGHUP, &action, nullptr);
  }
  watch_ = std::jthread([this, limit_s](const std::stop_token& done) {
    constexpr std::chrono::milliseconds tick(20);
    const auto begin = std::chrono::steady_clock::now();
    while (!done.stop_requested() && !haste_.stop_requested()) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      const int asked = host_ == nullptr ? interrupts.load() : static_cast<int>(host_->stop.load());
      if (asked > 0 || (limit_s && elapsed.count() >= *limit_s)) source_.request_stop();
      if (asked > 1) haste_.request_stop();
      std::this_thread::sleep_for(tick);
    }
  });
}

Interruptible::~Interruptible() {
  if (host_ != nullptr) return;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  if (!ignores_hangup()) std::signal(SIGHUP, SIG_DFL);
}

}  // namespace pipewright::cli
