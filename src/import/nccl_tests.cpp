// Runs of nccl-tests as measured exchanges: where each group's GPUs stand, and what their rows stand for.
//
// A row's size is the larger of what is sent and received (src/common.cu, TimeTest): the buffer by which this program
// names its families, too. Its time is the mean over the iterations that the host started one after the other, the
// slowest rank's stream included.
#include "pipewright/nccl_tests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nccl_runs.hpp"
#include "pipewright/regex.hpp"

namespace pipewright::nccl_tests {
namespace {

using profile::MeasuredExchange;

struct Program {
  const char* name;
  const char* operation;
};
constexpr Program programs[] = {{"all_gather_perf", "all_gather"},
                                {"reduce_scatter_perf", "reduce_scatter"},
                                {"all_reduce_perf", "all_reduce"},
                                {"alltoall_perf", "all_to_all"},
                                {"sendrecv_perf", "send_recv"}};

/// Bus bandwidth over algorithm bandwidth (doc/PERFORMANCE.md).
double bus_factor(const std::string& operation, std::int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  if (operation == "send_recv") return 1;
  return (operation == "all_reduce" ? 2 : 1) * (n - 1) / n;
}

/// By the program that the output names ("all_reduce_perf_mpi", too), else by the file's name.
std::string operation_of(const Run& run) {
  std::vector<std::string> known;
  for (const auto& p : programs) known.emplace_back(p.name);
  if (!run.program.empty()) {
    const auto program = std::filesystem::path(run.program).filename().string();
    for (const auto& p : programs)
      if (program.starts_with(p.name)) return p.operation;
    throw UsageError(run.at, program, "is not a program whose times a training step needs", known,
                     nearest_name(program, known));
  }
  const auto file = std::filesystem::path(run.at.file).filename().string();
  for (const auto& p : programs) {
    const std::string stem(p.name, std::string_view(p.name).rfind('_'));
    if (Regex("(^|[^a-z])" + stem + "([^a-z]|$)").found_in(file)) return p.operation;
  }
  throw UsageError(run.at, {}, "neither the output nor the file's name says which program ran; name the file after it",
                   known);
}

/// All GPUs of a run numbered host by host, and of each group the numbers.
struct Places {
  std::int64_t hosts = 0, a_host = 0;
  std::map<std::string, std::vector<std::int64_t>> groups;
};

Places places_of(const Run& run) {
  if (run.gpus.empty())
    throw UsageError(run.at, "Rank",
                     "no GPU is listed: the lines \"#  Rank ...\" under \"# Using devices\" are needed");
  Places result;
  std::vector<std::string> hosts;
  std::map<std::string, std::set<std::int64_t>> devices;
  for (const auto& gpu : run.gpus) {
    if (devices[gpu.host].empty()) hosts.push_back(gpu.host);
    if (!devices[gpu.host].insert(gpu.device).second)
      throw UsageError(run.at, "Rank", fmt::format("GPU {} of {} is listed twice", gpu.device, gpu.host));
  }
  result.hosts = static_cast<std::int64_t>(hosts.size());
  result.a_host = static_cast<std::int64_t>(devices.begin()->second.size());
  for (const auto& [host, list] : devices) {
    if (static_cast<std::int64_t>(list.size()) != result.a_host)
      throw UsageError(run.at, "Rank",
                       fmt::format("{} has {} GPUs and {} has {}: hosts must have equally many", devices.begin()->first,
                                   result.a_host, host, list.size()));
  }
  for (const auto& gpu : run.gpus) {
    const auto host = std::find(hosts.begin(), hosts.end(), gpu.host) - hosts.begin();
    const auto& list = devices.at(gpu.host);
    result.groups[gpu.group].push_back(host * result.a_host + std::distance(list.begin(), list.find(gpu.device)));
  }
  return result;
}

void place(Table& table, const Run& run, const Places& places) {
  table.groups = static_cast<std::int64_t>(places.groups.size());
  table.hosts = places.hosts;
  table.ranks = static_cast<std::int64_t>(places.groups.begin()->second.size());
  if (table.ranks < 2) throw UsageError(run.at, "Rank", "a group of one GPU sends nothing");
  for (const auto& [group, listed] : places.groups) {
    auto numbers = listed;
    std::sort(numbers.begin(), numbers.end());
    if (static_cast<std::int64_t>(numbers.size()) != table.ranks)
      throw UsageError(run.at, "Group", "groups must have equally many GPUs");
    const std::int64_t stride = numbers[1] - numbers[0];
    if (group == places.groups.begin()->first) table.stride = stride;
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      if (numbers[i] - numbers[i - 1] != table.stride)
        throw UsageError(run.at, "Group",
                         fmt::format("the GPUs of group {} do not stand evenly among the hosts", group));
    }
  }
}

Table table_of(const Run& run) {
  Table table;
  table.file = run.at.file;
  table.line = run.rows.empty() ? run.at.line : run.rows.front().at.line;
  table.operation = operation_of(run);
  place(table, run, places_of(run));
  for (const auto& row : run.rows) {
    const auto refuse = [&](const std::string& why) { return UsageError(row.at, row.key, why); };
    if (row.us.empty()) throw refuse("neither a time out of place nor one in place");
    if (row.bytes == 0) continue;  // fewer bytes than ranks: nothing was sent
    if (!(row.us.front() > 0)) throw refuse("a time of 0");
    // Rounded to hundredths; what does not fit was printed by another program or for other ranks.
    const double factor = bus_factor(table.operation, table.ranks), bus = row.busbw.empty() ? 0 : row.busbw.front();
    if (row.algbw > 1 && std::abs(bus - factor * row.algbw) > 0.02 * bus + 0.01)
      throw refuse(
          fmt::format("busbw is {:.3f} of algbw; {} among {} ranks has {:.3f}: another program, or ranks that "
                      "are not listed",
                      bus / row.algbw, table.operation, table.ranks, factor));
    MeasuredExchange m;
    m.operation = table.operation;
    m.ranks = table.ranks;
    m.stride = table.stride;
    m.alone = table.stride == 1;  // the last GPU of a host sends to the next one's first
    m.bytes = row.bytes;
    m.ns = us_to_ns(row.us.front());
    const auto [least, most] = std::minmax_element(row.us.begin(), row.us.end());
    m.spread = (*most - *least) / (*most + *least);
    m.count = run.iterations;
    m.source = "nccl-tests: " + std::filesystem::path(table.file).filename().string();
    table.rows.push_back(m);
    table.busbw = std::max(table.busbw, bus);
  }
  if (table.rows.empty()) throw UsageError(run.at, {}, "the table has no rows: did the program end early?");
  return table;
}

std::string version_of(const std::string& code) {  // 22907: 2.29.7; before 2.9 four digits (nccl.h)
  const int v = code.empty() ? 0 : std::stoi(code);
  return v >= 10000 ? fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100)
                    : fmt::format("{}.{}.{}", v / 1000, v / 100 % 10, v % 100);
}

}  // namespace

