#include "host_adam.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

namespace pipewright::capture {
namespace {

using Clock = std::chrono::steady_clock;

/// A process' arrays; pages are touched by the thread that works on them.
struct Arrays {
  explicit Arrays(std::size_t elements)
      : gradient(std::make_unique_for_overwrite<float[]>(elements)),
        parameter(std::make_unique_for_overwrite<float[]>(elements)),
        first(std::make_unique_for_overwrite<float[]>(elements)),
        second(std::make_unique_for_overwrite<float[]>(elements)) {}
  std::unique_ptr<float[]> gradient, parameter, first, second;
};

}  // namespace

// Vectorised at any level of optimisation of this room.
[[gnu::optimize("O3")]] void adam_on_host(const float* __restrict gradient, float* __restrict parameter,
                                          float* __restrict first, float* __restrict second, std::size_t count,
                                          int step) {
  constexpr float rate = 1e-4F, decay = 0.1F, beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  const float size = rate / (1 - std::pow(beta1, static_cast<float>(step)));
  const float root = 1 / std::sqrt(1 - std::pow(beta2, static_cast<float>(step)));
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    const float m = beta1 * first[i] + (1 - beta1) * g, v = beta2 * second[i] + (1 - beta2) * g * g;
    first[i] = m;
    second[i] = v;
    parameter[i] = parameter[i] * (1 - rate * decay) - size * m / (__builtin_sqrtf(v) * root + epsilon);
  }
}

std::vector<double> measure_host_adam(int processes, int threads, std::size_t elements, int rounds) {
  std::vector<Arrays> arrays;
  for (int p = 0; p < processes; ++p) arrays.emplace_back(elements);
  std::barrier together(static_cast<std::ptrdiff_t>(processes) * threads);
  std::vector<std::vector<Clock::time_point>> ends(static_cast<std::size_t>(processes * threads));
  std::vector<Clock::time_point> starts(static_cast<std::size_t>(rounds) + 1);
  std::vector<std::thread> running;
  for (int worker = 0; worker < processes * threads; ++worker) {
    running.emplace_back([&, worker] {
      const Arrays& mine = arrays[static_cast<std::size_t>(worker / threads)];
      const std::size_t part = elements / static_cast<std::size_t>(threads);
      const std::size_t from = part * static_cast<std::size_t>(worker % threads);
      const std::size_t count = worker % threads + 1 == threads ? elements - from : part;
      std::fill_n(mine.gradient.get() + from, count, 1e-3F);
      for (auto* array : {mine.parameter.get(), mine.first.get(), mine.second.get()})
        std::fill_n(array + from, count, 0.0F);
      for (int round = 0; round <= rounds; ++round) {  // the first one is not counted
        together.arrive_and_wait();
        if (worker == 0) starts[static_cast<std::size_t>(round)] = Clock::now();
        adam_on_host(mine.gradient.get() + from, mine.parameter.get() + from, mine.first.get() + from,
                     mine.second.get() + from, count, round + 1);
        ends[static_cast<std::size_t>(worker)].push_back(Clock::now());
        together.arrive_and_wait();
      }
    });
  }
  for (auto& thread : running) thread.join();
  std::vector<double> result;
  for (std::size_t round = 1; round < starts.size(); ++round) {
    double sum = 0;
    for (int p = 0; p < processes; ++p) {
      Clock::time_point last = starts[round];
      for (int t = 0; t < threads; ++t) last = std::max(last, ends[static_cast<std::size_t>(p * threads + t)][round]);
      sum += std::chrono::duration<double, std::nano>(last - starts[round]).count();
    }
    result.push_back(sum / processes);
  }
  return result;
}

}  // namespace pipewright::capture
