// Published measurements of others as a profile: ai-dynamo/aiconfigurator's kernel tables and SimuMax's machine file.
// What each table is taken for, and why: docs/public-tables.md.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::tables {

struct Sources {
  std::string aiconfigurator;  ///< folder that aiconfigurator_csv.py wrote
  std::string simumax;         ///< its machine file of a B200; empty: none
};

/// A published time over what the profile would have said without it, over all shapes of a family that a table has.
struct Comparison {
  std::string family, table;
  std::size_t shapes = 0;
  double median = 1, low = 1, high = 1;  ///< the middle, the 5th and the 95th percentile
};

struct Result {
  profile::Profile profile;
  std::vector<Comparison> comparisons;
};

/// The profile of `gpu`: tables where they have something, the rest derived from `measured` by the data sheets. Throws
/// UsageError naming the file and line that is missing or wrong.
Result import_tables(const Sources& sources, const profile::Profile& measured, const profile::DataSheet& gpu);

/// The same from tables that stand in profiles already: their published products (of the first that tells) and
/// collectives (of the last), all else made anew from `measured`.
Result complete(const profile::Profile& measured, const profile::DataSheet& gpu,
                const std::vector<profile::Profile>& tables);

/// Only what a table holds.
profile::Profile published_only(const profile::Profile& profile);

std::string text(const Result& result);

}  // namespace pipewright::tables
