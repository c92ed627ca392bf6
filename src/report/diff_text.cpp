// `diff`: everything is computed once, as JSON; text and page read that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "format.hpp"
#include "pipewright/diff.hpp"
#include "pipewright/scenario/fields.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

/// Of the rank that finishes last; the causes add up to the step.
struct Times {
  double step_ms = 0;
  std::vector<std::pair<std::string, double>> causes;
};

Times times_of(const Json& prediction) {
  Times out{prediction.at("step_time_ms"), {}};
  const Json* last = &prediction.at("ranks").at(0);
  for (const auto& rank : prediction.at("ranks"))
    if (rank.at("forward_backward_ms") > last->at("forward_backward_ms")) last = &rank;
  const double recompute = prediction.at("recompute_ms");
  out.causes.emplace_back("compute", last->at("busy_ms").get<double>() - recompute);
  out.causes.emplace_back("recompute", recompute);
  for (const auto& cause : exposed_causes)
    out.causes.emplace_back(std::string("exposed ") + cause.name, last->at("exposed_ms").at(cause.name));
  out.causes.emplace_back("bubble", last->at("bubble_ms"));
  out.causes.emplace_back("idle", last->at("idle_ms"));
  return out;
}

Json row(const std::string& name, double a, double b) {
  return {{"cause", name}, {"a_ms", rounded(a, 6)}, {"b_ms", rounded(b, 6)}, {"difference_ms", rounded(b - a, 6)}};
}

Json pair_of(double a, double b) {
  return {{"a", rounded(a, 6)}, {"b", rounded(b, 6)}, {"difference", rounded(b - a, 6)}};
}

/// Fields and variables; a value that is not there is null.
Json settings(const scenario::Scenario& a, const scenario::Scenario& b) {
  Json out = Json::array();
  const auto value = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  for (const auto& field : scenario::fields()) {
    if (field.section == "search" || field.section == "measured" || field.section == "environment") continue;
    std::string one, other;
    try {
      one = scenario::get(a, field.name), other = scenario::get(b, field.name);
    } catch (const std::exception&) {
      continue;  // not a single value
    }
    if (one != other) out.push_back({{"name", field.name}, {"a", value(one)}, {"b", value(other)}});
  }
  std::map<std::string, std::pair<Json, Json>> variables;
  for (const auto& [name, text] : a.environment) variables[name].first = text;
  for (const auto& [name, text] : b.environment) variables[name].second = text;
  for (const auto& [name, both] : variables)
    if (both.first != both.second) out.push_back({{"name", name}, {"a", both.first}, {"b", both.second}});
  return out;
}

/// Every rank's peaks, and the owners of the rank whose peak differs most.
void add_memory(Json& out, const Json& a, const Json& b) {
  Json ranks = Json::array();
  std::size_t widest = 0;
  std::int64_t most = -1;
  const std::size_t both = std::min(a.at("ranks").size(), b.at("ranks").size());
  for (std::size_t r = 0; r < both; ++r) {
    const auto &one = a.at("ranks").at(r), &other = b.at("ranks").at(r);
    Json entry = {{"pp_rank", r}};
    for (const char* what : {"peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes"})
      entry[what] = {{"a", one.at(what)}, {"b", other.at(what)}};
    ranks.push_back(entry);
    const auto by = std::abs(other.at("peak_allocated_bytes").get<std::int64_t>() -
                             one.at("peak_allocated_bytes").get<std::int64_t>());
    if (by > most) most = by, widest = r;
  }
  out["ranks"] = ranks;
  if (both == 0) return;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> owners;
  for (const auto& owner : a.at("ranks").at(widest).at("peak_owners"))
    owners[owner.at("owner")].first = owner.at("bytes");
  for (const auto& owner : b.at("ranks").at(widest).at("peak_owners"))
    owners[owner.at("owner")].second = owner.at("bytes");
  std::vector<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>> sorted(owners.begin(), owners.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& x, const auto& y) {
    return std::abs(x.second.second - x.second.first) > std::abs(y.second.second - y.second.first);
  });
  Json list = Json::array();
  for (const auto& [name, bytes] : sorted)
    list.push_back({{"owner", name},
                    {"a_bytes", bytes.first},
                    {"b_bytes", bytes.second},
                    {"difference_bytes", bytes.second - bytes.first}});
  out["owners"] = {{"pp_rank", widest},
                   {"at_a", a.at("ranks").at(widest).at("peak_at")},
                   {"at_b", b.at("ranks").at(widest).at("peak_at")},
                   {"bytes", list}};
}

