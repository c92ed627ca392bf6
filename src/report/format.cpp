// Numbers as text, and the few sums that several reports print.
#include "format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "pipewright/report.hpp"

namespace pipewright::report {

const std::vector<Loss> exposed_causes = {
    {"p2p", &timeline::Account::p2p},   {"tp", &timeline::Account::tp}, {"cp", &timeline::Account::cp},
    {"ep", &timeline::Account::ep},     {"dp", &timeline::Account::dp}, {"offload", &timeline::Account::offload},
    {"host", &timeline::Account::host},
};

namespace {
std::size_t columns = 120;
}  // namespace

std::size_t line_width() { return columns; }
void set_line_width(int width) { columns = static_cast<std::size_t>(width); }

std::string ms(std::int64_t ns) { return fmt::format("{:.2f}", ns_to_ms(ns)); }

std::string gibibytes(Bytes bytes) { return fmt::format("{:.2f}", gib(bytes)); }

std::string percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

std::string share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string op_name(std::string_view kind, int microbatch, int chunk) {
  return fmt::format("{} {}.{}", kind, microbatch, chunk);
}

std::string plural(std::int64_t count, std::string_view one) {
  return std::string(one) + (count == 1 ? "" : one.ends_with("ch") ? "es" : "s");
}

std::string counted(std::int64_t count, std::string_view one) {
  return fmt::format("{} {}", count, plural(count, one));
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::size_t column = std::min(text.find_first_not_of(' '), text.size());
  std::string out(text.substr(0, column));
  text.remove_prefix(column);
  const std::size_t first = column;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + 1 + word.size() > line_width()) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Bytes spare(const predict::Prediction& prediction, const predict::RankPrediction& rank) {
  const Bytes room = prediction.memory_limit - prediction.memory_margin;
  // Where it runs out, cached segments have been given back: what is missing is less than what it would like to keep.
  if (!rank.fits && rank.pressure) return room - rank.pressure->needed;
  return room - rank.walk.peak_reserved - rank.outside_allocator;
}

const predict::RankPrediction& tightest_rank(const predict::Prediction& prediction) {
  return *std::min_element(prediction.ranks.begin(), prediction.ranks.end(),
                           [&](const auto& a, const auto& b) { return spare(prediction, a) < spare(prediction, b); });
}

std::string interval(const predict::Prediction& p) {
  if (p.ignored.empty()) return fmt::format("90 % interval {} to {}", ms(p.interval_low_ns), ms(p.interval_high_ns));
  return fmt::format("no interval: {} not modelled", fmt::join(p.ignored, ", "));
}

std::string throughput(const predict::Prediction& p) {
  const std::string mfu = p.mfu ? fmt::format(", MFU {:.1f} %", 100 * *p.mfu) : "";
  return fmt::format("{:.1f} TFLOP/s/GPU{}", p.tflops_per_gpu, mfu);
}

std::string verdict(const predict::Prediction& prediction) {
  const auto& rank = tightest_rank(prediction);
  const Bytes left = spare(prediction, rank);
  const std::string limit = prediction.memory_margin.value == 0
                                ? fmt::format("limit {}", format_bytes(prediction.memory_limit))
                                : fmt::format("limit {}, margin {}", format_bytes(prediction.memory_limit),
                                              format_bytes(prediction.memory_margin));
  return left.value >= 0 ? fmt::format("fits: {} to spare on rank {} ({})", format_bytes(left), rank.pp_rank, limit)
                         : fmt::format("does not fit: {} too much on rank {} ({})", format_bytes(Bytes(-left.value)),
                                       rank.pp_rank, limit);
}

std::int64_t exposed_in(const timeline::Boundary& boundary, std::size_t phase) {
  return std::accumulate(boundary.by_phase[phase].begin(), boundary.by_phase[phase].end(), std::int64_t{0});
}

std::vector<CriticalShare> critical_shares(const predict::Prediction& prediction) {
  std::map<std::string_view, CriticalShare> by_reason;  // equal shares by name
  for (const auto& step : prediction.critical_path) {
    auto& sum = by_reason[timeline::name(step.why)];
    sum.why = step.why;
    sum.ns += step.ns;
    ++sum.steps;
  }
  std::vector<CriticalShare> shares;
  for (const auto& [why, sum] : by_reason) shares.push_back(sum);
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.ns > b.ns; });
  return shares;
}

}  // namespace pipewright::report
