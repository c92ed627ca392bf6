// Memory over the step as columns. The walk knows the host's order only; a sample is drawn where the kernels of its
// instruction run.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "memory_clock.hpp"
#include "page_run.hpp"

namespace pipewright::report {
namespace {

constexpr std::size_t drawn_owners = 9;  ///< the largest of all ranks; the others are drawn as one

/// Owners of all ranks, the largest first.
std::vector<std::string> owners_of(const std::vector<predict::RankHistory>& ranks) {
  std::map<std::string, Bytes> largest;
  for (const auto& rank : ranks)
    for (std::size_t o = 0; o < rank.owners.size(); ++o) {
      auto& most = largest[rank.owners[o]];
      most = std::max(most, rank.held[o][rank.peak]);
    }
  std::vector<std::string> names;
  for (const auto& [name, bytes] : largest) names.push_back(name);
  std::stable_sort(names.begin(), names.end(),
                   [&](const auto& a, const auto& b) { return largest.at(a) > largest.at(b); });
  return names;
}

}  // namespace

Json memory_columns(const RunShown& shown, const std::string& prefix, Pack& pack) {
  const auto owners = owners_of(shown.memory);
  const std::size_t drawn = std::min(drawn_owners, owners.size());
  Json ranks = Json::array();
  for (std::size_t r = 0; r < shown.memory.size(); ++r) {
    const auto& history = shown.memory[r];
    const auto column = [&](const std::string& name) -> Column& {
      return pack.column(fmt::format("{}M{}.{}", prefix, r, name));
    };
    auto &at = column("at"), &allocated = column("allocated"), &reserved = column("reserved");
    MemoryClock clock(*shown.run, static_cast<int>(r));
    for (const auto& sample : history.samples) {
      at.put_delta(clock.of(sample));
      allocated.put_delta(sample.allocated.value);
      reserved.put_delta(sample.reserved.value);
    }
    std::vector<std::size_t> number(history.owners.size());  // among those of all ranks
    for (std::size_t o = 0; o < history.owners.size(); ++o)
      number[o] = static_cast<std::size_t>(std::find(owners.begin(), owners.end(), history.owners[o]) - owners.begin());
    for (std::size_t n = 0; n < drawn; ++n) {
      auto& held = column(fmt::format("held{}", n));
      for (std::size_t o = 0; o < number.size(); ++o)
        if (number[o] == n)
          for (const Bytes bytes : history.held[o]) held.put_delta(bytes.value);
    }
    Json peak = Json::array();
    for (std::size_t o = 0; o < number.size(); ++o)
      if (history.held[o][history.peak].value > 0)
        peak.push_back(Json::array({number[o], history.held[o][history.peak].value}));
    auto &segments = column("segment"), &kinds = column("segment_kind"), &counts = column("segment_blocks"),
         &blocks = column("block"), &block_owners = column("block_owner");
    for (std::size_t s = 0; s < history.segments.size(); ++s) {
      const auto& segment = history.segments[s];
      segments.put(static_cast<std::uint64_t>(segment.bytes));
      kinds.put((segment.small ? 1U : 0U) + (segment.expandable ? 2U : 0U));
      counts.put(segment.blocks.size());
      for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
        const auto owner = history.segment_owners[s][b];
        blocks.put(static_cast<std::uint64_t>(segment.blocks[b].bytes));
        block_owners.put(owner < 0 ? 0 : number[static_cast<std::size_t>(owner)] + 1);
      }
    }
    ranks.push_back({{"eager", history.eager}, {"peak", history.peak}, {"peak_owners", peak}});
  }
  return {{"owners", owners}, {"drawn", drawn}, {"ranks", ranks}};
}

}  // namespace pipewright::report
