// Links over several hosts: one process a GPU, started by mpirun, srun or torchrun (seats.hpp). Groups are split from
// one communicator of all ranks. A sample is the kernel's own time (CUPTI) on the rank that started last, as on one
// host.
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>

#include "cupti.hpp"
#include "grid.hpp"
#include "nccl_calls.hpp"
#include "parts.hpp"
#include "pipewright/measured_links.hpp"

namespace pipewright::capture {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) throw std::runtime_error("this host has no name");
  return name.data();
}

std::string as_text(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

ncclUniqueId as_id(const std::string& text) {
  ncclUniqueId id{};
  if (text.size() != 2 * sizeof id.internal) throw std::runtime_error("rank 0 told no NCCL id: another version of it?");
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  return id;
}

/// This process's GPU and its place among all.
class Member {
 public:
  Member(const Seat& seat, const Met& met) : seat_(seat) {
    const auto here = met.said.at(static_cast<std::size_t>(seat.rank));
    const auto before = std::count(met.said.begin(), met.said.begin() + seat.rank, here);
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "counting devices");
    // Launchers that give each process one GPU show it as device 0.
    rank_ = make_rank(static_cast<int>(before) % devices, seat.rank);
    check(ncclCommInitRank(&all_, seat.ranks, as_id(met.told), seat.rank), "communicator of all ranks");
    activities_ = cupti_source();
    activities_->take();
  }
  ~Member() {
    leave();
    if (all_ != nullptr) ncclCommDestroy(all_);
    free_rank(rank_);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// All ranks at once.
  void join(const Grouping& grouping) {
    leave();
    const int group = grouping.group_of(seat_.rank);
    check(ncclCommSplit(all_, group < 0 ? NCCL_SPLIT_NOCOLOR : group, seat_.rank, &rank_.communicator, nullptr),
          "splitting the communicator");
    if (rank_.communicator != nullptr) check(ncclCommUserRank(rank_.communicator, &place_), "rank in the group");
  }
  bool joined() const { return rank_.communicator != nullptr; }

  /// What rank 0 says, heard by all; waits for all.
  double agree(double value) {
    check(cudaMemcpyAsync(rank_.tiny, &value, sizeof value, cudaMemcpyHostToDevice, rank_.stream), "copy");
    check(ncclBroadcast(rank_.tiny, rank_.tiny, 1, ncclDouble, 0, all_, rank_.stream), "broadcast");
    check(cudaMemcpyAsync(&value, rank_.tiny, sizeof value, cudaMemcpyDeviceToHost, rank_.stream), "copy");
    check(cudaStreamSynchronize(rank_.stream), "broadcast");
    activities_->take();
    return value;
  }

  /// Of every repetition the least over the group's ranks; those that only send have no say (`receives`).
  Summary time(const Call& call, std::size_t bytes, const std::function<bool(int)>& receives) {
    const int repetitions = repetitions_of(bytes);
    call(place_, rank_, bytes);  // NCCL connects what this size needs
    check(cudaStreamSynchronize(rank_.stream), "transfer");
    activities_->take();
    volatile int* open = rank_.gate;
    *open = 0;
    kernels::gate(open, rank_.gate + 1, 100'000'000, rank_.stream);
    for (int i = 0; i < warm_up_repetitions + repetitions; ++i) {
      check(ncclAllReduce(rank_.tiny, rank_.tiny, 2, ncclFloat, ncclSum, rank_.communicator, rank_.stream), "line up");
      activities_->push(static_cast<std::uint64_t>(i) + 1);
      call(place_, rank_, bytes);
      activities_->pop();
    }
    *open = 1;
    check(cudaStreamSynchronize(rank_.stream), "transfer");
    std::vector<double> ns(static_cast<std::size_t>(repetitions), std::numeric_limits<double>::max());
    for (const auto& [id, span] : spans(activities_->take())) {
      const int repetition = static_cast<int>(id) - 1 - warm_up_repetitions;
      if (repetition >= 0 && receives(place_))
        ns[static_cast<std::size_t>(repetition)] = static_cast<double>(span.end_ns - span.start_ns);
    }
    const std::size_t size = ns.size() * sizeof(double);
    check(cudaMemcpyAsync(rank_.in, ns.data(), size, cudaMemcpyHostToDevice, rank_.stream), "copy");
    check(ncclAllReduce(rank_.in, rank_.in, ns.size(), ncclDouble, ncclMin, rank_.communicator, rank_.stream), "times");
    check(cudaMemcpyAsync(ns.data(), rank_.in, size, cudaMemcpyDeviceToHost, rank_.stream), "copy");
    check(cudaStreamSynchronize(rank_.stream), "times");
    activities_->take();
    return summarize(std::move(ns));
  }

 private:
  void leave() {
    if (rank_.communicator == nullptr) return;
    ncclCommDestroy(rank_.communicator);
    rank_.communicator = nullptr;
  }

  const Seat& seat_;
  Rank rank_;
  ncclComm_t all_ = nullptr;
  int place_ = 0;
  std::unique_ptr<ActivitySource> activities_;
};

}  // namespace

