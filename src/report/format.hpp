// How numbers look in text: one place, so that every table writes them alike. ASCII only, widths as seen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::report {

std::size_t line_width();  ///< columns: 120, or what set_line_width() said

std::string ms(std::int64_t ns);                                        ///< "437.72"
std::string gibibytes(Bytes bytes);                                     ///< "29.32", for tables whose header says GiB
std::string percent(double fraction);                                   ///< "-1.4 %", always with its sign
std::string share(std::int64_t part, std::int64_t whole);               ///< "9.8 %"
std::string plural(std::int64_t count, std::string_view one);           ///< of 1 "run", else "runs"
std::string counted(std::int64_t count, std::string_view one);          ///< "1 run", "12345 batches"
std::string op_name(std::string_view kind, int microbatch, int chunk);  ///< "F 3.1"

/// Text broken at spaces to the line width; lines after the first begin with `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent = 2);

/// Bytes still free under the limit and its margin on this rank; negative: that much too many (where pressure was asked
/// for, after everything cached was given back).
Bytes spare(const predict::Prediction& prediction, const predict::RankPrediction& rank);

/// The rank with the least to spare.
const predict::RankPrediction& tightest_rank(const predict::Prediction& prediction);

/// "90 % interval 427.1 to 441.9" or why there is none.
std::string interval(const predict::Prediction& prediction);
/// "709.1 TFLOP/s/GPU, MFU 71.7 %"
std::string throughput(const predict::Prediction& prediction);

/// "fits: 4.13 GiB to spare on rank 0 ..." or "does not fit: ...".
std::string verdict(const predict::Prediction& prediction);

/// Everything that a step is lost to, in the order of the contract's `exposed_ms`.
struct Loss {
  const char* name;
  std::int64_t timeline::Account::*member;
};
extern const std::vector<Loss> exposed_causes;

/// Exposed time of a boundary in a phase (timeline::Phase), over all causes.
std::int64_t exposed_in(const timeline::Boundary& boundary, std::size_t phase);

/// Consecutive steps of the critical path with the same reason, added up, largest first.
struct CriticalShare {
  timeline::Why why = timeline::Why::compute;
  std::int64_t ns = 0;
  int steps = 0;
};
std::vector<CriticalShare> critical_shares(const predict::Prediction& prediction);

}  // namespace pipewright::report
