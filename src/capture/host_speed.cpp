#include "host_speed.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "pipewright/base.hpp"

namespace pipewright::capture {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds window{10};

struct Object {
  virtual ~Object() = default;
  virtual std::uint64_t number() const = 0;
};
struct Small final : Object {
  explicit Small(std::uint64_t n) : value(n) {}
  std::uint64_t number() const override { return value; }
  std::uint64_t value;
};
struct Pair final : Object {
  Pair(std::shared_ptr<Object> a, std::shared_ptr<Object> b) : first(std::move(a)), second(std::move(b)) {}
  std::uint64_t number() const override { return first->number() * 31 + second->number(); }
  std::shared_ptr<Object> first, second;
};

using Names = std::unordered_map<std::string, std::shared_ptr<Object>>;
using Operation = void (*)(Names&, const std::vector<std::string>&, std::uint64_t&);

/// Every instance is code of its own: together more than the first instruction cache holds.
template <std::size_t N>
void operate(Names& names, const std::vector<std::string>& keys, std::uint64_t& state) {
  const auto key = [&](std::uint64_t at) -> const std::string& { return keys[at % keys.size()]; };
  state = state * 6364136223846793005ULL + 2 * N + 1;
  auto& to = names[key(state >> 33)];
  const auto& from = names[key((state >> 21) + N)];
  const std::uint64_t number = from ? from->number() : N;
  if constexpr (N % 3 == 0) {
    to = std::make_shared<Small>(number ^ state);
  } else if constexpr (N % 3 == 1) {
    if (!from || (number & 1) != 0) {
      to = std::make_shared<Small>(number + N);
    } else {
      to = std::make_shared<Pair>(std::make_shared<Small>(number), std::make_shared<Small>(state >> 40));
    }
  } else {
    std::array<std::shared_ptr<Object>, 4> arguments;
    for (std::size_t i = 0; i < arguments.size(); ++i) arguments[i] = names[key(state >> (10 + i))];
    for (const auto& argument : arguments) state += argument ? argument->number() * (N + 3) : 1;
    to = std::make_shared<Small>(state >> 7);
  }
}

template <std::size_t... N>
constexpr std::array<Operation, sizeof...(N)> table(std::index_sequence<N...>) {
  return {&operate<N>...};
}
constexpr auto operations = table(std::make_index_sequence<256>{});

class Program {
 public:
  Program() {
    for (int i = 0; i < 97; ++i) keys_.push_back("module.layers." + std::to_string(i) + ".attribute");
  }
  void run() {
    for (int i = 0; i < 200; ++i) operations[(state_ >> 45) % operations.size()](names_, keys_, state_);
  }
  std::uint64_t state() const { return state_; }

 private:
  Names names_;
  std::vector<std::string> keys_;
  std::uint64_t state_ = 1;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

HostSpeed host_speed_of(const std::vector<std::vector<double>>& windows_us, double window_ms) {
  constexpr double slow = 1.35;  // a shared core is 1.5 to 2 times slower, noise within a window a few percent
  std::vector<double> all, means;
  for (const auto& thread : windows_us) {
    if (thread.empty()) continue;
    all.insert(all.end(), thread.begin(), thread.end());
    means.push_back(mean(thread));
  }
  if (all.empty()) throw InternalError("host speed without a window");
  HostSpeed speed;
  speed.windows = all.size();
  speed.mean_us = mean(all);
  std::sort(all.begin(), all.end());
  speed.calm_us = all[all.size() / 10];
  std::vector<double> calm, shared;
  for (const double us : all) (us > slow * speed.calm_us ? shared : calm).push_back(us);
  speed.slow_share = static_cast<double>(shared.size()) / static_cast<double>(all.size());
  if (!shared.empty()) speed.slow_factor = mean(shared) / mean(calm);
  std::size_t stretches = 0;
  for (const auto& thread : windows_us) {
    bool before = false;
    for (const double us : thread) {
      const bool now = us > slow * speed.calm_us;
      if (now && !before) ++stretches;
      before = now;
    }
  }
  if (stretches > 0) speed.slow_ms = window_ms * static_cast<double>(shared.size()) / static_cast<double>(stretches);
  double squares = 0;
  for (const double m : means) squares += (m - speed.mean_us) * (m - speed.mean_us);
  speed.spread = std::sqrt(squares / static_cast<double>(means.size())) / speed.mean_us;
  return speed;
}

HostSpeed measure_host_speed(int threads, std::chrono::milliseconds time) {
  std::vector<std::vector<double>> windows(static_cast<std::size_t>(threads));
  std::atomic<std::uint64_t> kept{0};  // so that no run can be left out
  std::vector<std::thread> running;
  for (auto& mine : windows) {
    running.emplace_back([&mine, &kept, time] {
      Program program;
      for (int i = 0; i < 200; ++i) program.run();  // fills the table and the allocator's lists
      const auto end = Clock::now() + time;
      for (auto start = Clock::now(); start < end;) {
        int runs = 0;
        auto now = start;
        do {
          program.run();
          ++runs;
          now = Clock::now();
        } while (now - start < window);
        mine.push_back(std::chrono::duration<double, std::micro>(now - start).count() / runs);
        start = now;
      }
      kept += program.state();
    });
  }
  for (auto& thread : running) thread.join();
  return host_speed_of(windows, static_cast<double>(window.count()));
}

// By 15 traced steps of pretrain_gpt.py on eight machines with H200 or H100 (2026-11-23 to 27): a dense layer's
// operations took 0.9 to 1.5 times, 1.215 in the mean, what this program said beside them with a reference of 24.8 us.
double reference_host_us() { return 24.8 / 1.215; }

double host_time_factor(const HostSpeed& speed) {
  return speed.calm_us / reference_host_us() * (1 + speed.slow_share * (pytorch_slow_factor - 1));
}

}  // namespace pipewright::capture
