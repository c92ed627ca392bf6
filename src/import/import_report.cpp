// What an import found, for people and for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "machine_share.hpp"
#include "pipewright/import.hpp"

namespace pipewright::traces {
namespace {

using Json = nlohmann::ordered_json;

double lone_us(const KeyTime& key, const profile::Profiles* lone) {
  const auto alone = lone != nullptr ? lone_time(key.key, *lone) : std::nullopt;
  return alone ? ns_to_us(alone->ns) : 0;
}

std::string kernel_name(const std::string& name) {
  constexpr std::size_t most = 90;
  return name.size() <= most ? name : name.substr(0, most) + "...";
}

std::string percent(double part, double whole) { return fmt::format("{:.2f} %", whole > 0 ? 100 * part / whole : 0); }

}  // namespace

std::string shape(const profile::Key& key) {
  const auto& family = profile::family(key.family);
  std::string text;
  for (std::size_t i = 0; i < key.dims.size(); ++i) {
    text += fmt::format("{}{}={}", i ? " " : " ", family.dims[i], key.dims[i]);
  }
  return key.family + text;
}

std::string text(const Import& result, const profile::Profiles* lone) {
  Table ranks({"rank", "stage", "span ms", "duty", "passes", "attributed", "transfer us"});
  for (const auto& r : result.ranks) {
    ranks.add({fmt::format("{}", r.rank), fmt::format("{}", r.pp_rank), fmt::format("{:.2f}", r.summary.span_us / 1e3),
               fmt::format("{:.3f}", r.duty), fmt::format("{}", r.passes), percent(r.attributed_us, r.kernel_us),
               r.p2p_us > 0 ? fmt::format("{:.1f}", r.p2p_us) : "-"});
  }
  Table busy({"rank and kind", "busy ms", "exposed ms"});
  for (const auto& r : result.ranks) {
    for (const auto& [kind, us] : r.summary.busy_us) {
      const auto exposed = r.summary.exposed_us.find(kind);
      busy.add({fmt::format("{} {}", r.rank, kind), fmt::format("{:.3f}", us / 1e3),
                exposed == r.summary.exposed_us.end() ? "-" : fmt::format("{:.3f}", exposed->second / 1e3)});
    }
  }
  Table keys({"operation", "count", "total ms", "share", "in situ us", "spread", "lone us", "ratio"});
  for (const auto& k : result.keys) {
    const double alone = lone_us(k, lone);
    keys.add({shape(k.key), fmt::format("{}", k.sample.count), fmt::format("{:.3f}", k.total_us / 1e3),
              percent(k.total_us, result.kernel_us), fmt::format("{:.2f}", ns_to_us(k.situ_ns)),
              fmt::format("{:.1f} %", 100 * k.sample.spread), alone > 0 ? fmt::format("{:.2f}", alone) : "-",
              alone > 0 ? fmt::format("{:.3f}", ns_to_us(k.situ_ns) / alone) : "-"});
  }
  std::string out =
      fmt::format("{} of the kernel time belongs to operations of the model\n\n{}\n{}\n{}",
                  percent(result.attributed_us, result.kernel_us), ranks.text(), busy.text(), keys.text());
  out +=
      "in situ: median as traced (transfers and collectives: lower decile, the others wait for peers); lone: the same "
      "operation by itself, from the profiles\n";
  if (!result.profile.scalars.empty()) {
    Table scalars({"scalar", "value", "spread"});
    for (const auto& [name, s] : result.profile.scalars) {
      scalars.add({name, fmt::format("{:.4g}", s.value), fmt::format("{:.1f} %", 100 * s.spread)});
    }
    out += "\n" + scalars.text();
  }
  if (!result.unmapped.empty()) {
    Table unmapped({"not mapped", "count", "total us", "share"});
    for (const auto& u : result.unmapped) {
      unmapped.add({kernel_name(u.name), fmt::format("{}", u.count), fmt::format("{:.1f}", u.total_us),
                    percent(u.total_us, result.kernel_us)});
    }
    out += "\n" + unmapped.text();
  }
  for (const auto& note : result.notes) out += "note: " + note + "\n";
  return out;
}

std::string json(const Import& result, const profile::Profiles* lone) {
  Json out = {{"profile", result.profile.name},
              {"kernel_us", result.kernel_us},
              {"attributed_us", result.attributed_us},
              {"attributed", result.kernel_us > 0 ? result.attributed_us / result.kernel_us : 0}};
  Json& ranks = out["ranks"] = Json::array();
  for (const auto& r : result.ranks) {
    ranks.push_back(
        {{"file", r.file},
         {"rank", r.rank},
         {"pp_rank", r.pp_rank},
         {"trace_summary",
          {{"span_us", r.summary.span_us}, {"busy_us", r.summary.busy_us}, {"exposed_us", r.summary.exposed_us}}},
         {"duty", r.duty},
         {"passes", r.passes},
         {"kernel_us", r.kernel_us},
         {"attributed_us", r.attributed_us},
         {"transfer_us", r.p2p_us}});
  }
  Json& operations = out["operations"] = Json::array();
  for (const auto& k : result.keys) {
    Json row = {{"family", k.key.family},
                {"dims", k.key.dims},
                {"operation", k.op},
                {"count", k.sample.count},
                {"total_us", k.total_us},
                {"share", k.total_us / result.kernel_us},
                {"in_situ_us", ns_to_us(k.situ_ns)},
                {"spread", k.sample.spread},
                {"imported_us", ns_to_us(k.sample.ns)}};
    const double alone = lone_us(k, lone);
    row["lone_us"] = alone > 0 ? Json(alone) : Json();
    row["ratio"] = alone > 0 ? Json(ns_to_us(k.situ_ns) / alone) : Json();
    operations.push_back(std::move(row));
  }
  Json& scalars = out["scalars"] = Json::object();
  for (const auto& [name, s] : result.profile.scalars) {
    scalars[name] = {{"value", s.value}, {"spread", s.spread}, {"source", s.source}};
  }
  Json& unmapped = out["unmapped"] = Json::array();
  for (const auto& u : result.unmapped) {
    unmapped.push_back(
        {{"name", u.name}, {"count", u.count}, {"total_us", u.total_us}, {"share", u.total_us / result.kernel_us}});
  }
  out["notes"] = result.notes;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string kernel_list(const Trace& trace) {
  std::string out = "{\"names\": " + Json(trace.names).dump(-1, ' ', false, Json::error_handler_t::replace);
  out += ",\n \"rows\": [";
  for (std::size_t i = 0; i < trace.activities.size(); ++i) {
    const Activity& a = trace.activities[i];
    out += fmt::format("{}[{}, {}, {:.2f}, {:.2f}]", i ? ",\n  " : "\n  ", a.name, a.stream, ns_to_us(a.start),
                       ns_to_us(a.duration));
  }
  return out + "]}\n";
}

}  // namespace pipewright::traces
