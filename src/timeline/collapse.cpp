#include "collapse.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lines.hpp"
#include "pace.hpp"

namespace pipewright::timeline {
namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

using Row = std::array<double, line_queues + 1>;  // an even number of columns, two at a time; the last one says never
using Matrix = std::array<Row, line_queues>;      // [to][from]

Matrix identity() {
  Matrix m;
  for (std::size_t to = 0; to < line_queues; ++to) {
    m[to].fill(never);
    m[to][to] = 0;
  }
  return m;
}

void raise(Row& row, const Row other) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = std::max(row[i], other[i]);
}

void add(Row& row, double ns) {
  for (auto& value : row) value += ns;
}

bool computes(const model::Kernel& kernel) {
  return kernel.stream == model::Stream::compute && kernel.purpose == model::Purpose::compute;
}

}  // namespace

void Line::apply(QueueTimes& times, const Slowdown& at, std::size_t own) const {
  if (own != compute_queue) {
    std::swap(times[compute_queue], times[own]);
    apply(times, at);
    return std::swap(times[compute_queue], times[own]);
  }
  const QueueTimes before = times;
  for (std::size_t e = 0; e < entries_.size();) {
    const auto to = entries_[e].to;
    double latest = never;
    for (; e < entries_.size() && entries_[e].to == to; ++e)
      latest = std::max(latest, before[entries_[e].from] + value(e, at));
    times[to] = latest;
  }
}

Collapser::Collapser(const scenario::Scenario& scenario, const profile::Profiles& profiles, double host)
    : synchronize_(host * static_cast<double>(nanoseconds(replayed_host_factor(scenario, profiles) *
                                                          profiles.scalar("host.launch_and_synchronize_us").value))) {
  whole_layers_ = scenario.settings.cpu_offloading;
  const Pace pace(scenario, profiles);
  gap_ = static_cast<double>(pace.gap_ns);
  window_ = pace.window_ns;
  contention_ = {pace.matrix, pace.attention, pace.memory};
  leaving_ = pace.leaving;
  slows_exchanges_ = pace.slows_exchanges;
  dispatcher_ = pace.dispatcher;
  across_ = pace.across;
  for (std::size_t kind = 0; kind < beside_.size(); ++kind) beside_[kind] = pace.beside[kind] - 1;
  if (!pace.clocks) {
    duties_ = {0};
    clock_factor_.emplace_back().fill(1);
    return;
  }
  const profile::ClockLaw& law = *pace.clocks;
  weights_ = {law.matrix, law.attention, law.memory};
  exchange_ = law.exchange;
  for (const auto& row : law.layer->rows) duties_.push_back(row.duty);
  constexpr double heaviest = 1.5;  // no load weighs more; beyond the last row the law goes on in a straight line
  duties_.push_back(heaviest);
  for (const double duty : duties_) {
    auto& factors = clock_factor_.emplace_back();
    for (std::size_t load = 0; load < slowing_loads.size(); ++load)
      factors[load] = law.slowdown(slowing_loads[load], duty);
  }
}

Slowdown Collapser::at_duty(double duty) const {
  if (duty <= duties_.front()) return {};
  if (duty >= duties_.back()) return {duties_.size() - 1, 0, 0};
  std::size_t row = 0;
  while (duties_[row + 1] <= duty) ++row;
  return {row, (duty - duties_[row]) / (duties_[row + 1] - duties_[row]), 0};
}

double Collapser::duration(const Event& event, std::size_t row, double contended, bool exchanged) const {
  double factor = event.exchanges && exchanged ? 2 : 1;
  if (event.kind) {
    const double beside = event.kernel->sm_share < 1 ? leaving_ : contention_[*event.kind];
    factor += (beside - 1) * (event.beside_own + (1 - event.beside_own) * contended);
  }
  if (event.clock) factor *= clock_factor_[row][*event.clock];
  return gap_ + std::floor(event.cool_ns * factor + 0.5);
}

Collapser::Event Collapser::event(const model::Kernel& kernel, const Price& price) const {
  Event event;
  event.kernel = &kernel;
  event.on_gpu = !kernel.key.family.empty();
  event.computes = computes(kernel);
  if (event.computes && event.on_gpu) event.kind = kind_of(price.load);
  event.clock = is_on_wire(price.load) ? place_of(price.load) : event.kind;
  event.exchanges = slows_exchanges_ && kernel.stream == model::Stream::compute && kernel.purpose == model::Purpose::ep;
  event.host_ns = static_cast<double>(nanoseconds(price.host_us));
  event.cool_ns = static_cast<double>(whole_ns(price.time.ns / kernel.sm_share));
  return event;
}

