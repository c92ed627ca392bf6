// A traced run as columns: what page_timeline.cpp writes of a prediction, as far as a trace knows it.
#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "page_run.hpp"

namespace pipewright::report {
namespace {

/// Where a kind of activity is drawn, and as what (page/palette.js; a trace does not tell forward from backward).
struct Drawn {
  const char *kind, *stream;
  int colour;
};
constexpr std::array<Drawn, 6> drawn = {{{"comp", "compute", 27},
                                         {"coll", "collectives", 6},
                                         {"ep", "expert exchange", 8},
                                         {"p2p", "transfers and waiting for them", 11},
                                         {"d2h", "copies to host", 10},
                                         {"h2d", "copies from host", 10}}};

}  // namespace

Json traced_columns(const RunTraced& traced, const std::string& prefix, Pack& pack) {
  Json lanes = Json::array(), ranks = Json::array(), kernels = Json::array();
  std::map<std::pair<std::string, int>, std::uint64_t> entries;
  const auto entry = [&](const std::string& name, int colour) {
    const auto [known, is_new] = entries.try_emplace({name, colour}, kernels.size());
    if (is_new)
      kernels.push_back(
          Json::array({name, colour, "as traced", "", Json(), Json(), Json(), Json(), Json(), "", Json()}));
    return known->second;
  };
  const int last = traced.ranks.empty() ? -1 : traced.ranks.rbegin()->first;
  for (int rank = 0; rank <= last; ++rank) {
    ranks.push_back({{"pp_rank", rank}, {"steady_ns", 0}, {"cooldown_ns", 0}, {"end_ns", 0}, {"optimizer_ns", 0}});
    const auto found = traced.ranks.find(rank);
    if (found == traced.ranks.end()) continue;
    for (const auto& [kind, stream, colour] : drawn) {
      const std::string of = fmt::format("{}L{}.", prefix, lanes.size());
      auto &what = pack.column(of + "what"), &op = pack.column(of + "op"), &gap = pack.column(of + "gap"),
           &length = pack.column(of + "ns");
      std::int64_t end = 0;
      for (const auto& slice : found->second) {
        if (slice.kind != kind) continue;
        what.put(entry(slice.name, colour));
        op.put_delta(0);
        gap.put_signed(slice.start - std::exchange(end, slice.start + slice.ns));
        length.put(static_cast<std::uint64_t>(slice.ns));
      }
      lanes.push_back(Json::array({rank, stream, static_cast<int>(lanes.size()), what.size()}));
    }
  }
  return {{"prefix", prefix}, {"step_ns", traced.step_ns}, {"forward_backward_ns", traced.step_ns}, {"lanes", lanes},
          {"ranks", ranks},   {"kernels", kernels}};
}

}  // namespace pipewright::report
