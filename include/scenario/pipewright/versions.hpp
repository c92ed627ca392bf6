// Versions of Megatron Core as an order, and sets of them as ranges of that order. What a version has (flags, fields,
// rules, modules) is said by ranges: a version added to versions.def is in every range that is open above it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright::scenario {

struct Software;

enum class Version : std::uint8_t {
#define PIPEWRIGHT_MEGATRON(version, name, kind, source, commit) version,
#include "pipewright/versions.def"
#undef PIPEWRIGHT_MEGATRON
};

enum class VersionKind : std::uint8_t { release, branch, pull_request };

struct VersionInfo {
  Version version;
  std::string_view name;  ///< "0.19", "main"
  VersionKind kind;
  std::string_view source;  ///< "core_r0.19.0", "pull request 4268": for citations
  std::string_view commit;  ///< of Megatron-LM, that was read
};
std::span<const VersionInfo> versions();  ///< oldest first
const VersionInfo& info(Version version);

/// A set of versions.
class Versions {
 public:
  constexpr Versions() = default;
  constexpr Versions(Version only) : bits_(1U << static_cast<unsigned>(only)) {}
  /// From `first` to `last`, both included.
  constexpr Versions(Version first, Version last)
      : bits_((2U << static_cast<unsigned>(last)) - (1U << static_cast<unsigned>(first))) {}
  constexpr bool has(Version version) const { return (bits_ >> static_cast<unsigned>(version) & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Versions except(Versions others) const { return Versions(bits_ & ~others.bits_); }
  friend constexpr Versions operator|(Versions a, Versions b) { return Versions(a.bits_ | b.bits_); }
  friend constexpr bool operator==(Versions, Versions) = default;

 private:
  constexpr explicit Versions(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};
constexpr Versions operator|(Version a, Version b) { return Versions(a) | Versions(b); }

inline constexpr Version newest = Version::main;
constexpr Versions from(Version first) { return {first, newest}; }
constexpr Versions up_to(Version last) { return {Version{}, last}; }
constexpr Versions all_versions = from(Version{});

/// "0.18.2" -> v0_18, "main" -> main; none for what is no version.
std::optional<Version> parse_version(std::string_view text);
/// The one place where software.megatron_core is read; what is no version counts as the newest release.
Version core_version(const Software& software);

/// Transformer Engine: releases in their order, then "main", then pull request 3128, which stands on main.
struct TeVersion {
  int major = 0, minor = 0;     ///< of a release; beyond all of them for the others
  bool per_op_offload = false;  ///< pull request 3128: ops read the mark fine_grained_activation_offloading
  constexpr bool at_least(int first_major, int first_minor) const {
    return major != first_major ? major > first_major : minor >= first_minor;
  }
};
/// "2.20.2", "2.20.0+cu13", "main", "pr-3128"; none for what is no version.
std::optional<TeVersion> parse_te_version(std::string_view text);
/// The one place where software.transformer_engine is read; what is no version counts as main.
TeVersion te_version(const Software& software);
/// Not stated: the newest.
bool bridge_at_least(const Software& software, int major, int minor);
/// cuDNN: as stated, or that of the NeMo container of a Megatron Bridge release.
struct CudnnVersion {
  int major = 0, minor = 0;
  friend constexpr auto operator<=>(const CudnnVersion&, const CudnnVersion&) = default;
};
std::optional<CudnnVersion> cudnn_version(const Software& software);
/// Whether the text is a number of a release: up to four numbers with dots, then what a build adds.
bool is_release_number(std::string_view text);

/// As a scenario states them, releases first: {"0.18.0", "0.19.0", "pr-4268", "main"}.
std::vector<std::string> stated_names(Versions versions);
/// For sentences, pull requests last: "0.18, 0.19, main, pr-4268"; `ranges`: releases in a row as "0.18-0.19".
std::string in_words(Versions versions, bool ranges);

}  // namespace pipewright::scenario
