// What the host spends between launches, read from the launch records of a trace.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "match.hpp"

namespace pipewright::traces {

/// By what a profiler slows the host that it records.
class ProfilerCost {
 public:
  /// `stated`: of all that the host does (--host-overhead). Without it: 1.25 where operators are recorded (a step bound
  /// by the host took 438.1 ms traced, 349.7 untraced), 1.1 by CUDA's records alone (858 ms for 847, 1295 for 1189,
  /// 1495 for 1459, 1957 for 1537, H200, 2026-11-29). More of it in backward passes: docs/hosts.md, "Both directions".
  ProfilerCost(std::optional<double> stated, bool operators)
      : mean(stated.value_or(operators ? 1.25 : 1.1)), operators_(operators) {}
  double of(const std::string& direction) const;
  const double mean;

 private:
  bool operators_;
};

/// Host intervals of several ranks, in us as traced.
class HostCosts {
 public:
  void add(const Trace& trace, const Mapping& mapping);
  /// The scalars host.*_us: medians over the instances of an operation, means over the operations of a family in a
  /// layer. Host times are divided by what the profiler cost.
  std::map<std::string, profile::Scalar> scalars(const ProfilerCost& profiler, const std::string& source) const;
  /// How much longer these hosts took for the operations of a dense layer than the reference that a profile's costs are
  /// stated for: the geometric mean over operations of their mean times (a shared core is slow in stretches, which a
  /// median does not see), forward and backward alike. Other operations differ by more than the host (experts, what
  /// overlaps). nullopt: too few of them.
  std::optional<double> pace(const profile::Profiles& reference, const ProfilerCost& profiler) const;

 private:
  struct Position;
  static void add_launches(Position& position, const Trace& trace, const Mapped& operation);
  struct Sum {
    std::string direction;
    double us = 0, deviation = 0, each = 0;
    int positions = 0;
    void add(const Position& position, double less = 0);
  };
  std::map<std::string, Sum> families(std::map<std::string, Sum>& nodes) const;

  struct Position {
    std::string direction, operation;  ///< "forward", "gemm.bf16.tn"
    bool enters_node = false;          ///< the host has left another node of expert-parallel overlap before
    std::vector<double> us;
    std::vector<double> each;  ///< of an operation of many launches: between two of them
    int launches = 0;
  };

  std::map<std::pair<std::string, std::size_t>, Position> positions_;  ///< by pattern and position in it
  /// From a transfer's launch to the first operation after it, and from the last one to a transfer's launch.
  std::map<std::string, std::vector<double>> begin_, end_;  ///< by direction
  std::map<std::string, std::string> first_operation_;      ///< by direction
  std::vector<double> transfer_us_, gap_us_;
};

}  // namespace pipewright::traces
