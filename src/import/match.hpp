// Which operation of the model each kernel of a trace belongs to.
//
//   trace      R m G C r r C s m A m G t R ...      (one letter a kernel, small ones are helpers or weak)
//   landmarks  R   G         A   G   R ...          told by their names alone: matrix products, norms, attention
//   patterns   [R  G         A   G   R  G  G ]      landmarks of a layer forward, backward; embedding; head; optimizer
//
// The sequence of landmarks is tiled with patterns so that most landmarks are covered; the kernels between two
// landmarks are then aligned with the operations that the tiled patterns expect there, in order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "names.hpp"
#include "pipewright/import.hpp"
#include "pipewright/model.hpp"

namespace pipewright::traces {

enum class Pass : std::uint8_t { forward, backward, weight_gradient, step };

/// An operation that a pattern expects, in launch order.
struct Expected {
  const model::Kernel* kernel;
  std::string operation;
  bool after_wait = false;  ///< the host has waited for the GPU just before its launch
};

struct Pattern {
  std::string name;  ///< "layer forward"
  Pass pass;
  std::uint32_t piece = 0;
  bool node = false;                   ///< of expert-parallel overlap
  int part = 0;                        ///< ... which
  bool enters = true;                  ///< a piece, or its first node
  bool beside = false;                 ///< a node on the communication stream of expert-parallel overlap
  std::vector<Expected> compute;       ///< of the compute stream (or the node's)
  std::vector<Expected> elsewhere;     ///< of other streams
  std::vector<std::size_t> landmarks;  ///< positions in `compute`
};

/// Patterns of what a pipeline rank runs, each once.
std::vector<Pattern> patterns_of(const model::Stages& stages, std::size_t pp_rank);

/// Pieces of each chunk of a pipeline rank, in the order in which they run forward.
using Order = std::vector<std::vector<std::uint32_t>>;
Order order_of(const model::Stages& stages, std::size_t pp_rank);

/// An operation of the model and its kernels.
struct Mapped {
  const Expected* expected;
  const Pattern* pattern;
  std::size_t instance;                      ///< which tile of the trace
  std::uint32_t main;                        ///< the activity that does the work
  std::vector<std::uint32_t> activities;     ///< with helpers, by start
  bool in_order = true;                      ///< by its place in a tile, not by its number on a stream
  std::vector<const Expected*> joined = {};  ///< further operations that `main` does
};

struct Mapping {
  std::int64_t compute_stream = 0;
  std::vector<Mapped> operations;       ///< those of the compute stream by start, then the others
  std::vector<std::uint32_t> pipeline;  ///< pipeline transfers
  std::vector<std::uint32_t> unmapped;
  std::vector<const Pattern*> instances;
  std::map<std::string, std::size_t> missing;  ///< operations that a tile should have and has not, by name
  std::size_t missing_copies = 0;              ///< of them, those that make a tensor contiguous
  std::string first_unplaced;                  ///< of the compute stream: its name and what it comes after; ""
};

/// `kinds`: kinds() of it. Throws UsageError if no pattern of the rank is in the trace.
/// Layers whose patterns look alike (attention over a window, and over everything) are told apart by `order`.
Mapping match(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns,
              const Order& order);

}  // namespace pipewright::traces
