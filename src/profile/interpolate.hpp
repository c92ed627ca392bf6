// The time of a shape that was not measured, from those that were. See interpolate.cpp for the method.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::profile {

/// How a key met the samples of a profile, from strong to weak.
enum class Match : std::uint8_t { exact, inside, outside, formula };

struct Estimate {
  double ns = 0;
  Match match = Match::exact;
  double octaves_outside = 0;  ///< Match::outside: how far from what was measured, in factors of two
  std::vector<const Sample*> from;
};

/// nullopt: there is no sample (of the same number of ranks, of rows aligned alike).
std::optional<Estimate> estimate(const Family& family, const std::vector<Sample>& samples,
                                 const std::vector<std::int64_t>& dims);

// Where nothing tested an estimate (too few samples, a formula), no better is claimed: relative, one deviation.
constexpr double untested_error = 0.1;

struct Found {
  Timing timing;
  Match match;
  double octaves_outside = 0;  ///< of an extrapolation
};

/// What a profile knows about a key; nullopt: nothing at all.
std::optional<Found> lookup(const Profile& profile, const Key& key);

/// A collective or a transfer whose number of ranks or whose link was not measured (links.cpp).
std::optional<Found> derive_network(const Profile& profile, const Key& key);

}  // namespace pipewright::profile
