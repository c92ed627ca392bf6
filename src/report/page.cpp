// Puts a page together: head and body of page/page.html, the styles and scripts beside it (embedded at build time), the
// results and columns as one packed block.
#include "pipewright/page.hpp"

#include <fmt/format.h>

#include <map>

#include "format.hpp"
#include "page_run.hpp"
#include "page_sources.hpp"

namespace pipewright::report {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string dumped_line(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The text with every {{name}} replaced; what is put in is not searched again.
std::string filled(std::string_view text, const std::map<std::string_view, std::string>& values) {
  std::string out;
  for (;;) {
    const auto from = text.find("{{"), to = text.find("}}", from);
    if (from == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, from)).append(values.at(text.substr(from + 2, to - from - 2)));
    text.remove_prefix(to + 2);
  }
}

}  // namespace

std::string html(const Page& page) {
  Pack pack;
  std::string runs;
  for (std::size_t i = 0; i < page.runs.size(); ++i) {
    const auto& shown = page.runs[i];
    const std::string prefix = fmt::format("R{}.", i);
    Json run = {{"title", shown.title},
                {"verdict", verdict(*shown.prediction)},
                {"limit_bytes", shown.prediction->memory_limit.value},
                {"margin_bytes", shown.prediction->memory_margin.value},
                {"last_rank", shown.prediction->last_rank}};
    Json outside = Json::array();
    for (const auto& rank : shown.prediction->ranks) outside.push_back(rank.outside_allocator.value);
    run["outside_bytes"] = outside;
    Json sources = Json::array();
    for (const auto& [family, source] : shown.prediction->time_sources) sources.push_back({family, source});
    run["time_sources"] = sources;
    run["timeline"] = timeline_columns(*shown.prediction, *shown.run, prefix, pack);
    if (!shown.memory.empty()) run["memory"] = memory_columns(shown, prefix, pack);
    runs += (i == 0 ? "" : ",") + dumped_line(run);
  }
  for (const auto& traced : page.traced) {
    const std::string prefix = fmt::format("T{}.", runs.size());
    const Json run = {{"title", traced.title}, {"traced", true}, {"timeline", traced_columns(traced, prefix, pack)}};
    runs += (runs.empty() ? "" : ",") + dumped_line(run);
  }
  std::string json =
      fmt::format("\"kind\":{},\"title\":{},\"results\":{{", dumped_line(page.kind), dumped_line(page.title));
  for (std::size_t i = 0; i < page.results.size(); ++i)
    json += fmt::format("{}{}:{}", i == 0 ? "" : ",", dumped_line(page.results[i].first), page.results[i].second);
  json += fmt::format("}},\"extra\":{},\"runs\":[{}]", page.extra.empty() ? "{}" : page.extra, runs);
  return filled(page_html, {{"title", escaped(page.title)},
                            {"style", std::string(page_style)},
                            {"pack", pack.base64(json)},
                            {"script", std::string(page_script)}});
}

}  // namespace pipewright::report
