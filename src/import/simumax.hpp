// SimuMax's machine file of a B200 (configs/system/b200_bf16_ceperm.json): efficiencies by shape, as times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemm_tables.hpp"

namespace pipewright::tables {

class SimuMax {
 public:
  struct TimedProduct {
    Product shape;
    std::string layout;  ///< "TN", "NN", "NT"
    bool accumulates = false;
    double ns = 0;
  };
  explicit SimuMax(const std::string& file);
  const std::string& name() const { return name_; }
  const std::vector<TimedProduct>& products() const { return products_; }

 private:
  std::string name_;
  std::vector<TimedProduct> products_;
};

}  // namespace pipewright::tables
