// The table of versions, and versions as text: read once, printed at the edges.
#include "pipewright/versions.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>

#include "pipewright/regex.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {
namespace {

constexpr VersionInfo table_of_versions[] = {
#define PIPEWRIGHT_MEGATRON(version, name, kind, source, commit) \
  {Version::version, name, VersionKind::kind, source, commit},
#include "pipewright/versions.def"
#undef PIPEWRIGHT_MEGATRON
};
static_assert(std::size(table_of_versions) == static_cast<std::size_t>(newest) + 1, "newest names the last row");

/// ".2": a patch number of up to three digits.
bool is_patch(std::string_view rest) {
  return rest.size() >= 2 && rest.size() <= 4 && rest[0] == '.' &&
         std::ranges::all_of(rest.substr(1), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::span<const VersionInfo> versions() { return table_of_versions; }

const VersionInfo& info(Version version) { return table_of_versions[static_cast<std::size_t>(version)]; }

std::optional<Version> parse_version(std::string_view text) {
  for (const auto& row : table_of_versions) {
    if (!text.starts_with(row.name)) continue;
    const auto rest = text.substr(row.name.size());
    if (rest.empty() || (row.kind == VersionKind::release && is_patch(rest))) return row.version;
  }
  return std::nullopt;
}

Version core_version(const Software& software) {
  if (const auto known = parse_version(software.megatron_core)) return *known;
  const auto release = std::ranges::find(std::rbegin(table_of_versions), std::rend(table_of_versions),
                                         VersionKind::release, &VersionInfo::kind);
  return release->version;
}

bool is_release_number(std::string_view text) {
  static const Regex number("^[0-9]{1,4}(\\.[0-9]{1,4}){0,3}[-+._a-zA-Z0-9]{0,40}$");
  return text.size() <= 60 && number.found_in(text);
}

std::optional<TeVersion> parse_te_version(std::string_view text) {
  TeVersion version{INT_MAX, INT_MAX, text == "pr-3128"};
  if (version.per_op_offload || text == "main") return version;
  if (!is_release_number(text)) return std::nullopt;
  version.minor = 0;
  const char* end = text.data() + text.size();
  const auto dot = std::from_chars(text.data(), end, version.major).ptr;
  if (dot != end && *dot == '.') std::from_chars(dot + 1, end, version.minor);
  return version;
}

TeVersion te_version(const Software& software) {
  return parse_te_version(software.transformer_engine).value_or(TeVersion{INT_MAX, INT_MAX, false});
}

bool bridge_at_least(const Software& software, int major, int minor) {
  if (!software.megatron_bridge) return true;
  const auto bridge = parse_te_version(*software.megatron_bridge);  // numbered alike
  return !bridge || std::pair(bridge->major, bridge->minor) >= std::pair(major, minor);
}

namespace {

/// Megatron Bridge, docs/releases/software-versions.md (067f987df): NeMo containers and what stands in them.
struct Container {
  int bridge_minor;
  CudnnVersion cudnn;
};
constexpr Container containers[] = {{1, {9, 11}}, {2, {9, 13}}, {3, {9, 18}}, {4, {9, 20}}, {5, {9, 21}}};

}  // namespace

std::optional<CudnnVersion> cudnn_version(const Software& software) {
  const auto numbers = [](const std::optional<std::string>& text) -> std::optional<CudnnVersion> {
    if (!text || *text == "main" || !is_release_number(*text)) return std::nullopt;
    const auto release = parse_te_version(*text);
    return CudnnVersion{release->major, release->minor};
  };
  if (software.cudnn) return numbers(software.cudnn);
  const auto bridge = numbers(software.megatron_bridge);
  const auto* found =
      std::ranges::find(containers, bridge && bridge->major == 0 ? bridge->minor : -1, &Container::bridge_minor);
  return found == std::end(containers) ? std::nullopt : std::optional(found->cudnn);
}

std::vector<std::string> stated_names(Versions versions) {
  std::vector<std::string> names;
  for (const bool released : {true, false})
    for (const auto& row : table_of_versions)
      if (versions.has(row.version) && (row.kind == VersionKind::release) == released)
        names.push_back(std::string(row.name) + (released ? ".0" : ""));
  return names;
}

std::string in_words(Versions versions, bool ranges) {
  std::string list;
  for (const auto kind : {VersionKind::release, VersionKind::branch, VersionKind::pull_request}) {
    std::string_view begun, last;  // of releases in a row
    const auto end_row = [&] {
      if (last != begun) list += "-" + std::string(last);
      begun = last = {};
    };
    for (const auto& row : table_of_versions) {
      if (row.kind != kind) continue;
      if (!versions.has(row.version)) {
        end_row();
      } else if (ranges && kind == VersionKind::release && !begun.empty()) {
        last = row.name;
      } else {
        list += (list.empty() ? "" : ", ") + std::string(row.name);
        begun = last = row.name;
      }
    }
    end_row();
  }
  return list;
}

}  // namespace pipewright::scenario
