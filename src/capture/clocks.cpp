// The clock law: a part at its power limit lowers its clock, and kernels slow down by what binds them.
//
// Each kernel's time at a duty is compared with its own time in the same sequence at a duty low enough for full clock.
// How fast the clock follows the load:
//
//   MHz ─┐ idle before          fall: time until 1/e of the way to the settled clock is left
//        └─╲______  ╱           recovery: how far the clock has come back after an idle time
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "parts.hpp"
#include "sustained.hpp"

namespace pipewright::capture {
namespace {

using profile::Load;

void idle(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Slow-down of the kernels of one kind, weighted by their cool time.
double ratio(const SustainedRow& hot, const SustainedRow& cool, const std::vector<Load>& loads, Load load) {
  double a = 0, b = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] != load || hot.ns[i] <= 0 || cool.ns[i] <= 0) continue;
    a += hot.ns[i];
    b += cool.ns[i];
  }
  return b > 0 ? a / b : 1;
}

/// Share of the cool busy time that kernels of this kind take.
double share(const SustainedRow& cool, const std::vector<Load>& loads, Load load) {
  double of_load = 0, all = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    all += cool.ns[i];
    if (loads[i] == load) of_load += cool.ns[i];
  }
  return all > 0 ? of_load / all : 0;
}

/// Time until the clock has fallen by 1 - 1/e of the way from its start to where it settles: over about this long a
/// part's load decides its clock. nullopt: it did not fall.
std::optional<double> fall_ms(const std::vector<ClockReading>& clock) {
  if (clock.size() < 12) return std::nullopt;
  double settled = 0;
  const std::size_t third = clock.size() / 3;
  for (std::size_t i = clock.size() - third; i < clock.size(); ++i)
    settled += clock[i].mhz / static_cast<double>(third);
  const double start = clock.front().mhz;
  if (start < 1.02 * settled) return std::nullopt;
  const double level = settled + (start - settled) * std::exp(-1.0);
  const auto below = std::find_if(clock.begin(), clock.end(), [=](const ClockReading& c) { return c.mhz <= level; });
  return below == clock.end() ? std::nullopt : std::optional(below->ms);
}

void measure_response(Sequence& sequence, Session& session) {
  const int repetitions = session.options.quick ? 3 : 7;
  std::vector<double> falls;
  for (int i = 0; i < repetitions && !session.stop; ++i) {
    session.report({"clocks.window_ms", 0, 0, 0, 0});
    idle(0.7);
    if (const auto ms = fall_ms(sequence.run(1, 0.3, 0, session.stop).clock)) falls.push_back(*ms);
  }
  if (falls.empty()) return;
  const Summary s = summarize(falls);
  session.result.profile.scalars["clocks.window_ms"] = {
      s.median, s.spread, profile::Origin::measured,
      "SM clock from a cool start to 1/e of its fall under full bf16 matrix load, median of " +
          std::to_string(s.count) + " starts"};
}

void measure_mix(Lab& lab, Attention& attention, const std::string& precision, const std::string& kernels,
                 Session& session) {
  const bool fp8 = precision == "fp8", quick = session.options.quick;
  Sequence sequence(lab, attention, kernels == "layer" ? layer_kernels(fp8) : kernels_of(kernels, fp8));
  const auto loads = sequence.loads();
  constexpr double cool_duty = 0.1;
  const double seconds = quick ? 1.0 : 2.4;
  idle(0.5);
  const SustainedRow cool = sequence.run(cool_duty, quick ? 1.0 : 1.5, 0.3, session.stop);
  profile::Clocks clocks;
  clocks.precision = precision;
  clocks.kernels = kernels;
  clocks.cool_mhz = lab.max_mhz;
  clocks.limit_watts = lab.nvml->limit_watts().value_or(0);
  clocks.matrix_share = share(cool, loads, Load::matrix);
  clocks.attention_share = share(cool, loads, Load::attention);
  clocks.memory_share = share(cool, loads, Load::memory);
  clocks.rows.push_back({cool.duty, cool.mhz, cool.watts, 1, 1, 1});
  if (cool.mhz < 0.97 * lab.max_mhz) {
    session.result.warnings.push_back("clocks " + precision + ": the part was not at full clock even at a duty of " +
                                      std::to_string(cool.duty));
  }
  SustainedRow fullest;
  for (const double duty : {0.4, 0.6, 0.75, 0.9, 1.0}) {
    if (session.stop) return;
    session.report({"clocks." + precision + "." + kernels + " duty " + std::to_string(duty).substr(0, 4), 0, 0, 0, 0});
    const SustainedRow row = sequence.run(duty, seconds, seconds / 3, session.stop);
    if (session.stop) return;
    fullest = row;
    clocks.rows.push_back({row.duty, row.mhz, row.watts, ratio(row, cool, loads, Load::matrix),
                           ratio(row, cool, loads, Load::attention), ratio(row, cool, loads, Load::memory)});
  }
  if (kernels == "layer" && !fp8 && fullest.fluctuation > 0) {
    session.result.profile.scalars["clocks.fluctuation"] = {
        fullest.fluctuation, 0, profile::Origin::measured,
        "standard deviation of a bf16 layer's kernel times over windows of 10 ms, always busy, relative"};
  }
  std::sort(clocks.rows.begin(), clocks.rows.end(), [](const auto& a, const auto& b) { return a.duty < b.duty; });
  session.result.profile.clocks.push_back(std::move(clocks));
  if (kernels == "matrix" && !fp8 && session.wants("clocks.window_ms")) measure_response(sequence, session);
}

}  // namespace

void measure_clocks(Lab& lab, Attention& attention, Session& session) {
  for (const std::string precision : {"bf16", "fp8"}) {
    for (const std::string kernels : {"layer", "matrix", "attention", "memory", "matrix+memory"}) {
      // Attention and memory-bound kernels are the same in either precision of the matrix products.
      if (precision == "fp8" && (kernels == "attention" || kernels == "memory")) continue;
      if (session.stop || !session.wants("clocks." + precision + "." + kernels)) continue;
      measure_mix(lab, attention, precision, kernels, session);
    }
  }
}

void load_layer_kernels(Lab& lab, Attention& attention) {
  for (const bool fp8 : {false, true}) Sequence(lab, attention, layer_kernels(fp8));
}

}  // namespace pipewright::capture
