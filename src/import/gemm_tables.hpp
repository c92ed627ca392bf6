// Matrix products of aiconfigurator: what a short run and a long run of the same shape took.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "pipewright/profile.hpp"

namespace pipewright::tables {

/// A linear layer: tokens, output features, input features.
using Product = std::array<std::int64_t, 3>;

struct Run {
  double ns = 0;
  double watts = 0, limit = 0;  ///< 0: not recorded
};
using Products = std::map<Product, Run>;

/// One of their collections: "gb200", "trtllm", "1.3.0rc20", "bfloat16". Shapes that fill no GPU are left out.
Products read_products(const std::string& folder, const std::string& system, const std::string& framework,
                       const std::string& version, const std::string& dtype);

/// How the clock falls under a product that is repeated for a second, from a short and a long run of every shape.
///
/// Short runs are a dozen launches: below a quarter of a millisecond each they are over before the power limit acts
/// (25 to 30 ms, FORMAT.md), above they meet it themselves. So long over short is flat and above 1 for the former, and
/// falls to 1 for the longest.
class Throttle {
 public:
  Throttle(const Products& short_runs, const Products& long_runs);
  /// Time of a product under full load over its time on a cool part.
  double full() const;
  /// A short run's time over that on a cool part.
  double within(double short_ns) const;
  /// The same of a part that nobody ran for long, beside this one.
  Throttle of(const profile::DataSheet::UnderLoad& kin, const std::string& precision) const;

 private:
  double full_ = 1, share_ = 1;      ///< share_: of what load adds by the table
  std::map<int, double> by_octave_;  ///< of the short run's time in us: long over short
};

}  // namespace pipewright::tables
