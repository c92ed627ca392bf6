// Links between the GPUs of one host through NCCL: one process, one thread a GPU, as many communicators as needed.
//
// A sample is the kernel's own time (CUPTI) on the rank that finishes the transfer: every collective follows another
// one, so that all ranks are ready when it starts. NCCL reads NCCL_P2P_DISABLE once: one link class a process.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "contention.hpp"
#include "cupti.hpp"
#include "grid.hpp"
#include "nccl_calls.hpp"
#include "parts.hpp"
#include "power.hpp"

namespace pipewright::capture {
namespace {

constexpr std::size_t hidden_state_bytes = 32 << 20;  // 4096 tokens x 4096 in bf16

std::int64_t used_bytes() {
  std::size_t free_bytes = 0, total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "memory info");
  return static_cast<std::int64_t>(total - free_bytes);
}

/// Runs body(rank) on a thread for each of the first n ranks, device selected; rethrows the first failure.
template <class Body>
void on_all(std::vector<Rank>& ranks, int n, Body body) {
  std::vector<std::thread> threads;
  std::exception_ptr failure;
  std::mutex mutex;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        check(cudaSetDevice(ranks[static_cast<std::size_t>(r)].device), "selecting the device");
        body(r, ranks[static_cast<std::size_t>(r)]);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

class Links {
 public:
  explicit Links(int devices) : ranks_(static_cast<std::size_t>(devices)) {
    for (int r = 0; r < devices; ++r) {
      ranks_[static_cast<std::size_t>(r)] = make_rank(r, r);
    }
    activities_ = cupti_source();
    activities_->take();
  }
  ~Links() {
    disconnect();
    for (const Rank& rank : ranks_) {
      free_rank(rank);
    }
  }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  void connect(int n) {
    disconnect();
    ncclUniqueId id{};
    check(ncclGetUniqueId(&id), "unique id");
    on_all(ranks_, n, [&](int r, Rank& rank) {
      check(ncclCommInitRank(&rank.communicator, n, id, r), "communicator");
      check(cudaStreamSynchronize(rank.stream), "communicator");
    });
    connected_ = n;
  }

  void disconnect() {
    if (connected_ == 0) return;
    on_all(ranks_, connected_, [](int, Rank& rank) {
      check(ncclCommDestroy(rank.communicator), "destroying a communicator");
      rank.communicator = nullptr;
    });
    connected_ = 0;
  }

  void once(const Call& call, std::size_t bytes) {
    on_all(ranks_, connected_, [&](int r, Rank& rank) {
      call(r, rank, bytes);
      check(cudaStreamSynchronize(rank.stream), "transfer");
    });
  }

  /// Calls without a pause.
  void several(const Call& call, std::size_t bytes, int calls = 8) {
    on_all(ranks_, connected_, [&](int r, Rank& rank) {
      for (int i = 0; i < calls; ++i) call(r, rank, bytes);
      check(cudaStreamSynchronize(rank.stream), "transfer");
    });
  }

  /// Times `call`. Everything is queued before a gate opens, and a tiny all-reduce lines the ranks up before each
  /// repetition; its sample is the least over the ranks that `timed` names: that of the rank that started last.
  Summary time(const Call& call, std::size_t bytes, const std::function<bool(int)>& timed) {
    const int repetitions = repetitions_of(bytes);
    constexpr int warm_up = 2;
    once(call, bytes);  // NCCL connects what this size needs
    activities_->take();
    std::barrier ready(connected_);
    on_all(ranks_, connected_, [&](int r, Rank& rank) {
      volatile int* open = rank.gate;
      *open = 0;
      kernels::gate(open, rank.gate + 1, 100'000'000, rank.stream);
      for (int i = 0; i < warm_up + repetitions; ++i) {
        check(ncclAllReduce(rank.tiny, rank.tiny, 2, ncclFloat, ncclSum, rank.communicator, rank.stream), "line up");
        activities_->push(static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(r) + 1);
        call(r, rank, bytes);
        activities_->pop();
      }
      ready.arrive_and_wait();
      *open = 1;
      check(cudaStreamSynchronize(rank.stream), "transfer");
    });
    std::vector<std::vector<double>> samples(static_cast<std::size_t>(repetitions));
    for (const auto& [id, span] : spans(activities_->take())) {
      const auto repetition = static_cast<int>((id - 1) / 64), rank = static_cast<int>((id - 1) % 64);
      if (repetition < warm_up || !timed(rank)) continue;
      samples[static_cast<std::size_t>(repetition - warm_up)].push_back(
          static_cast<double>(span.end_ns - span.start_ns));
    }
    std::vector<double> result;
    for (const auto& s : samples)
      if (!s.empty()) result.push_back(*std::min_element(s.begin(), s.end()));
    return summarize(std::move(result));
  }

  /// Whether a send of this size ends although its receiver has not come.
  bool eager(std::size_t bytes) {
    std::atomic<bool> sent_early{false}, looked{false};
    on_all(ranks_, 2, [&](int r, Rank& rank) {
      if (r == 0) {
        check(ncclSend(rank.in, bytes, ncclInt8, 1, rank.communicator, rank.stream), "send");
        const auto start = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(30) && !sent_early) {
          sent_early = cudaStreamQuery(rank.stream) == cudaSuccess;
        }
        looked = true;
      } else {
        while (!looked) std::this_thread::yield();
        check(ncclRecv(rank.out, bytes, ncclInt8, 0, rank.communicator, rank.stream), "receive");
      }
      check(cudaStreamSynchronize(rank.stream), "transfer");
    });
    activities_->take();
    return sent_early;
  }

  std::int64_t used_on(int device) {
    check(cudaSetDevice(device), "selecting the device");
    return used_bytes();
  }

  /// A receive on GPU 1 whose sender has not come holds SMs there, until end().
  void begin_waiting() {
    Rank& rank = ranks_[1];
    check(ncclRecv(rank.out, hidden_state_bytes, ncclInt8, 0, rank.communicator, rank.stream), "receive");
  }
  void end_waiting() {
    check(cudaSetDevice(0), "selecting the device");
    check(ncclSend(ranks_[0].in, hidden_state_bytes, ncclInt8, 1, ranks_[0].communicator, ranks_[0].stream), "send");
    check(cudaStreamSynchronize(ranks_[0].stream), "transfer");
    check(cudaSetDevice(1), "selecting the device");
    check(cudaStreamSynchronize(ranks_[1].stream), "transfer");
  }

 private:
  std::vector<Rank> ranks_;
  std::unique_ptr<ActivitySource> activities_;
  int connected_ = 0;
};

void two_way(int r, Rank& rank, std::size_t bytes) {
  if (r > 1) return;
  check(ncclGroupStart(), "group");
  check(ncclSend(rank.in, bytes, ncclInt8, 1 - r, rank.communicator, rank.stream), "send");
  check(ncclRecv(rank.out, bytes, ncclInt8, 1 - r, rank.communicator, rank.stream), "receive");
  check(ncclGroupEnd(), "group");
}

/// Each rank with both neighbours of a ring, both ways: interleaved pipelines in the steady state.
void four_way(int r, Rank& rank, std::size_t bytes) {
  const std::size_t half = static_cast<std::size_t>(largest_transfer) / 2;
  int n = 0;
  check(ncclCommCount(rank.communicator, &n), "ranks");
  const int next = (r + 1) % n, previous = (r + n - 1) % n;
  check(ncclGroupStart(), "group");
  check(ncclSend(rank.in, bytes, ncclInt8, next, rank.communicator, rank.stream), "send");
  check(ncclRecv(rank.out, bytes, ncclInt8, previous, rank.communicator, rank.stream), "receive");
  check(ncclSend(rank.in + half, bytes, ncclInt8, previous, rank.communicator, rank.stream), "send");
  check(ncclRecv(rank.out + half, bytes, ncclInt8, next, rank.communicator, rank.stream), "receive");
  check(ncclGroupEnd(), "group");
}

/// Transfers and collectives of 32 MiB beside kernels on GPU 1, and the kernels beside them. The existing communicator
/// is that of all ranks.
void measure_transfers(Links& links, Lab& lab, Attention& attention, int ranks, Session& session) {
  auto exchanges = collectives(ranks);
  exchanges.push_back({"send_recv", one_way});
  for (const auto& [name, call] : exchanges) {
    if (session.stop) return;
    const bool pair = std::string(name) == "send_recv";
    std::optional<Background> running;
    measure_contention(
        lab, attention, session, std::string("contention.") + name,
        [&] { running.emplace([&] { links.several(call, hidden_state_bytes); }); }, [&] { running.reset(); },
        std::string(name) + " of 32 MiB over NVLink runs");
    measure_beside(lab, attention, session, name, [&] {
      return links.time(call, hidden_state_bytes, [=](int r) { return pair ? r == 1 : true; }).median;
    });
  }
}

/// What exchanges add to an idle board's power: beside kernels they take from the same limit.
void measure_exchange_power(Links& links, const Lab& lab, int ranks, Session& session) {
  const std::string name = "clocks.exchange_watts";
  if (!session.wants(name)) return;
  constexpr std::size_t bytes = 64 << 20;
  constexpr int calls = 1000;  // some tenths of a second: what starting and joining them takes does not count
  constexpr auto each = std::chrono::seconds(2);
  const auto mean_power = [&](const auto& busy) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    PowerMeter power(*lab.nvml);
    for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < each;) busy();
    return power.watts();
  };
  const double idle = mean_power([] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
  std::vector<double> added;
  for (const auto& [collective, call] : collectives(ranks)) {
    if (session.stop) return;
    added.push_back(mean_power([&, &call = call] { links.several(call, bytes, calls); }) - idle);
  }
  const Summary s = summarize(std::move(added));
  session.result.profile.scalars[name] = {
      s.median, s.spread, profile::Origin::measured,
      "board power while collectives of 64 MiB over NVLink run, above idle; median of " + std::to_string(s.count) +
          " kinds"};
}

