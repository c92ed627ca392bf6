// Memory under pressure, for people and programs: verdict and margin of each rank; where reserved memory comes from
// that no tensor uses; PyTorch's message where a step runs out.
#include "pressure_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "format.hpp"

namespace pipewright::report {
namespace {

using predict::Pressure;

const char* name(Pressure::Verdict verdict) {
  if (verdict == Pressure::Verdict::fits) return "fits";
  return verdict == Pressure::Verdict::fits_expandable ? "fits with expandable segments" : "does not fit";
}

const char* short_name(Pressure::Verdict verdict) {
  return verdict == Pressure::Verdict::fits_expandable ? "fits if expandable" : name(verdict);
}

/// "mlp.fc1_output 1.20, attention.q 0.40": at most so many.
std::string listed(const std::vector<memory::OwnerBytes>& owners, std::size_t shown) {
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, owners.size()); ++i) {
    out += fmt::format("{}{} {}", i > 0 ? ", " : "", owners[i].owner, gibibytes(owners[i].bytes));
  }
  return out + (owners.size() > shown ? ", ..." : "");
}

Json owners_json(const std::vector<memory::OwnerBytes>& owners) {
  Json json = Json::array();
  for (const auto& [owner, bytes] : owners) json.push_back({{"owner", owner}, {"bytes", bytes.value}});
  return json;
}

Json fragmentation_json(const memory::Fragmentation& f) {
  Json segments = Json::array();
  for (const auto& s : f.segments) {
    segments.push_back({{"bytes", s.bytes.value}, {"free_bytes", s.free.value}, {"owners", owners_json(s.owners)}});
  }
  return {{"at", f.at},
          {"piece", f.piece},
          {"owner", f.owner},
          {"requested_bytes", f.requested.value},
          {"allocated_bytes", f.allocated.value},
          {"reserved_bytes", f.reserved.value},
          {"cached_bytes", f.cached.value},
          {"largest_gap_bytes", f.largest_gap.value},
          {"largest_allocation_bytes", f.largest_allocation.value},
          {"pinned_by", owners_json(f.pinned_by)},
          {"segments", segments}};
}

}  // namespace

std::string pressure_text(const predict::Prediction& p) {
  Table table(
      {"rank", "verdict", "needs", "margin", "likely", "cached", "largest gap", "can get", "expandable", "can get"});
  std::string messages;
  for (const auto& rank : p.ranks) {
    if (!rank.pressure) return "";
    const auto& [verdict, needed, probability, now, expandable, failure, message] = *rank.pressure;
    table.add({fmt::format("{}", rank.pp_rank), short_name(verdict), gibibytes(needed),
               gibibytes(p.memory_limit - needed), probability ? fmt::format("{:.0f} %", 100 * *probability) : "-",
               gibibytes(now.cached), gibibytes(now.largest_gap), gibibytes(now.largest_allocation),
               gibibytes(expandable.reserved), gibibytes(expandable.largest_allocation)});
    if (!failure) continue;
    messages += wrapped(fmt::format("rank {} would stop in {}{} at {} ({} GiB):", rank.pp_rank, failure->at,
                                    failure->piece.empty() ? "" : ", " + failure->piece + ",", failure->owner,
                                    gibibytes(failure->requested))) +
                "\n" + wrapped("  " + message) + "\n";
  }
  return "Room on each pipeline rank, GiB (margin: of the whole device; cached, largest gap, can get: as configured, "
         "when\n"
         "  reserved memory grew to its peak; then reserved memory and what can still be had with expandable "
         "segments)\n" +
         table.text() + messages;
}

std::string fragmentation_text(const predict::RankPrediction& rank) {
  if (!rank.pressure) return "";
  const auto& f = rank.pressure->as_configured;
  std::string out = wrapped(fmt::format(
      "rank {}: reserved memory grew to its peak in {}{} for {} ({} GiB): {} GiB were free in cached segments, the "
      "largest gap {} GiB",
      rank.pp_rank, f.at, f.piece.empty() ? "" : " (" + f.piece + ")", f.owner, gibibytes(f.requested),
      gibibytes(f.cached), gibibytes(f.largest_gap)));
  out += "\n";
  if (!f.pinned_by.empty()) {
    out += wrapped("free bytes pinned in part-used segments, GiB, by what is alive there: " + listed(f.pinned_by, 8));
    out += "\n";
  }
  if (f.segments.empty()) return out;
  Table table({"segment GiB", "free in it", "pinned by, GiB"});
  for (const auto& s : f.segments) table.add({gibibytes(s.bytes), gibibytes(s.free), listed(s.owners, 3)});
  return out + table.text();
}

Json pressure_json(const predict::Prediction& p, const predict::RankPrediction& rank) {
  const auto& pressure = *rank.pressure;
  Json json = {{"verdict", name(pressure.verdict)},
               {"needed_bytes", pressure.needed.value},
               {"margin_bytes", (p.memory_limit - pressure.needed).value}};
  json["probability"] = pressure.probability ? Json(rounded(*pressure.probability, 4)) : Json();
  if (const auto& failure = pressure.failure ? pressure.failure : rank.walk.failure) {
    const auto& f = *failure;
    json["first_failure"] = {{"at", f.at},
                             {"piece", f.piece},
                             {"owner", f.owner},
                             {"requested_bytes", f.requested.value},
                             {"allocated_bytes", f.allocated.value},
                             {"reserved_bytes", f.reserved.value},
                             {"owners", owners_json(f.owners)}};
  }
  if (!pressure.message.empty()) json["message"] = pressure.message;
  json["fragmentation"] = fragmentation_json(pressure.as_configured);
  json["fragmentation_expandable"] = fragmentation_json(pressure.expandable);
  return json;
}

}  // namespace pipewright::report
