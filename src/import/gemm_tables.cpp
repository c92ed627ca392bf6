// Matrix products of aiconfigurator.
#include "gemm_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "csv_table.hpp"
#include "robust_statistics.hpp"

namespace pipewright::tables {
namespace {

constexpr double ms = 1e6;                 // in ns
constexpr std::int64_t least = 512;        // features and tokens of products that a training step is made of
constexpr double at_the_limit = 0.9;       // of the power limit: FORMAT.md, Clocks
constexpr int cool_from = 5, cool_to = 7;  // octaves of us, 32 to 256: long enough to draw power, over before the limit
constexpr std::size_t enough = 20;         // shapes for a median

int octave(double ns) { return static_cast<int>(std::floor(std::log2(ns / 1e3))); }

}  // namespace

Products read_products(const std::string& folder, const std::string& system, const std::string& framework,
                       const std::string& version, const std::string& dtype) {
  const CsvTable table(fmt::format("{}/data/{}/gemm/{}/{}/gemm_perf.csv", folder, system, framework, version));
  const bool power = table.has("power");
  Products products;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table.text(i, "gemm_dtype") != dtype) continue;
    const auto dim = [&](const char* column) { return std::llround(table.number(i, column)); };
    const Product shape = {dim("m"), dim("n"), dim("k")};
    if (*std::ranges::min_element(shape) < least) continue;
    products[shape] = {table.number(i, "latency") * ms, power ? table.number(i, "power") : 0,
                       power ? table.number(i, "power_limit") : 0};
  }
  return products;
}

Throttle::Throttle(const Products& short_runs, const Products& long_runs) {
  std::map<int, std::vector<double>> ratios;
  std::vector<double> plateau;
  for (const auto& [shape, slow] : long_runs) {
    const auto found = short_runs.find(shape);
    if (found == short_runs.end() || slow.watts < at_the_limit * slow.limit) continue;
    const int o = octave(found->second.ns);
    ratios[o].push_back(slow.ns / found->second.ns);
    if (o >= cool_from && o <= cool_to) plateau.push_back(ratios[o].back());
  }
  if (plateau.size() < enough) return;
  full_ = std::max(1.0, traces::median(plateau));
  for (auto& [o, list] : ratios) {
    if (o > cool_to && list.size() >= enough) by_octave_[o] = traces::median(std::move(list));
  }
}

double Throttle::within(double short_ns) const {
  const int o = octave(short_ns);
  if (o <= cool_to || by_octave_.empty()) return 1;
  const auto above = by_octave_.upper_bound(o);
  const double ratio = above == by_octave_.begin() ? above->second : std::prev(above)->second;
  return 1 + share_ * (std::clamp(full_ / ratio, 1.0, full_) - 1);
}

double Throttle::full() const { return 1 + share_ * (full_ - 1); }

Throttle Throttle::of(const profile::DataSheet::UnderLoad& kin, const std::string& precision) const {
  Throttle other = *this;
  other.share_ = kin.share(precision, full_);
  return other;
}

}  // namespace pipewright::tables
