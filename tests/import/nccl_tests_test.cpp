// Output of nccl-tests, printed here by the formats of its src/util.cu from machines whose truth is known.
#include "pipewright/nccl_tests.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/printf.h>

#include <filesystem>
#include <fstream>

namespace nccl_tests_test {

using namespace pipewright;
using namespace pipewright::profile;

namespace {

const Profile& h200() {
  static const Profile p = load("../../profiles/h200-sxm.json", {"test", 0});
  return p;
}

/// A cluster as it is, and runs of nccl-tests on it.
struct Cluster {
  std::int64_t hosts = 2, gpus = 8;
  double gbytes_per_s = 40, latency_us = 20;  // of a GPU's card, of a step
  std::int64_t gpus_per_port = 1;

  Topology topology() const {
    Topology t;
    t.gpus_per_node = t.domain = gpus;
    t.nics_per_node = gpus / gpus_per_port;
    t.gbytes_per_s = gbytes_per_s;
    t.latency_us = latency_us;
    return t;
  }
  double us(const std::string& operation, std::int64_t ranks, std::int64_t stride, std::int64_t bytes) const {
    const Profiles profiles({h200()});
    const Network n = network(topology(), profiles);
    if (operation == "send_recv")  // the last GPU of each host sends to the next one
      return ns_to_us(transfer_time(profiles, n, gpus - 1, 1, stride, bytes).ns);
    Exchange e;
    for (const auto kind : {Exchange::Kind::all_gather, Exchange::Kind::reduce_scatter, Exchange::Kind::all_reduce,
                            Exchange::Kind::all_to_all})
      if (operation == name(kind)) e.kind = kind;
    e.ranks = ranks;
    e.stride = stride;
    e.bytes = static_cast<double>(bytes);
    return ns_to_us(time(profiles, n, e).ns);
  }
};

/// util.cu, getFloatStr().
std::string number(double value, int width) {
  for (const int digits : {2, 1, 0})
    if (auto s = fmt::sprintf("%*.*f", width, digits, value); static_cast<int>(s.size()) <= width) return s;
  return fmt::sprintf("%*.1e", width, value);
}

double factor(const std::string& operation, std::int64_t ranks) {
  const double n = static_cast<double>(ranks);
  return operation == "send_recv" ? 1 : (operation == "all_reduce" ? 2 : 1) * (n - 1) / n;
}

std::string program(const std::string& operation) {
  if (operation == "all_to_all") return "alltoall_perf";
  return operation == "send_recv" ? "sendrecv_perf" : operation + "_perf";
}

const std::vector<std::int64_t> sizes = {1024, 65536, 1 << 20, 16 << 20, 256 << 20};

/// `split`: NCCL_TESTS_SPLIT="MOD gpus", one group for each GPU of a host.
std::string table(const Cluster& c, const std::string& operation, bool split = false, double slower_in_place = 1) {
  std::string s = "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22907\n";
  s += fmt::format("# Collective test starting: {}\n", program(operation));
  s += "# nThread 1 nGpus 1 minBytes 1024 maxBytes 268435456 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
       "validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n";
  for (std::int64_t r = 0; r < c.hosts * c.gpus; ++r)
    s += fmt::sprintf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%04x:%02x:%02x] %s\n", split ? r / c.gpus : r,
                      split ? r % c.gpus : 0, 1000 + r, fmt::format("node-{}", r / c.gpus), r % c.gpus, 0, r, 0,
                      "NVIDIA H100 80GB HBM3");
  s += "#\n" +
       fmt::sprintf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "",
                    "", "", "", "");
  s +=
      fmt::sprintf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "size", "count", "type",
                   "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", 0, "");
  s += fmt::sprintf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "(B)", "(elements)",
                    "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", 0, "");
  const std::int64_t ranks = split ? c.hosts : c.hosts * c.gpus, stride = split ? c.gpus : 1;
  for (const auto bytes : sizes) {
    s += fmt::sprintf("%12li  %12li  %8s  %6s  %6s", bytes, bytes / 4, "float",
                      operation == "all_reduce" || operation == "reduce_scatter" ? "sum" : "none", "    -1");
    for (const double slower : {1.0, slower_in_place}) {
      const double us = slower * c.us(operation, ranks, stride, bytes), alg = static_cast<double>(bytes) / us / 1e3;
      s += fmt::sprintf("  %7s  %6s  %6s", number(us, 7), number(alg, 6), number(alg * factor(operation, ranks), 6));
      s += slower_in_place != 1 && slower != 1 ? "    N/A" : fmt::sprintf("  %6g", 0.0);
    }
    s += "\n";
  }
  return s + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3 \n#\n# Collective test concluded: " +
         program(operation) + "\n#\n\n";
}

