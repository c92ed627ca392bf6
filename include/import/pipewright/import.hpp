// Traces of real runs, read back: what every operation of the model took in situ, what the host spent before it, and
// how long transfers and collectives ran and were exposed. Room `import`; the namespace is `traces` because `import` is
// a word of the language.
//
//   torch.profiler JSON ──┐                       kernels by name      ┌─► profile::Profile (measured in situ)
//   Nsight Systems .sqlite├─► Trace ─► summarise  and order, against ─┤
//   kernel list .json     │                       model::Stages       └─► report: attribution, gaps, what is unmapped
//   capture's recording  ─┘
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::traces {

enum class Engine : std::uint8_t { kernel, memset, d2d, d2h, h2d };

/// What a trace's own records say of a communication kernel; `unknown` where they are silent (kernel lists, nsys).
enum class Exchange : std::uint8_t { unknown, pipeline, all_to_all };

/// The call that put an activity on its stream. thread -1: not recorded.
struct Launch {
  std::int64_t start = 0, duration = 0;  ///< ns
  std::int64_t thread = -1;
  bool known() const { return thread >= 0; }
};

/// A kernel, copy or memset of the GPU; times in ns since the trace's first activity.
struct Activity {
  std::uint32_t name = 0;  ///< into Trace::names
  Engine engine = Engine::kernel;
  Exchange exchange = Exchange::unknown;
  std::int64_t stream = 0;
  std::int64_t start = 0, duration = 0;
  Launch launch;
  std::int64_t end() const { return start + duration; }
};

/// A range that the program marked (NVTX), as its host saw it.
struct Range {
  std::string name;
  std::int64_t start = 0, end = 0;
};

struct Trace {
  std::string file;
  int rank = 0;
  std::int64_t world_size = 0;  ///< ranks of the run; 0: not recorded
  std::string device;           ///< empty: not recorded
  Bytes memory;
  std::map<std::string, std::string> versions;
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< sizes of process groups, by Megatron's descriptions
  std::int64_t began = 0;          ///< of the first activity, ns since 1970 by the host's clock; 0: not recorded
  std::vector<std::string> steps;  ///< that the profiler marked ("ProfilerStep#5")
  bool operators = false;          ///< the profiler recorded the host's operators (cpu_op), too
  std::vector<std::string> names;
  std::vector<Activity> activities;  ///< by start, then stream
  std::vector<Range> ranges;         ///< of recordings; else empty
};

/// Reads a trace of any form (told by its content). Throws UsageError: truncated, no kernels, times that make no sense,
/// kernels of several GPUs, rank in neither the file's name (`.r3.`) nor its metadata.
Trace read(const std::string& path);

/// What a run's send/receive kernels may be: a trace does not always tell.
struct Exchanges {
  bool experts = false;   ///< experts are spread over ranks
  bool pipeline = false;  ///< there are stages; else what is no expert's is context parallelism's: coll
};
Exchanges exchanges_of(const scenario::Scenario& scenario);

/// Of every activity: comp, p2p, ep, coll, d2h or h2d; see summarise().
std::vector<std::string> kinds(const Trace& trace, Exchanges exchanges);

/// Busy time by kind (union of intervals) and exposed time (the part in which no compute kernel runs), as measured/
/// traces are summarised: comp, p2p, ep, coll, d2h, h2d. Where the trace does not tell an all-to-all from a pipeline
/// transfer and experts are spread over ranks, send/receive kernels on a stream that also computes are all-to-alls.
scenario::TraceSummary summarise(const Trace& trace, Exchanges exchanges);

/// What shows that a run's attention is unfused where its scenario has it fused, or the other way round: the kernel,
/// and what to look at. nullopt: it ran what the scenario has.
std::optional<std::string> other_attention(const scenario::Scenario& scenario, const Trace& trace);
/// The same of a run without fusion that something else shows (`seen`), a line of its log for instance.
std::optional<std::string> told_unfused(const scenario::Scenario& scenario, const std::string& seen);

struct Options {
  std::string name;  ///< of the profile
  /// What the profiler itself costs the host, by which host times are divided; nullopt: as ProfilerCost says.
  std::optional<double> host_overhead;
  std::string command;  ///< for the profile's provenance
};

/// The trace as a kernel list, the form of measured/traces: {"names": [...], "rows": [[name, stream, start us, us],
/// ...]}.
std::string kernel_list(const Trace& trace);

/// Kernels of one key over all traces.
struct KeyTime {
  profile::Key key;
  std::string op;  ///< of the model, the first that has the key: "mlp.fc1 forward"
  profile::Sample sample;
  double situ_ns = 0;   ///< median as traced; the sample's is this one brought to a cool part, where that was asked for
  double total_us = 0;  ///< of all its kernels, helpers included
};
struct Unmapped {
  std::string name;  ///< of the kernel, and of the innermost range that launched it where there is one
  int count = 0;
  double total_us = 0;
};
struct RankReport {
  std::string file;
  int rank = 0, pp_rank = 0;
  scenario::TraceSummary summary;
  double duty = 0;  ///< compute busy over span
  double kernel_us = 0, attributed_us = 0;
  double p2p_us = 0;  ///< one transfer that did not wait: lower decile; 0: none
  double steps = 0;   ///< of the scenario, by its layers' forward passes
  int passes = 0;     ///< layers, embeddings, heads recognised, forward and backward
};

struct Import {
  profile::Profile profile;
  std::vector<RankReport> ranks;
  std::vector<KeyTime> keys;       ///< by family, then dimensions
  std::vector<Unmapped> unmapped;  ///< longest first
  double kernel_us = 0, attributed_us = 0;
  std::vector<std::string> notes;
};

/// Maps kernels to the model's operations. `cool`: profiles whose clock law brings times in situ back to a cool part,
/// so that they can stand beside measurements of lone kernels; nullptr: times stay as traced, and say so. Throws
/// UsageError where the scenario's pattern of kernels is not in a trace.
Import import_traces(const scenario::Scenario& scenario, const std::vector<Trace>& traces, const Options& options,
                     const profile::Profiles* cool);

/// The report; `lone` says what profiles of lone kernels told of the same operations.
std::string text(const Import& result, const profile::Profiles* lone);
std::string json(const Import& result, const profile::Profiles* lone);

}  // namespace pipewright::traces