constexpr const char* traced_kinds[] = {"comp", "p2p", "ep", "coll", "d2h", "h2d"};

/// What a profiler would show of the prediction beside what one showed.
void add_traced(Json& out, const Json& prediction, const std::map<int, scenario::TraceSummary>& traced,
                bool trace_is_b) {
  Json list = Json::array();
  const auto in_order = [&](double predicted, double measured) {
    return trace_is_b ? pair_of(predicted, measured) : pair_of(measured, predicted);
  };
  for (const auto& [rank, summary] : traced) {
    if (rank < 0 || rank >= static_cast<int>(prediction.at("ranks").size()))
      throw UsageError(
          fmt::format("the trace is of pipeline rank {}, the prediction has {}", rank, prediction.at("ranks").size()));
    const auto& shown = prediction.at("ranks").at(static_cast<std::size_t>(rank)).at("as_traced");
    Json entry = {{"pp_rank", rank},
                  {"step_ms", in_order(prediction.at("step_time_ms"), summary.span_us / 1e3)},
                  {"busy_ms", Json::object()},
                  {"exposed_ms", Json::object()}};
    const auto of = [](const std::map<std::string, double>& values, const char* kind) {
      const auto found = values.find(kind);
      return found == values.end() ? 0.0 : found->second / 1e3;
    };
    for (const char* kind : traced_kinds) {
      const double predicted = shown.at("busy_ms").value(kind, 0.0), measured = of(summary.busy_us, kind);
      if (predicted > 0 || measured > 0) entry["busy_ms"][kind] = in_order(predicted, measured);
      if (!shown.at("exposed_ms").contains(kind)) continue;
      const double open = shown.at("exposed_ms").value(kind, 0.0), seen = of(summary.exposed_us, kind);
      if (open > 0 || seen > 0) entry["exposed_ms"][kind] = in_order(open, seen);
    }
    list.push_back(entry);
  }
  out["traced"] = list;
}

}  // namespace

std::string diff_json(const DiffSide& a, const DiffSide& b) {
  if (a.prediction.empty() && b.prediction.empty()) throw UsageError("two traces: one side must be a prediction");
  Json out = {{"a", {{"name", a.name}, {"is", a.prediction.empty() ? "trace" : "prediction"}}},
              {"b", {{"name", b.name}, {"is", b.prediction.empty() ? "trace" : "prediction"}}}};
  if (a.scenario != nullptr && b.scenario != nullptr) out["settings"] = settings(*a.scenario, *b.scenario);
  if (a.prediction.empty() || b.prediction.empty()) {
    const bool trace_is_b = b.prediction.empty();
    add_traced(out, Json::parse(trace_is_b ? a.prediction : b.prediction), trace_is_b ? b.traced : a.traced,
               trace_is_b);
    return dumped(out);
  }
  const Json one = Json::parse(a.prediction), other = Json::parse(b.prediction);
  const Times from = times_of(one), to = times_of(other);
  out["step_ms"] = pair_of(from.step_ms, to.step_ms);
  out["relative"] = rounded(to.step_ms / from.step_ms - 1, 6);
  out["tflops_per_gpu"] = pair_of(one.at("tflops_per_gpu"), other.at("tflops_per_gpu"));
  out["tokens_per_s_per_gpu"] = pair_of(one.at("tokens_per_s_per_gpu"), other.at("tokens_per_s_per_gpu"));
  out["fits"] = {{"a", one.at("fits")}, {"b", other.at("fits")}};
  Json time = Json::array();
  for (std::size_t i = 0; i < from.causes.size(); ++i)
    time.push_back(row(from.causes[i].first, from.causes[i].second, to.causes[i].second));
  out["time"] = time;
  add_memory(out, one, other);
  return dumped(out);
}