class Files {
 public:
  Files() : root_(std::filesystem::temp_directory_path() / "pipewright-nccl-tests") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~Files() { std::filesystem::remove_all(root_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ / name) << text;
    return (root_ / name).string();
  }

 private:
  std::filesystem::path root_;
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

nccl_tests::Result import_text(const Files& files, const std::string& text, const std::string& name = "out.txt") {
  return nccl_tests::import_files({files.write(name, text)}, {"mine", "pipewright import out.txt", {}});
}

Timing timed(const nccl_tests::Result& r, const Exchange& e) {
  const Profiles both({r.profile, h200()});
  return time(both, network(r.topology, both), e);
}

Exchange all_to_all(std::int64_t ranks, double bytes) {
  Exchange e;
  e.kind = Exchange::Kind::all_to_all;
  e.ranks = ranks;
  e.bytes = bytes;
  return e;
}

}  // namespace

TEST_CASE(
    "a cluster is read back from its tables: times as they stand, the card's rate, a step's latency, shared ports") {
  const Files files;
  for (const Cluster& c : {Cluster{}, Cluster{4, 8, 46, 9, 1}, Cluster{2, 4, 24, 35, 2}, Cluster{16, 8, 47, 14, 4}}) {
    CAPTURE(c.hosts);
    std::string all;
    for (const auto& operation : exchange_operations()) all += table(c, operation);
    const auto r = import_text(files, all);
    REQUIRE(r.tables.size() == exchange_operations().size());
    const std::int64_t ranks = c.hosts * c.gpus;
    for (const auto& operation : exchange_operations()) {
      const bool pair = operation == "send_recv";
      const auto& samples = r.profile.samples.at(operation + ".infiniband");
      REQUIRE(samples.size() == sizes.size());
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        CHECK(samples[i].dims == (pair ? std::vector{sizes[i]} : std::vector{ranks, sizes[i]}));
        CHECK(ns_to_us(samples[i].ns) == doctest::Approx(c.us(operation, ranks, 1, sizes[i])).epsilon(0.01));
        CHECK(samples[i].origin == Origin::measured);
        CHECK(samples[i].source == "nccl-tests: out.txt");
        CHECK(samples[i].count == 20);
      }
    }
    CHECK(r.topology.gpus_per_node == c.gpus);
    CHECK(r.network.gpus_per_port == c.gpus_per_port);
    const Network truth = network(c.topology(), Profiles({h200()}));
    CHECK(r.network.gbytes_per_s.value() == doctest::Approx(truth.nic_gbytes_per_s).epsilon(0.05));
    CHECK(r.network.alone_gbytes_per_s.value() == doctest::Approx(c.gbytes_per_s).epsilon(0.05));
    CHECK(r.network.latency_us.value() == doctest::Approx(c.latency_us).epsilon(0.02));
    const Link& link = *r.profile.link("infiniband");
    CHECK(link.origin == Origin::measured);
    const Profiles both({r.profile, h200()});
    CHECK(network(r.topology, both).nic_gbytes_per_s == doctest::Approx(truth.nic_gbytes_per_s).epsilon(0.05));
    CHECK(parse(to_json(r.profile), "out.json").samples.size() == r.profile.samples.size());
  }
}

TEST_CASE("groups of a GPU a host give the network's figures, not a family; ranks may be counted within a group") {
  const Files files;
  const Cluster c{4, 8, 30, 22, 1};
  const auto r = import_text(files, table(c, "all_gather", true) + table(c, "reduce_scatter", true));
  CHECK(r.profile.samples.empty());
  CHECK(r.tables.front().ranks == 4);
  CHECK(r.tables.front().stride == 8);
  CHECK(r.tables.front().groups == 8);
  CHECK(r.network.gbytes_per_s.value() == doctest::Approx(30).epsilon(0.05));
  CHECK(r.network.latency_us.value() == doctest::Approx(22).epsilon(0.02));
  CHECK(nccl_tests::text(r).find("bandwidth_gbytes_per_s: 2") != std::string::npos);
}

