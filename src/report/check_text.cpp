// `check`: what is wrong, what does nothing, what bites; each with its fix and its source.
#include <fmt/format.h>

#include "format.hpp"
#include "pipewright/report.hpp"
#include "to_json.hpp"

namespace pipewright::report {

std::string check_text(const std::vector<plan::Finding>& findings) {
  if (findings.empty()) return "no findings\n";
  std::string out;
  for (const auto& f : findings) {
    out += wrapped(fmt::format("{} {}: {}", plan::name(f.severity), f.rule, f.message)) + "\n";
    if (!f.settings.empty()) out += wrapped(fmt::format("  settings: {}", fmt::join(f.settings, ", ")), 4) + "\n";
    if (!f.fix.empty()) out += wrapped("  fix: " + f.fix, 4) + "\n";
    if (!f.source.empty()) out += wrapped("  source: " + f.source, 4) + "\n";
  }
  return out;
}

std::string check_json(const std::vector<plan::Finding>& findings, const Stamp* stamp) {
  Json list = Json::array();
  for (const auto& f : findings) {
    list.push_back({{"rule", f.rule},
                    {"severity", plan::name(f.severity)},
                    {"settings", f.settings},
                    {"message", f.message},
                    {"fix", f.fix},
                    {"source", f.source}});
  }
  return dumped({{"findings", list}}, stamp);
}

}  // namespace pipewright::report