namespace {

std::string number(const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }
std::string change(double value) { return fmt::format("{:+.2f}", value == 0 ? 0.0 : value); }
std::string gib_text(const Json& bytes) { return gibibytes(Bytes(bytes.get<std::int64_t>())); }
std::string plain(const Json& value) { return value.is_null() ? "(unset)" : value.get<std::string>(); }

std::string traced_text(const Json& diff) {
  Table table({"rank", "kind", "busy ms A", "B", "B - A", "exposed ms A", "B", "B - A"});
  std::string steps;
  for (const auto& rank : diff.at("traced")) {
    steps += fmt::format("rank {}: {} ms in A, {} in B ({})\n", rank.at("pp_rank").get<int>(),
                         number(rank.at("step_ms").at("a")), number(rank.at("step_ms").at("b")),
                         change(rank.at("step_ms").at("difference")));
    for (const auto& [kind, busy] : rank.at("busy_ms").items()) {
      const auto exposed = rank.at("exposed_ms").find(kind);
      const bool has = exposed != rank.at("exposed_ms").end();
      table.add({fmt::format("{}", rank.at("pp_rank").get<int>()), kind, number(busy.at("a")), number(busy.at("b")),
                 change(busy.at("difference")), has ? number(exposed->at("a")) : "",
                 has ? number(exposed->at("b")) : "", has ? change(exposed->at("difference")) : ""});
    }
  }
  return steps + "\nAs a profiler shows it (exposed: no compute kernel runs)\n" + table.text();
}

}  // namespace

std::string diff_text(const std::string& json) {
  const Json diff = Json::parse(json);
  std::string out = fmt::format("A: {} ({})\nB: {} ({})\n", diff.at("a").at("name").get<std::string>(),
                                diff.at("a").at("is").get<std::string>(), diff.at("b").at("name").get<std::string>(),
                                diff.at("b").at("is").get<std::string>());
  if (diff.contains("step_ms")) {
    const auto& step = diff.at("step_ms");
    out += fmt::format("step {} ms in A, {} in B: {} ms, {}\n", number(step.at("a")), number(step.at("b")),
                       change(step.at("difference")), percent(diff.at("relative")));
    for (const char* side : {"a", "b"})
      if (!diff.at("fits").at(side).get<bool>()) out += fmt::format("{} does not fit\n", side[0] == 'a' ? 'A' : 'B');
  } else {
    out += traced_text(diff);
  }
  if (diff.contains("settings")) {
    Table table({"setting", "A", "B"});
    for (const auto& entry : diff.at("settings"))
      table.add({entry.at("name").get<std::string>(), plain(entry.at("a")), plain(entry.at("b"))});
    out += diff.at("settings").empty() ? "\nSettings\n  the same\n" : "\nSettings\n" + table.text();
  }
  if (!diff.contains("time")) return out;
  Table time({"ms of the rank that finishes last", "A", "B", "B - A"});
  for (const auto& entry : diff.at("time"))
    if (entry.at("a_ms") != 0.0 || entry.at("b_ms") != 0.0)
      time.add({entry.at("cause").get<std::string>(), number(entry.at("a_ms")), number(entry.at("b_ms")),
                change(entry.at("difference_ms"))});
  out += "\nTime by cause\n" + time.text();
  Table memory({"rank", "allocated A", "B", "B - A", "reserved A", "B", "B - A"});
  const auto by = [](const Json& both) {
    return change(gib(Bytes(both.at("b").get<std::int64_t>() - both.at("a").get<std::int64_t>())));
  };
  for (const auto& rank : diff.at("ranks")) {
    const auto &allocated = rank.at("peak_allocated_bytes"), &reserved = rank.at("peak_reserved_bytes");
    memory.add({fmt::format("{}", rank.at("pp_rank").get<int>()), gib_text(allocated.at("a")),
                gib_text(allocated.at("b")), by(allocated), gib_text(reserved.at("a")), gib_text(reserved.at("b")),
                by(reserved)});
  }
  out += "\nMemory, GiB\n" + memory.text();
  if (!diff.contains("owners")) return out;
  const auto& owners = diff.at("owners");
  Table table({fmt::format("GiB at the peak of rank {}", owners.at("pp_rank").get<int>()), "A", "B", "B - A"});
  constexpr std::size_t most = 12;
  std::size_t shown = 0, more = 0;
  for (const auto& owner : owners.at("bytes")) {
    if (owner.at("difference_bytes") == 0) continue;
    if (++shown > most) {
      ++more;
      continue;
    }
    table.add({owner.at("owner").get<std::string>(), gib_text(owner.at("a_bytes")), gib_text(owner.at("b_bytes")),
               change(gib(Bytes(owner.at("difference_bytes").get<std::int64_t>())))});
  }
  if (shown > 0) out += "\nMemory by owner\n" + table.text();
  if (more > 0) out += fmt::format("and {} owners with smaller differences (--json has all)\n", more);
  return out;
}

}  // namespace pipewright::report