TEST_CASE("other numbers of ranks follow the model by what it was off where it was measured") {
  const Files files;
  const Cluster slow{2, 8, 20, 30, 1};
  const auto r = import_text(files, table(slow, "all_to_all") + table(slow, "send_recv"));
  for (const std::int64_t ranks : {32, 64}) {
    Cluster larger = slow;
    larger.hosts = ranks / 8;
    const auto t = timed(r, all_to_all(ranks, 256 << 20));
    CHECK(ns_to_us(t.ns) == doctest::Approx(larger.us("all_to_all", ranks, 1, 256 << 20)).epsilon(0.06));
    CHECK(t.origin == Origin::derived);
    CHECK(t.note.find("what 16 ranks were measured to take over it") != std::string::npos);
  }
  CHECK(timed(r, all_to_all(16, 256 << 20)).origin == Origin::measured);
  // Half the card's rate was measured on another day: every number of ranks is twice as long.
  const Cluster slower{2, 8, 10, 30, 1};
  const auto half = import_text(files, table(slower, "all_to_all") + table(slower, "send_recv"));
  for (const std::int64_t ranks : {16, 32, 64})
    CHECK(timed(half, all_to_all(ranks, 256 << 20)).ns / timed(r, all_to_all(ranks, 256 << 20)).ns ==
          doctest::Approx(2).epsilon(0.03));
}

TEST_CASE(
    "a cluster that states another network than was measured changes the measured times as it changes the model") {
  const Files files;
  const Cluster c{2, 8, 40, 20, 1};
  for (const char* operation : {"all_to_all", "all_gather", "reduce_scatter"}) {
    CAPTURE(operation);
    const auto r = import_text(files, table(c, operation) + table(c, "send_recv"));
    const Profiles profiles({r.profile, h200()});
    for (const std::int64_t ranks : {16, 32, 64})
      for (const double bytes : {1e5, 1e7, 2e8}) {
        Exchange e = all_to_all(ranks, static_cast<std::int64_t>(bytes));
        for (const auto kind : {Exchange::Kind::all_to_all, Exchange::Kind::all_gather, Exchange::Kind::reduce_scatter})
          if (name(kind) == std::string_view(operation)) e.kind = kind;
        const auto ns = [&](const Topology& t) { return time(profiles, network(t, profiles), e).ns; };
        const Topology as_measured = r.topology;
        const double before = ns(as_measured);
        const auto with = [&](const auto& change) {
          Topology t = as_measured;
          change(t);
          return ns(t);
        };
        // The measured figures stated are no change; what is better never slower, what is worse never faster.
        const auto& link = profiles.link("infiniband");
        CHECK(with([&](Topology& t) { t.gbytes_per_s = link.gbytes_per_s, t.latency_us = link.latency_us; }) == before);
        CHECK(with([](Topology& t) { t.switches = {{64, 4}}; }) == before);
        CHECK(with([](Topology& t) { t.nic_gbits = 800; }) <= before);
        CHECK(with([](Topology& t) { t.nics_per_node = 16; }) <= before);
        CHECK(with([](Topology& t) { t.latency_us = 1; }) <= before);
        CHECK(with([](Topology& t) { t.latency_us = 100; }) > before);
        CHECK(with([](Topology& t) { t.nics_per_node = 2; }) >= before);
        CHECK(with([](Topology& t) { t.switches = {{8, 8}}; }) >= before);
        // By hand; the steps that wait (4 %) do not grow.
        if (e.kind != Exchange::Kind::all_to_all || bytes < 1e8) continue;
        CHECK(with([](Topology& t) { t.nics_per_node = 4; }) == doctest::Approx(2 * before).epsilon(0.05));
        CHECK(with([](Topology& t) { t.switches = {{8, 4}}; }) == doctest::Approx(4 * before).epsilon(0.05));
        // Nodes of four in place of eight: more goes through the cards.
        const double more = static_cast<double>(ranks - 4) / static_cast<double>(ranks - 8);
        CHECK(with([](Topology& t) { t.gpus_per_node = t.domain = 4; }) ==
              doctest::Approx(more * before).epsilon(0.05));
      }
  }
}

TEST_CASE("a transfer that was measured faster than its link's figure stays so on another network, and no faster") {
  // A lone sender is quicker than all of a host together; on twice the cards both are twice as quick.
  const Files files;
  const Cluster together{2, 8, 40, 20, 1}, alone{2, 8, 46, 20, 1};
  const auto r = import_text(files, table(together, "all_to_all") + table(alone, "send_recv"));
  const Profiles profiles({r.profile, h200()});
  for (const std::int64_t bytes : {1 << 12, 1 << 20, 1 << 28}) {
    const auto ns = [&](double gbytes_per_s, double latency_us) {
      Topology t = r.topology;
      t.gbytes_per_s = gbytes_per_s;
      t.latency_us = latency_us;
      return transfer_time(profiles, network(t, profiles), 0, 8, 8, bytes).ns;
    };
    const auto& link = profiles.link("infiniband");
    const double rate = link.gbytes_per_s, latency = link.latency_us;
    const double measured = profiles.time({"send_recv.infiniband", {bytes}}).ns;
    CHECK(ns(rate, latency) == doctest::Approx(measured));
    CHECK(ns(2 * rate, latency) >= measured / 2);
    CHECK(ns(2 * rate, latency) <= measured);
    CHECK(ns(rate / 4, latency) >= measured);
    CHECK(ns(rate / 4, latency) <= 4 * measured);
    CHECK(ns(rate, latency + 50) - measured == doctest::Approx(50e3));
    if (bytes > 1 << 27) CHECK(ns(rate / 4, latency) == doctest::Approx(4 * measured).epsilon(0.02));
  }
}

