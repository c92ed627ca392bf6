// A straight line of host code as one map between times. Launches, waits and host costs only add and take maxima, so
// whatever lies between two places of a program is a matrix of the (max, +) algebra over the rank's queues:
//
//   host     |launch|launch|launch|        end(q) = max over queues p of  begin(p) + entry(q, p)
//   compute      [kernel][kernel][kernel]
//                                          compute <- compute: the kernels' own time
//                                          compute <- host:    the longest way from a launch to the end
//
// Entries are kept at every row of the clock table, with and without an NCCL kernel beside, and where experts'
// exchanges run beside kernels with those slowed by them; between them they are interpolated, as kernel times are. A
// node of expert-parallel overlap may run on the second stream: its line is then applied with that in place of compute.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pace.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// Queue 0 is the host, then the streams of model::Stream; the second stream of expert-parallel overlap is no line's.
inline constexpr std::size_t line_queues = 7, queues = 8;
inline constexpr std::size_t host_queue = 0, compute_queue = 1, expert_queue = 7;
inline std::size_t queue_of(model::Stream stream) { return 1 + static_cast<std::size_t>(stream); }

using QueueTimes = std::array<double, queues>;  ///< ns; whole numbers, exact up to 2^53

/// How kernels slow down around a place: between two rows of the clock table, and beside NCCL for a share of the time.
struct Slowdown {
  std::size_t row = 0;
  double towards_next = 0, contended = 0;
  double exchanged = 0;  ///< what kernels beside add to the time of experts' exchanges
};

class Line {
 public:
  struct Entry {
    std::uint8_t to, from;
  };
  /// `own`: the queue that stands for compute.
  void apply(QueueTimes& times, const Slowdown& at, std::size_t own = compute_queue) const;
  double value(std::size_t entry, const Slowdown& at) const { return mix(values_.data() + entry * points_, at); }
  /// Time of experts' exchanges on the own stream, nothing beside; and of every kind of kernel on a cool part.
  double exchanges() const { return exchanges_; }
  const std::array<double, 3>& kinds() const { return kinds_; }
  /// Time in which the compute stream computes; and the same with every kind of kernel by its power.
  double busy(const Slowdown& at) const { return mix(busy_.data(), at); }
  double load(const Slowdown& at) const { return mix(load_.data(), at); }
  /// The same on a cool part with nothing beside.
  double cool_busy() const { return busy_.front(); }
  double cool_load() const { return load_.front(); }
  /// Time of collectives on the streams of gradients and of parameters.
  double beside(model::Stream stream) const { return beside_[stream == model::Stream::parameter ? 1 : 0]; }
  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  friend class Collapser;
  double mix(const double* at_points, const Slowdown& at) const {
    const double* low = at_points + columns_ * at.row;
    const double value = beside(low, at);
    return at.towards_next > 0 ? value + at.towards_next * (beside(low + columns_, at) - value) : value;
  }
  double beside(const double* row, const Slowdown& at) const {
    const double value = row[0] + at.contended * (row[1] - row[0]);
    return columns_ > 2 ? value + at.exchanged * (row[2] - row[0]) : value;
  }

  std::vector<Entry> entries_;  ///< by `to`; queues that nothing changes have none
  std::size_t columns_ = 2;     ///< alone, contended, and with exchanges: these at twice their time
  std::size_t points_ = 0;      ///< rows x columns
  std::vector<double> values_, busy_, load_;
  double exchanges_ = 0;
  std::array<double, 3> kinds_{};
  std::array<double, 2> beside_{};
};

/// Kernels of a piece under one slowdown. Hooks of activation offload, at which copies begin or are waited for, cut
/// them; where none of its hooks does anything it is one line.
struct Passage {
  struct Part {
    Line line;
    std::uint32_t hooks = 0;                           ///< that come after it
    std::uint32_t kernel = model::OffloadGroup::none;  ///< its last one, where a copy waits for that one's output ..
    std::size_t queue = compute_queue;                 ///< .. on this queue
  };
  Line whole;
  std::vector<Part> parts;  ///< none: nothing cuts it
  std::uint32_t hooks = 0;  ///< of all parts
  bool marks = false;       ///< some part ends with a kernel that a copy waits for
};

/// Makes lines under the profile's clocks and contention.
class Collapser {
 public:
  /// `host`: what the host's own calls take of their time.
  Collapser(const scenario::Scenario& scenario, const profile::Profiles& profiles, double host = 1);

  /// Several one after the other, so that slowdowns change within a piece; composed they are the piece.
  /// `second`: on the second stream of expert-parallel overlap.
  std::vector<Passage> passages(const std::vector<model::Step>& steps, const model::Piece& piece,
                                const Prices::List& prices, int microbatch, bool second = false) const;
  Line line(const std::vector<model::Kernel>& kernels, const Prices::List& prices, std::size_t from,
            std::size_t to) const;
  Slowdown at_duty(double duty) const;
  std::int64_t window() const { return window_; }
  /// Expert-parallel overlap: what all of an exchange's time beside a kind of kernel adds to it.
  const std::array<double, 3>& beside() const { return beside_; }
  bool slows_exchanges() const { return slows_exchanges_; }
  /// What a token dispatcher counts as, beside a kernel, where NCCL counts 1.
  double dispatcher() const { return dispatcher_; }
  /// What a transfer over the network counts as.
  double across() const { return across_; }

 private:
  struct Event {
    const model::Kernel* kernel = nullptr;  ///< null: the compute stream, or the host, waits for `waits_for`
    std::uint32_t number = 0;               ///< of the kernel in its piece
    std::optional<std::size_t> kind;        ///< of kernels that slow beside others: matrix, attention, memory
    std::optional<std::size_t> clock;       ///< of those that slow as the clock falls: place in `slowing_loads`
    bool on_gpu = false, computes = false, exchanges = false;
    double host_ns = 0, cool_ns = 0;
    model::Stream waits_for{};
    bool host_waits = false;
    enum class Cut : std::uint8_t { no, hook, silent_hook, output } cut = Cut::no;  ///< no event but a place between
    double beside_own = 0;  ///< share of the kernel beside which the piece's own communication runs
  };
  Event event(const model::Kernel& kernel, const Price& price) const;
  Line collapse(std::span<const Event> events, bool second = false) const;
  Passage passage(std::span<const Event> events, bool second) const;
  void find_own_communication(std::vector<Event>& events) const;
  double duration(const Event& event, std::size_t row, double contended, bool exchanged = false) const;

  double gap_ = 0, synchronize_ = 0;
  std::vector<double> duties_;                                          ///< of the rows
  std::vector<std::array<double, slowing_loads.size()>> clock_factor_;  ///< [row][place in `slowing_loads`]
  std::array<double, 3> contention_{}, weights_{1, 1, 1}, beside_{};
  double leaving_ = 1;
  bool slows_exchanges_ = false;
  bool whole_layers_ = false;  ///< are offloaded: copies begin where a layer begins, and wait for single kernels
  double dispatcher_ = 1, across_ = 1;
  double exchange_ = 0;  ///< weight of collectives between kernels
  std::int64_t window_ = 0;
};

}  // namespace pipewright::timeline
