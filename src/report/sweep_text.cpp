// `sweep`: one row a combination, illegal ones with the rule that refuses them, others with what is not modelled.
#include <fmt/format.h>

#include <deque>

#include "format.hpp"
#include "json_value.hpp"
#include "pipewright/report.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

std::string reason(const plan::Row& row) { return row.rule.empty() ? row.reason : row.rule + ": " + row.reason; }

const timeline::Account& last(const predict::Prediction& p) {
  return p.ranks.at(static_cast<std::size_t>(p.last_rank)).account;
}

/// A field of a CSV line, quoted where it must be (RFC 4180).
std::string csv(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::vector<std::string> names(const plan::Sweep& sweep) {
  std::vector<std::string> out;
  if (!sweep.rows.empty()) {
    for (const auto& [name, value] : sweep.rows.front().settings) out.push_back(name);
  }
  return out;
}

}  // namespace

std::string sweep_text(const plan::Sweep& sweep) {
  auto header = names(sweep);
  header.insert(header.end(), {"step ms", "to given", "p2p", "tp", "bubble", "peak GiB", "reserved", "fits"});
  Table table(header);
  std::string illegal, not_modelled;
  for (const auto& row : sweep.rows) {
    std::vector<std::string> cells;
    for (const auto& [name, value] : row.settings) cells.push_back(value);
    if (row.prediction) {
      const auto& p = *row.prediction;
      cells.insert(cells.end(), {ms(p.step_ns), sweep.baseline ? percent(row.relative) : "-", ms(last(p).p2p),
                                 ms(last(p).tp), ms(last(p).bubble), gibibytes(p.most_allocated()),
                                 gibibytes(p.most_reserved()), p.fits ? "yes" : "no"});
    } else {
      (row.legal ? not_modelled : illegal) +=
          wrapped(fmt::format("- {}: {}", fmt::join(cells, " "), row.legal ? row.reason : reason(row))) + "\n";
      cells.insert(cells.end(), {"-", "-", "-", "-", "-", "-", "-", row.legal ? "not modelled" : "illegal"});
    }
    table.add(std::move(cells));
  }
  std::string out = table.text();
  if (sweep.baseline) out += fmt::format("as given: {} ms\n", ms(sweep.baseline->step_ns));
  for (const auto& note : sweep.notes) out += wrapped("note: " + note) + "\n";
  if (!illegal.empty()) out += "\nIllegal\n" + illegal;
  if (!not_modelled.empty()) out += "\nNot modelled\n" + not_modelled;
  return out;
}

std::string sweep_json(const plan::Sweep& sweep, const Stamp* stamp, const std::optional<plan::Part>& part) {
  Json rows = Json::array();
  for (const auto& row : sweep.rows) {
    Json json = {{"settings", settings_json(row.settings)}, {"legal", row.legal}, {"reason", reason(row)}};
    if (row.prediction) {
      const auto& p = *row.prediction;
      json["step_time_ms"] = ns_to_ms(p.step_ns);
      json["relative"] = rounded(row.relative, 6);
      json["peak_allocated_bytes"] = p.most_allocated().value;
      json["peak_reserved_bytes"] = p.most_reserved().value;
      json["fits"] = p.fits;
      json["exposed_ms"] = exposed_json(last(p));
    } else {
      for (const char* key :
           {"step_time_ms", "relative", "peak_allocated_bytes", "peak_reserved_bytes", "fits", "exposed_ms"}) {
        json[key] = nullptr;
      }
    }
    rows.push_back(std::move(json));
  }
  Json body = {{"rows", rows}, {"notes", sweep.notes}};
  if (part) body["part"] = {{"number", part->first + 1}, {"of", part->of}, {"combinations", sweep.combinations}};
  return dumped(body, stamp);
}

namespace {

/// Puts a part's rows at their places; `whole` is what all parts must share.
void place(const std::string& file, Json& json, std::size_t parts, Json& whole, std::vector<const Json*>& rows) {
  const auto refuse = [&](const std::string& why) { throw UsageError({file, 0}, {}, why); };
  if (!json.contains("rows") || !json.contains("part"))
    refuse("no part of a sweep: sweep --part K/N --json writes them");
  const std::size_t number = json.at("part").at("number"), of = json.at("part").at("of"),
                    all = json.at("part").at("combinations");
  if (of != parts || number < 1 || number > of)
    refuse(fmt::format("is part {} of {}, given are {}", number, of, parts));
  const std::size_t expected = number > all ? 0 : (all - number) / of + 1;
  Json& own = json.at("rows");
  if (own.size() != expected) refuse(fmt::format("has {} of its {} rows: it was interrupted", own.size(), expected));
  Json rest = json;
  rest.erase("rows"), rest["part"].erase("number");
  if (whole.is_null()) whole = rest, rows.resize(all);
  if (rest != whole) refuse("is of another sweep than the first file: scenario, values or version differ");
  for (std::size_t i = 0; i < expected; ++i) {
    const Json*& row = rows.at(number - 1 + i * of);
    if (row != nullptr) refuse(fmt::format("part {} is given twice", number));
    row = &own.at(i);
  }
}

}  // namespace

std::string merged_sweeps(const std::vector<std::pair<std::string, std::string>>& files) {
  Json whole;
  std::vector<const Json*> rows;
  std::deque<Json> parts;  // rows point into them
  for (const auto& [name, text] : files) {
    try {
      place(name, parts.emplace_back(Json::parse(text)), files.size(), whole, rows);
    } catch (const Json::exception&) {
      throw UsageError({name, 0}, {}, "no part of a sweep: sweep --part K/N --json writes them");
    }
  }
  Json list = Json::array(), out = Json::object();
  for (const Json* row : rows) list.push_back(*row);
  for (const auto& [key, value] : whole.items()) {
    if (key == "part") continue;
    if (key == "notes") out["rows"] = list;  // where they stand in a sweep's own
    out[key] = value;
  }
  return dumped(out);
}

std::string sweep_csv(const plan::Sweep& sweep) {
  std::string out;
  for (const auto& name : names(sweep)) out += csv(name) + ",";
  out += "legal,reason,step_time_ms,relative,peak_allocated_bytes,peak_reserved_bytes,fits";
  for (const auto& cause : exposed_causes) out += fmt::format(",exposed_{}_ms", cause.name);
  out += "\n";
  for (const auto& row : sweep.rows) {
    for (const auto& [name, value] : row.settings) out += csv(value) + ",";
    out += fmt::format("{},{}", row.legal, csv(reason(row)));
    if (row.prediction) {
      const auto& p = *row.prediction;
      out += fmt::format(",{:.6f},{:.6f},{},{},{}", ns_to_ms(p.step_ns), row.relative, p.most_allocated().value,
                         p.most_reserved().value, p.fits);
      for (const auto& cause : exposed_causes) out += fmt::format(",{:.6f}", ns_to_ms(last(p).*cause.member));
    } else {
      out += std::string(5 + exposed_causes.size(), ',');
    }
    out += "\n";
  }
  return out;
}

}  // namespace pipewright::report