void measure_links_between_hosts(Session& session) {
  const Options& options = session.options;
  const Seat& seat = options.seat.value();
  if (options.link == "shared host memory") setenv("NCCL_P2P_DISABLE", "1", 1);
  const auto met = meet(
      {options.meet}, seat, host_name(),
      [] {
        ncclUniqueId id{};
        check(ncclGetUniqueId(&id), "unique id");
        return as_text(id);
      },
      session.stop);
  const Hosts where = hosts(met.said);
  Member member(seat, met);

  profile::Topology topology;
  topology.gpus_per_node = topology.domain = where.gpus_a_host;
  topology.inside = options.link;
  if (options.nvlink_domain) topology.domain = *options.nvlink_domain;
  const auto everyone = [](int) { return true; };
  const auto receiver = [](int r) { return r == 1; };
  auto sizes = message_sizes(options.quick);
  sizes.insert(sizes.begin(), 1024);  // a step's latency

  const auto groups = groupings(where);
  const auto start = std::chrono::steady_clock::now();
  std::size_t done = 0;
  const std::size_t total = groups.size() * sizes.size();
  std::vector<profile::MeasuredExchange> measured;
  for (const Grouping& group : groups) {
    member.join(group);
    const bool alone = group.groups == 1 && (group.stride > 1 || where.gpus_a_host == 1);
    auto calls = alone && group.stride > 1 ? std::vector<Collective>() : collectives(static_cast<int>(group.ranks));
    if (group.ranks == 2) calls.push_back({"send_recv", one_way});
    for (const std::int64_t bytes : sizes) {
      session.result.complete = member.agree(session.stop ? 1 : 0) == 0;
      if (!session.result.complete) break;
      const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double left = done == 0 ? 0 : elapsed / static_cast<double>(done) * static_cast<double>(total - done);
      if (seat.rank == 0)
        session.report({fmt::format("{} ranks {} apart", group.ranks, group.stride), ++done, total, elapsed, left});
      if (!member.joined()) continue;
      for (const auto& [name, call] : calls) {
        const bool pair = std::string(name) == "send_recv";
        if (!session.wants(fmt::format("{}.{}", name, topology.inside)) &&
            !session.wants(fmt::format("{}.{}", name, topology.between)))
          continue;
        const Summary s = member.time(call, static_cast<std::size_t>(bytes), pair ? std::function(receiver) : everyone);
        profile::MeasuredExchange m;
        m.operation = name;
        m.ranks = group.ranks;
        m.stride = group.stride;
        m.alone = alone;
        m.bytes = bytes;
        m.ns = s.median;
        m.spread = s.spread;
        m.count = s.count;
        m.source = fmt::format("capture --links on {} hosts of {} GPUs", where.hosts, where.gpus_a_host);
        measured.push_back(m);
      }
    }
    if (!session.result.complete) break;
  }
  session.result.written_here = seat.rank == 0;
  if (seat.rank == 0) profile::add_exchanges(session.result.profile, topology, measured);
}

}  // namespace pipewright::capture