/// Device memory on GPU 0 of a communicator of n ranks, bytes.
struct CommunicatorMemory {
  std::int64_t made = 0;              ///< before its first collective
  std::int64_t collective = 0;        ///< added by it
  std::int64_t transfers = 0;         ///< added by sends and receives, both ways, with the neighbours of a ring
  std::int64_t library = 0;           ///< loaded by the first collective of the process, for all communicators
  std::int64_t transfer_library = 0;  ///< ... by its first send and receive
};

/// Leaves the n ranks connected.
CommunicatorMemory measure_communicator(Links& links, int n) {
  CommunicatorMemory result;
  const Call all_reduce = collectives(n)[2].call, transfer = n > 2 ? Call(four_way) : Call(two_way);
  auto step = [&, last = links.used_on(0)](std::int64_t& grown) mutable {
    const std::int64_t now = links.used_on(0);
    grown = now - last;
    last = now;
  };
  std::int64_t gone = 0;
  const auto once = [&](const Call& call, std::int64_t& stays) {
    const std::int64_t before = links.used_on(0);
    links.connect(n);
    links.once(call, 1 << 20);
    links.disconnect();
    stays = links.used_on(0) - before;
  };
  links.disconnect();
  once(all_reduce, result.library);
  if (n > 1) once(transfer, result.transfer_library);
  step(gone);
  links.connect(n);
  step(result.made);
  links.once(all_reduce, 1 << 20);
  step(result.collective);
  if (n > 1) links.once(transfer, 1 << 20);
  step(result.transfers);
  return result;
}

}  // namespace

