// What follows from public tables: everything that they do not tell of a GPU, from what they tell and the data sheets.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/public_tables.hpp"

namespace pipewright::tables {

/// The relative error whose 90 % interval holds both of two figures.
double log_of_90_percent(double ratio);

/// Products of two tables of one GPU differ by this where both ran under full load (docs/public-tables.md).
inline constexpr double tables_differ_by = 1.15;

/// A profile that begins as the data sheets have it. Whoever fills the products and collectives of tables into it says
/// so in anchors_, spreads_ and full_load_; finish() does the rest.
class Completion {
 public:
  Completion(const profile::Profile& measured, const profile::DataSheet& gpu);

 protected:
  Result finish();
  double derived_ns(const std::string& family, const std::vector<std::int64_t>& dims) const;
  void compare(const std::string& family, const std::string& source, std::vector<double> ratios);
  bool blackwell() const { return gpu_.device.compute_capability >= 100; }

  /// What full load adds to a product, by precision, and who told.
  struct Told {
    double full = 1;
    std::string source;
  };

  const profile::Profile& measured_;
  const profile::DataSheet& gpu_;
  profile::Profile derived_;
  std::map<std::string, double> anchors_, spreads_;  ///< by family: published over derived; error class
  std::map<std::string, Told> full_load_;            ///< by precision of the clock law
  Result result_;

 private:
  using Factor = std::function<double(const profile::Sample&)>;
  void follow(const std::string& from, const std::string& to, double factor, const std::string& why, double spread);
  void follow(const std::string& from, const std::string& to, const Factor& factor,
              const std::function<std::string(double)>& why, double spread);
  void follow_dense(const std::string& from, const std::string& to, const std::string& alike, const std::string& plain);
  void mxfp8_beside_fp8();
  void under_load();
  void cublas_errors();
  void cublas_nvfp4_products();
  void grouped_and_casts();
  void maxima();
  void triton_products();
  void attention();
  void derived_errors();
  void clocks();
  void network_card();

  std::set<std::string> followed_;  ///< derived, with a table's own error
};

}  // namespace pipewright::tables