/// The line alone, its host far ahead: what runs on the communication stream beside each kernel.
void Collapser::find_own_communication(std::vector<Event>& events) const {
  std::array<double, queues> tail{};
  std::vector<std::pair<double, double>> beside, spans(events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& e = events[i];
    if (e.cut != Event::Cut::no) continue;
    if (e.kernel == nullptr) {
      if (!e.host_waits) tail[compute_queue] = std::max(tail[compute_queue], tail[queue_of(e.waits_for)]);
      continue;
    }
    if (!e.on_gpu) continue;
    auto& queue = tail[queue_of(e.kernel->stream)];
    const double start = std::max(queue, tail[compute_queue]);
    queue = start + duration(e, 0, 0);
    spans[i] = {start, queue};
    if (e.kernel->stream == model::Stream::communication) beside.emplace_back(start, queue);
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kernel == nullptr || !events[i].computes || !(spans[i].second > spans[i].first)) continue;
    double shared = 0;
    for (const auto& [start, end] : beside)
      shared += std::max(0.0, std::min(end, spans[i].second) - std::max(start, spans[i].first));
    events[i].beside_own = shared / (spans[i].second - spans[i].first);
  }
}

Line Collapser::collapse(std::span<const Event> events, bool second) const {
  const std::size_t rows = clock_factor_.size();
  Line line;
  for (const Event& e : events) {
    if (second && e.exchanges && e.on_gpu) line.exchanges_ += duration(e, 0, 0);
    if (e.kind) line.kinds_[*e.kind] += duration(e, 0, 0);
    if (e.kernel == nullptr || !e.on_gpu) continue;
    if (e.kernel->stream == model::Stream::gradient) line.beside_[0] += duration(e, 0, 0);
    if (e.kernel->stream == model::Stream::parameter) line.beside_[1] += duration(e, 0, 0);
  }
  line.columns_ = line.exchanges_ > 0 ? 3 : 2;
  line.points_ = line.columns_ * rows;
  const bool clocked = std::ranges::any_of(events, [](const Event& e) { return e.clock.has_value(); });
  const bool contended = std::ranges::any_of(events, [](const Event& e) { return e.kind.has_value(); });
  std::vector<Matrix> points;
  points.reserve(line.points_);
  line.busy_.reserve(line.points_);
  line.load_.reserve(line.points_);
  for (std::size_t point = 0; point < line.points_; ++point) {
    const std::size_t row = point / line.columns_, column = point % line.columns_;
    // Where nothing slows as the clock falls or beside others, it is as before.
    const std::size_t alike = (clocked ? row * line.columns_ : 0) + (column == 1 && !contended ? 0 : column);
    if (alike < point) {
      points.push_back(points[alike]);
      line.busy_.push_back(line.busy_[alike]);
      line.load_.push_back(line.load_[alike]);
      continue;
    }
    Matrix m = identity();
    double busy = 0, load = 0;
    for (const Event& e : events) {
      if (e.cut != Event::Cut::no) continue;
      auto& compute = m[compute_queue];
      if (e.kernel == nullptr && e.host_waits) {
        Row over = m[queue_of(e.waits_for)];
        add(over, synchronize_);
        raise(m[host_queue], over);
        continue;
      }
      if (e.kernel == nullptr) {
        raise(compute, m[host_queue]);
        raise(compute, m[queue_of(e.waits_for)]);
        continue;
      }
      add(m[host_queue], e.host_ns);
      if (!e.on_gpu) continue;
      auto& queue = m[queue_of(e.kernel->stream)];
      raise(queue, m[host_queue]);
      if (e.kernel->stream != model::Stream::compute) raise(queue, compute);
      const double ns = duration(e, row, column == 1 ? 1 : 0, column == 2);
      add(queue, ns);
      if (!e.computes) {
        if (e.kernel->stream == model::Stream::compute && !second) load += exchange_ * ns;
        continue;
      }
      busy += ns;
      if (e.kind) load += weights_[*e.kind] * ns;
    }
    points.push_back(m);
    line.busy_.push_back(busy);
    line.load_.push_back(load);
  }
  const Matrix same = identity();
  for (std::uint8_t to = 0; to < line_queues; ++to) {
    if (std::ranges::all_of(points, [&](const Matrix& m) { return m[to] == same[to]; })) continue;
    for (std::uint8_t from = 0; from < line_queues; ++from) {
      if (points.front()[to][from] == never) continue;
      line.entries_.push_back({to, from});
    }
  }
  line.values_.reserve(line.entries_.size() * line.points_);
  for (const auto [to, from] : line.entries_)
    for (const Matrix& m : points) line.values_.push_back(m[to][from]);
  return line;
}