TEST_CASE("one host's table is NVLink's, a rack's too where its domain is stated") {
  const Files files;
  const auto one = import_text(files, table({1, 8}, "all_gather"));
  CHECK(one.profile.samples.count("all_gather.nvlink") == 1);
  CHECK_FALSE(one.network.gbytes_per_s);
  CHECK(nccl_tests::text(one).find("Nothing was measured between hosts") != std::string::npos);
  const auto file = files.write("rack.txt", table({4, 4}, "all_gather"));
  const auto rack = nccl_tests::import_files({file}, {"rack", "", 16});
  CHECK(rack.profile.samples.count("all_gather.nvlink") == 1);
  CHECK_THROWS_WITH_AS(nccl_tests::import_files({file}, {"rack", "", 6}), doctest::Contains("--nvlink-domain"),
                       UsageError);
}

TEST_CASE("labels of launchers, messages of NCCL, older heads, several times of one size") {
  const Files files;
  const Cluster c;
  const std::string plain = table(c, "all_reduce");
  const auto expected = import_text(files, plain).profile.samples;
  std::string labelled = "node-0:1:1 [0] NCCL INFO Bootstrap: Using eth0\n", srun;
  for (std::size_t from = 0; from < plain.size();) {
    const auto end = plain.find('\n', from);
    labelled += "[1,0]<stdout>:" + plain.substr(from, end - from) + "\r\n";
    srun += " 0: " + plain.substr(from, end - from) + "\nnode-1:77:99 [5] NCCL INFO Channel 00/0\n";
    from = end + 1;
  }
  for (const auto& text : {labelled, srun}) {
    const auto samples = import_text(files, text).profile.samples;
    REQUIRE(samples.size() == expected.size());
    CHECK(samples.begin()->second.front().ns == expected.begin()->second.front().ns);
  }
  // Before 2.19 no program was named: the command line in the log, else the file's name says it.
  const std::string old = plain.substr(plain.find("# nThread"));
  CHECK(import_text(files, "+ srun ./build/all_reduce_perf -b 1K -e 256M -f 4\n" + old).tables.front().operation ==
        "all_reduce");
  CHECK(import_text(files, old, "all_reduce-16.txt").tables.front().operation == "all_reduce");
  CHECK_THROWS_WITH_AS(import_text(files, old), doctest::Contains("name the file after it; allowed: all_gather_perf"),
                       UsageError);

  // Before 2.10 the head told no aggregated iterations, and a column "error" stood in place of "#wrong".
  std::string oldest = old;
  for (const auto& [now, then] : {std::pair<std::string, std::string>{" agg iters: 1", ""}, {"#wrong", " error"}})
    for (auto at = oldest.find(now); at != std::string::npos; at = oldest.find(now))
      oldest.replace(at, now.size(), then);
  const auto read = import_text(files, oldest, "all_reduce-16.txt");
  CHECK(read.tables.front().rows.size() == import_text(files, plain).tables.front().rows.size());
  CHECK(read.tables.front().rows.front().count == 20);

  Cluster slower = c;
  slower.latency_us *= 3;
  const auto twice = import_text(files, plain + table(slower, "all_reduce"));
  const auto& first = twice.profile.samples.begin()->second.front();
  CHECK(first.ns > expected.begin()->second.front().ns);
  CHECK(first.spread > 0.05);
  CHECK(first.count == 40);
  // In place is N/A: only the time out of place counts.
  CHECK(import_text(files, table(c, "all_to_all", false, 1.5)).profile.samples.begin()->second.front().ns ==
        doctest::Approx(us_to_ns(c.us("all_to_all", 16, 1, 1024))).epsilon(0.01));
}