bool recognise(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;  // a pipe gives what it holds only once
  constexpr std::size_t looked_at = 1 << 20;
  std::string head(looked_at, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  if (head.starts_with('{')) {
    return Regex(R"(^\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:)").found_in(head.substr(0, 200));
  }
  return head.find("# nThread ") != std::string::npos;
}

Result import_files(const std::vector<std::string>& files, const Options& options) {
  Result result;
  std::vector<MeasuredExchange> all;
  std::set<std::string> devices, versions;
  std::int64_t a_host = 0;
  for (const auto& file : files) {
    const std::string content = read_file(file);
    const auto runs = content.starts_with('{') ? std::vector<Run>{read_json(file, content)} : read_text(file, content);
    if (runs.empty()) throw UsageError({file, 0}, {}, "is not output of nccl-tests: it has no line \"# nThread ...\"");
    for (const auto& run : runs) {
      result.tables.push_back(table_of(run));
      const auto& rows = result.tables.back().rows;
      all.insert(all.end(), rows.begin(), rows.end());
      for (const auto& gpu : run.gpus) devices.insert(gpu.device_name);
      if (!run.nccl.empty()) versions.insert(version_of(run.nccl));
      const std::int64_t here = places_of(run).a_host;
      if (a_host != 0 && a_host != here)
        throw UsageError(run.at, "Rank",
                         fmt::format("{} GPUs a host, {} in the files before: one cluster at a time", here, a_host));
      a_host = here;
    }
  }
  if (devices.size() != 1)
    throw UsageError({files.front(), 0}, "Rank",
                     fmt::format("GPUs of {} kinds: {}", devices.size(), fmt::join(devices, ", ")));

  profile::Profile& p = result.profile;
  p.name = options.name;
  p.device = profile::device_named(*devices.begin());
  if (p.device.name.empty()) p.device.name = *devices.begin();
  if (!versions.empty()) p.versions["nccl"] = fmt::format("{}", fmt::join(versions, ", "));
  p.provenance.push_back(options.command);
  result.topology.gpus_per_node = a_host;
  result.topology.domain = options.nvlink_domain.value_or(a_host);
  if (result.topology.domain % a_host != 0)
    throw UsageError({"command line", 0}, "--nvlink-domain",
                     fmt::format("a multiple of the {} GPUs of a host", a_host));
  result.network = profile::add_exchanges(p, result.topology, all);
  p.prepare();
  return result;
}

std::string text(const Result& result) {
  pipewright::Table table({"operation", "ranks", "hosts", "groups", "sizes", "smallest us", "busbw GB/s"});
  for (const auto& t : result.tables) {
    table.add({t.operation, fmt::format("{}", t.ranks), fmt::format("{}", t.hosts), fmt::format("{}", t.groups),
               fmt::format("{}", t.rows.size()), fmt::format("{:.1f}", ns_to_us(t.rows.front().ns)),
               fmt::format("{:.1f}", t.busbw)});
  }
  const auto& n = result.network;
  std::string out = table.text();
  out += fmt::format("{} shapes measured", n.samples);
  if (n.without_family > 0)
    out += fmt::format("; {} times of groups that leave GPUs of their hosts out count for the network's figures only",
                       n.without_family);
  out += "\n\nWhat a scenario may state of this cluster (with the profile in front of yours it need not):\n\n";
  out += fmt::format("cluster:\n  gpus_per_node: {}\n", result.topology.gpus_per_node);
  if (result.topology.domain != result.topology.gpus_per_node)
    out += fmt::format("  nvlink_domain: {}\n", result.topology.domain);
  if (n.gbytes_per_s || n.alone_gbytes_per_s) {
    const double card = n.gbytes_per_s ? *n.gbytes_per_s * static_cast<double>(n.gpus_per_port) : *n.alone_gbytes_per_s;
    if (n.gpus_per_port > 1)
      out += fmt::format("  nics_per_node: {}\n",
                         std::max<std::int64_t>(1, result.topology.gpus_per_node / n.gpus_per_port));
    out += fmt::format("  network:\n    bandwidth_gbytes_per_s: {:.1f}\n", card);
    if (n.latency_us) out += fmt::format("    latency_us: {:.1f}\n", *n.latency_us);
  } else {
    out += "\nNothing was measured between hosts with messages of 1 MiB and more.\n";
  }
  return out;
}

std::string json(const Result& result) {
  nlohmann::ordered_json root;
  root["profile"] = result.profile.name;
  root["gpus_per_node"] = result.topology.gpus_per_node;
  root["nvlink_domain"] = result.topology.domain;
  const auto& n = result.network;
  const auto optional = [](const std::optional<double>& v) {
    return v ? nlohmann::ordered_json(*v) : nlohmann::ordered_json();
  };
  root["network"] = {{"gbytes_per_s_a_gpu", optional(n.gbytes_per_s)},
                     {"gbytes_per_s_alone", optional(n.alone_gbytes_per_s)},
                     {"gpus_per_port", n.gpus_per_port},
                     {"latency_us", optional(n.latency_us)}};
  for (const auto& t : result.tables) {
    root["tables"].push_back({{"file", t.file},
                              {"line", t.line},
                              {"operation", t.operation},
                              {"ranks", t.ranks},
                              {"hosts", t.hosts},
                              {"groups", t.groups},
                              {"sizes", t.rows.size()},
                              {"smallest_us", ns_to_us(t.rows.front().ns)},
                              {"busbw_gbytes_per_s", t.busbw}});
  }
  return root.dump(2) + "\n";
}

}  // namespace pipewright::nccl_tests