void measure_links(Session& session) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    throw UsageError("links can be measured with two or more GPUs only");
  }
  const std::string link = session.options.link;
  if (link == "shared host memory") setenv("NCCL_P2P_DISABLE", "1", 1);
  profile::Profile& profile = session.result.profile;
  const auto scalar = [&](const std::string& name, double value, const std::string& source) {
    profile.scalars[name] = {value, 0, profile::Origin::measured, source};
  };
  const auto everyone = [](int) { return true; };
  devices = std::min(devices, 4);
  Links links(devices);
  const auto sizes = message_sizes(session.options.quick);
  const bool nvlink = link == "nvlink";

  std::size_t done = 0;
  const std::size_t total = sizes.size() * (1 + 4 * (devices >= 4 ? 2 : 1));
  const auto start = std::chrono::steady_clock::now();
  const auto progress = [&](const std::string& what) {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    session.report(
        {what, ++done, total, elapsed, elapsed / static_cast<double>(done) * static_cast<double>(total - done)});
  };

  const auto receiver = [](int r) { return r == 1; };
  const int most = devices >= 4 ? 4 : 2;
  for (const int n : most == 4 ? std::vector<int>{2, 4} : std::vector<int>{2}) {
    const auto memory = measure_communicator(links, n);
    if (nvlink) {
      const std::string over = std::to_string(n) + " ranks over NVLink";
      const auto n_bytes = "_" + std::to_string(n) + "_bytes";
      scalar("memory.outside.nccl_communicator" + n_bytes, static_cast<double>(memory.made + memory.collective),
             "device memory of a communicator of " + over + " after its first all-reduce");
      scalar("memory.outside.nccl_peers" + n_bytes, static_cast<double>(memory.transfers),
             std::string("added by the first send and receive ") +
                 (n == 2 ? "with the other rank" : "with both neighbours"));
      scalar("memory.outside.nccl_communicator_bytes",
             static_cast<double>(memory.made + memory.collective + memory.transfers),
             "device memory of a communicator of " + over + " in use: collectives and send/recv");
      scalar("memory.outside.nccl_group_bytes", static_cast<double>(memory.made),
             "device memory of a communicator of " + over + " before its first collective");
      scalar("memory.outside.nccl_collective_bytes", static_cast<double>(memory.collective),
             "added by the first all-reduce of a communicator of " + over);
    }
    if (nvlink && n == 2) {
      scalar("memory.outside.nccl_library_bytes", static_cast<double>(memory.library),
             "device memory that stays when the first communicator after its first all-reduce is gone");
      scalar("memory.outside.nccl_transfer_library_bytes", static_cast<double>(memory.transfer_library),
             "the same after the first send and receive");
      scalar("memory.outside.nccl_group_1_bytes", static_cast<double>(measure_communicator(links, 1).made),
             "device memory of a communicator of one rank");
      links.connect(n);
    }
    for (const auto& [name, call] : collectives(n)) {
      const std::string family = name + ("." + link);
      for (const std::int64_t bytes : sizes) {
        if (session.stop) return;
        progress(family);
        if (!session.wants(family)) continue;
        const Summary s = links.time(call, static_cast<std::size_t>(bytes), everyone);
        profile.samples[family].push_back(sample_of({n, bytes}, s));
      }
    }
  }

  // Point to point in the largest group: NCCL gives a pair more channels the fewer ranks a communicator has.
  profile::Link entry;
  entry.name = link;
  entry.source = "NCCL send/recv between two GPUs of one host, communicator of " + std::to_string(most) + " ranks";
  links.once(one_way, 1 << 20);
  for (const std::int64_t bytes : sizes) {
    if (session.stop) return;
    progress("send_recv." + link);
    const auto size = static_cast<std::size_t>(bytes);
    const Summary s = links.time(one_way, size, receiver);
    if (session.wants("send_recv." + link)) profile.samples["send_recv." + link].push_back(sample_of({bytes}, s));
    entry.gbytes_per_s = std::max(entry.gbytes_per_s, static_cast<double>(bytes) / s.median);
    if (links.eager(size)) entry.eager_bytes = bytes;
  }
  entry.latency_us = 1e-3 * links.time(one_way, 1024, receiver).median;
  profile.links.push_back(entry);
  const double single = links.time(one_way, hidden_state_bytes, receiver).median;
  const double both = links.time(two_way, hidden_state_bytes, [](int r) { return r < 2; }).median;
  scalar("contention.two_way." + link, both / single, "32 MiB both ways at once, over one way alone");
  if (most == 4) {
    scalar("contention.four_way." + link, links.time(four_way, hidden_state_bytes, everyone).median / single,
           "32 MiB to and from both neighbours of a ring of 4 at once, over one way alone");
  }
  if (nvlink) {
    Lab lab(1, 0.7);
    Attention attention(lab);
    measure_contention(
        lab, attention, session, "contention", [&] { links.begin_waiting(); }, [&] { links.end_waiting(); },
        "an NCCL receive over NVLink waits for its sender");
    measure_transfers(links, lab, attention, most, session);
    measure_exchange_power(links, lab, most, session);
  }
}

}  // namespace pipewright::capture