TEST_CASE("JSON of -J holds the same") {
  const Files files;
  const Cluster c;
  const double us = c.us("all_to_all", 16, 1, 16 << 20), alg = (16 << 20) / us / 1e3;
  std::string devices;
  for (int host = 0; host < 2; ++host)  // -g 8: an entry a process, of eight GPUs
    devices += fmt::format(
        "{}{{\"rank\":{},\"group\":0,\"pid\":7,\"hostname\":\"n{}\",\"device\":0,\"device_hex\":\"x\","
        "\"device_info\":\"NVIDIA H200\"}}",
        host == 0 ? "" : ",", 8 * host, host);
  const std::string text = fmt::format(
      R"({{"version":3,"start_time":"2026-01-02 03:04:05","args":["/opt/alltoall_perf","-J","x.json"],"env":["A=B"],)"
      R"("nccl_version":22907,"config":{{"nthreads":1,"ngpus":8,"iterations":20,"devices":[{}]}},"results":[)"
      R"({{"size":16777216,"count":4194304,"type":"float","redop":"none","root":"    -1",)"
      R"("out_of_place":{{"time":{},"alg_bw":{},"bus_bw":{},"nwrong":0.0}},"in_place":null,)"
      R"("actual_iterations":20,"experiment_name":""}}]}})",
      devices, us, alg, alg * 15 / 16);
  const auto file = files.write("x.json", text);
  CHECK(nccl_tests::recognise(file));
  const auto r = nccl_tests::import_files({file}, {"mine", "", {}});
  const auto& sample = r.profile.samples.at("all_to_all.infiniband").front();
  CHECK(sample.dims == std::vector<std::int64_t>{16, 16 << 20});
  CHECK(sample.ns == doctest::Approx(us_to_ns(us)));
  CHECK(r.profile.device.name == "NVIDIA H200");
  CHECK(r.profile.versions.at("nccl") == "2.29.7");
  CHECK(nccl_tests::json(r).find("\"operation\": \"all_to_all\"") != std::string::npos);

  const auto refused = [&](const std::string& what, const std::string& by, const char* message) {
    CAPTURE(by);
    CHECK_THROWS_WITH_AS(nccl_tests::import_files({files.write("bad.json", replaced(text, what, by))}, {}),
                         doctest::Contains(message), UsageError);
  };
  refused("\"bus_bw\"", "\"busbw\"", "bad.json: results[0].out_of_place.bus_bw: is missing");
  refused("\"nwrong\":0.0", "\"nwrong\":3.0", "results[0].out_of_place.nwrong: the transfer gave wrong data");
  refused("\"time\":", "\"cpu_time\":", "cpu_time: times of the CPU");
  refused("\"size\":16777216", "\"size\":\"16M\"", "results[0].size: is not what nccl-tests writes there");
  refused("/opt/alltoall_perf", "/opt/alltoallv_perf", "allowed: all_gather_perf");
  refused("}]}", "}", "is no complete JSON");
}

TEST_CASE("what cannot be right is refused with its line") {
  const Files files;
  const std::string text = table({}, "all_gather");
  CHECK(nccl_tests::recognise(files.write("a.txt", text)));
  CHECK_FALSE(nccl_tests::recognise(files.write("b.txt", "step 1 loss 3\n")));
  CHECK_FALSE(nccl_tests::recognise("no such file"));
  const auto refused = [&](const std::string& changed, const char* message) {
    CAPTURE(message);
    CHECK_THROWS_WITH_AS(import_text(files, changed), doctest::Contains(message), UsageError);
  };
  refused(replaced(text, "       0  ", "       2  "), "out.txt:26: #wrong: the transfer gave wrong data");
  refused(replaced(text, "float    none      -1", "float    none"),
          "out.txt:26: a row of 12 fields under a head of 13");
  refused(replaced(text, " time ", " cputime "), "out.txt:24: cputime: times of the CPU");
  refused(replaced(text, "#  Rank 15", "#  Bank 15"), "out.txt:3: Rank: node-0 has 8 GPUs and node-1 has 7");
  refused(replaced(text, "on     node-1 device  0", "on     node-0 device  0"), "GPU 0 of node-0 is listed twice");
  refused(replaced(text, "all_gather_perf", "all_reduce_perf"), "all_reduce among 16 ranks has 1.875");
  refused(replaced(text, "all_gather_perf", "all_gathr_perf"), "did you mean \"all_gather_perf\"?");
  refused(replaced(text, "NVIDIA H100 80GB HBM3", "NVIDIA L40S"), "GPUs of 2 kinds");
  refused(text.substr(0, text.find("        1024 ")), "the table has no rows");
  refused("#  Rank  0 Group  0 Pid 1 on a device  0 [0x00] NVIDIA H100\n", "the output's head is missing");
  refused("nothing\n", "is not output of nccl-tests");
}

}  // namespace nccl_tests_test