Passage Collapser::passage(std::span<const Event> events, bool second) const {
  using Cut = Event::Cut;
  Passage result;
  result.whole = collapse(events, second);
  std::size_t from = 0;
  std::uint32_t hooks = 0;
  const auto part = [&](std::size_t to) -> Passage::Part& {
    result.parts.push_back({collapse(events.subspan(from, to - from), second), std::exchange(hooks, 0)});
    from = to;
    return result.parts.back();
  };
  for (std::size_t i = 0; i < events.size(); ++i) {
    const bool hook = events[i].cut == Cut::hook || events[i].cut == Cut::silent_hook;
    result.hooks += hook ? 1 : 0;
    hooks += hook ? 1 : 0;
    const bool goes_on = i + 1 < events.size() && events[i + 1].cut == Cut::hook;  // hooks at one place are one cut
    if (events[i].cut == Cut::hook && !goes_on) part(i + 1);
    if (events[i].cut != Cut::output) continue;
    auto& ended = part(i + 1);
    ended.kernel = events[i].number;
    ended.queue = queue_of(events[i].waits_for);
    result.marks = true;
  }
  if (!result.parts.empty() && (from < events.size() || hooks > 0)) part(events.size());
  return result;
}

std::vector<Passage> Collapser::passages(const std::vector<model::Step>& steps, const model::Piece& piece,
                                         const Prices::List& prices, int microbatch, bool second) const {
  constexpr std::size_t most = 128;  // events of a passage: finer gains 0.1 to 0.3 % (runs of tests/measured)
  std::vector<bool> copied(piece.kernels.size(), false);  // output of these, as soon as they end
  for (const auto& group : piece.groups)
    for (const auto& move : group.moves)
      if (whole_layers_ && move.after != model::OffloadGroup::none) copied[move.after] = true;
  std::vector<Event> events;
  events.reserve(steps.size());
  for (const model::Step& step : steps) {
    if (!step.runs(microbatch)) continue;
    if (step.kind == model::Step::Kind::launch) {
      events.push_back(event(piece.kernels[step.index], prices[step.index]));
      if (!copied[step.index]) continue;
      Event& output = events.emplace_back();
      output.cut = Event::Cut::output;
      output.number = step.index;
      output.waits_for = piece.kernels[step.index].stream;
    } else if (step.kind == model::Step::Kind::wait || step.kind == model::Step::Kind::synchronize) {
      Event& wait = events.emplace_back();
      wait.waits_for = static_cast<model::Stream>(step.index);
      wait.host_waits = step.kind == model::Step::Kind::synchronize;
    } else if (step.kind != model::Step::Kind::allocate && step.kind != model::Step::Kind::free) {
      // Where a group begins, nothing is copied but layers.
      const bool silent = step.kind == model::Step::Kind::offload_begin && !whole_layers_;
      events.emplace_back().cut = silent ? Event::Cut::silent_hook : Event::Cut::hook;
    }
  }
  find_own_communication(events);
  std::vector<Passage> passages;
  for (std::size_t from = 0; from < events.size(); from += most)
    passages.push_back(passage(std::span(events).subspan(from, std::min(most, events.size() - from)), second));
  return passages;
}

Line Collapser::line(const std::vector<model::Kernel>& kernels, const Prices::List& prices, std::size_t from,
                     std::size_t to) const {
  std::vector<Event> events;
  events.reserve(to - from);
  for (std::size_t k = from; k < to; ++k) {
    events.push_back(event(kernels[k], prices[k]));
    if (!kernels[k].read_by_host) continue;
    Event& read = events.emplace_back();
    read.waits_for = kernels[k].stream;
    read.host_waits = true;
  }
  return collapse(events);
}

}  // namespace pipewright::timeline
