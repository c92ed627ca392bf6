// `simulate --json`. Times are whole nanoseconds inside, so milliseconds have at most six decimals and the parts of a
// step add up to it.
#include "to_json.hpp"

#include <fmt/format.h>

#include <cmath>

#include "format.hpp"
#include "pipewright/reading.hpp"
#include "pipewright/report.hpp"
#include "pressure_text.hpp"

namespace pipewright::report {
namespace {

std::int64_t at(const std::map<std::string, std::int64_t>& times, const char* kind) {
  const auto found = times.find(kind);
  return found == times.end() ? 0 : found->second;
}

Json communication_json(const timeline::Communication& c) {
  const auto& [warmup, steady, cooldown, end] = c.exposed;
  Json sent = Json::object();
  for (std::size_t level = 0; level < c.bytes.size(); ++level) {
    const double each = c.bytes[level] / c.times;
    if (level < 2)
      sent[level == 0 ? "nvlink" : "cards"] = each;
    else
      sent["switches"].push_back(each);
  }
  return {{"what", c.what},
          {"purpose", timeline::name(timeline::cause_of(c.purpose))},
          {"times", c.times},
          {"busy_ms", ns_to_ms(c.busy)},
          {"exposed_ms", ns_to_ms(c.exposed_in_all())},
          {"bytes_each", std::move(sent)},
          {"exposed_by_phase_ms",
           {{"warmup", ns_to_ms(warmup)},
            {"steady", ns_to_ms(steady)},
            {"cooldown", ns_to_ms(cooldown)},
            {"end", ns_to_ms(end)}}}};
}

Json rank_json(const predict::RankPrediction& rank) {
  const timeline::Account& account = rank.account;
  Json busy = Json::object(), exposed = Json::object();
  for (const char* kind : {"comp", "p2p", "ep", "coll", "d2h", "h2d"})
    busy[kind] = ns_to_ms(at(account.traced_busy, kind));
  for (const char* kind : {"p2p", "ep", "coll"}) exposed[kind] = ns_to_ms(at(account.traced_exposed, kind));
  Json owners = Json::array();
  for (const auto& [owner, bytes] : rank.walk.peak_owners) owners.push_back({{"owner", owner}, {"bytes", bytes.value}});
  Json json = {{"pp_rank", rank.pp_rank},
               {"forward_backward_ms", ns_to_ms(account.forward_backward_end)},
               {"busy_ms", ns_to_ms(account.busy)},
               {"bubble_ms", ns_to_ms(account.bubble)},
               {"idle_ms", ns_to_ms(account.idle)},
               {"exposed_ms", exposed_json(account)},
               {"as_traced", {{"busy_ms", busy}, {"exposed_ms", exposed}}},
               {"static_bytes", rank.walk.static_bytes.value},
               {"peak_allocated_bytes", rank.walk.peak_allocated.value},
               {"peak_reserved_bytes", rank.walk.peak_reserved.value},
               {"outside_allocator_bytes", rank.outside_allocator.value},
               {"peak_at", rank.walk.peak_at},
               {"peak_owners", owners}};
  json["communication"] = Json::array();
  for (const auto& c : account.communication) json["communication"].push_back(communication_json(c));
  if (rank.walk.offloaded.empty()) return json;
  Json moved = Json::array();
  for (const auto& module : rank.walk.offloaded)
    moved.push_back({{"module", module.module},
                     {"groups", module.groups},
                     {"kept", module.kept},
                     {"missed", module.missed},
                     {"bytes", module.bytes.value}});
  json["offload"] = {{"modules", moved}, {"pinned_host_bytes", rank.walk.pinned.value}};
  return json;
}

}  // namespace

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

std::string dumped(const Json& json) {
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Json exposed_json(const timeline::Account& account) {
  Json json = Json::object();
  for (const auto& cause : exposed_causes) json[cause.name] = ns_to_ms(account.*cause.member);
  return json;
}

Json prediction_json(const predict::Prediction& p) {
  const timeline::Account& last = p.ranks.at(static_cast<std::size_t>(p.last_rank)).account;
  Json ranks = Json::array(), boundaries = Json::array(), path = Json::array();
  for (const auto& rank : p.ranks) {
    ranks.push_back(rank_json(rank));
    if (rank.pressure) ranks.back()["pressure"] = pressure_json(p, rank);
  }
  for (const auto& b : p.boundaries) {
    boundaries.push_back({{"from", b.from},
                          {"to", b.to},
                          {"direction", b.forward ? "forward" : "backward"},
                          {"bytes", b.bytes.value},
                          {"transfers", b.transfers},
                          {"exposed_ms", ns_to_ms(b.exposed)},
                          {"longest_wait", b.longest_wait}});
  }
  for (const auto& step : p.critical_path) {
    path.push_back({{"what", step.what}, {"ms", ns_to_ms(step.ns)}, {"why", timeline::name(step.why)}});
  }
  std::vector<std::string> notes = p.notes;
  for (const auto& lever : p.levers)
    notes.push_back(fmt::format("what would shorten the step: {}, {} ms (on the critical path {} ms)", lever.what,
                                ms(lever.gain_ns), ms(lever.on_path_ns)));
  Json parts = Json::array();
  for (const auto& part : p.interval_parts)
    parts.push_back({{"cause", part.cause},
                     {"minus_ms", ns_to_ms(static_cast<std::int64_t>(part.minus_ns))},
                     {"plus_ms", ns_to_ms(static_cast<std::int64_t>(part.plus_ns))},
                     {"source", part.source}});
  return {{"scenario", p.scenario},
          {"profile", {{"name", p.profile}, {"origin", p.origins.weakest()}}},
          {"origins",
           {{"measured", rounded(p.origins.measured, 4)},
            {"interpolated", rounded(p.origins.interpolated, 4)},
            {"derived", rounded(p.origins.derived, 4)},
            {"public", rounded(p.origins.published, 4)}}},
          {"software", {{"megatron_core", p.megatron_core}}},
          {"forward_backward_ms", ns_to_ms(p.forward_backward_ns)},
          {"optimizer_ms", ns_to_ms(p.optimizer_ns)},
          {"step_time_ms", ns_to_ms(p.step_ns)},
          {"interval_ms",
           p.ignored.empty() ? Json{ns_to_ms(p.interval_low_ns), ns_to_ms(p.interval_high_ns)} : Json(nullptr)},
          {"interval_parts", parts},
          {"ignored", p.ignored},
          {"tflops_per_gpu", rounded(p.tflops_per_gpu, 3)},
          {"mfu", p.mfu ? Json(rounded(*p.mfu, 4)) : Json(nullptr)},
          {"tokens_per_s_per_gpu", rounded(p.tokens_per_s_per_gpu, 3)},
          {"exposed_ms", exposed_json(last)},
          {"bubble_ms", ns_to_ms(last.bubble)},
          {"recompute_ms", ns_to_ms(last.recompute)},
          {"ranks", ranks},
          {"boundaries", boundaries},
          {"critical_path", path},
          {"fits", p.fits},
          {"memory_limit_bytes", p.memory_limit.value},
          {"notes", notes}};
}

std::string simulate_json(const predict::Prediction& prediction, const Stamp* stamp) {
  return dumped(prediction_json(prediction), stamp);
}

}  // namespace pipewright::report
