// Statistics of repeated measurements of one kernel.
#pragma once

#include <vector>

namespace pipewright::capture {

struct Summary {
  double median = 0;
  double spread = 0;  ///< half the distance between the 16th and 84th percentile, over the median
  int count = 0;
};

/// Percentiles are linear between order statistics. Empty samples give zeros.
Summary summarize(std::vector<double> samples);

/// Stopping criterion of nvbench's cold measurement: the standard error of the mean, relative to the mean, is at most
/// `noise`, judged on at least `least` samples.
bool enough(const std::vector<double>& samples, int least, double noise);

}  // namespace pipewright::capture
