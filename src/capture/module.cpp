// Entry of the module that needs CUDA (libpipewright_capture.so).
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <ctime>
#include <map>
#include <set>

#include "block_scales.hpp"
#include "contention.hpp"
#include "grid.hpp"
#include "parts.hpp"

namespace pipewright::capture {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

/// "NVIDIA H200" -> "h200"
std::string short_name(std::string device) {
  if (device.rfind("NVIDIA ", 0) == 0) device = device.substr(7);
  for (char& c : device) c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return device;
}

/// False: the device does not work any more; what was measured before is valid.
bool measure_kernels(Lab& lab, Attention& attention, Session& session) {
  std::vector<profile::Key> keys;
  for (auto& key : session.options.keys.empty() ? grid(session.options.quick) : session.options.keys)
    if (session.wants(key)) keys.push_back(key);
  // Remaining time from the work that remains: matrix work at 650 TFLOP/s, traffic at 3 TB/s, a fixed part each.
  const auto weight = [](const profile::Key& key) {
    const auto& f = profile::family(key.family);
    return 6e-3 + 30 * std::max(f.flop(key.dims) / 650e12, f.bytes(key.dims) / 3e12);
  };
  double work = 0, work_done = 0;
  for (const auto& key : keys) work += weight(key);

  const Effort effort = session.options.quick ? Effort{5, 10, 0.02} : Effort{8, 24, 0.01};
  const auto start = std::chrono::steady_clock::now();
  int warm = 0;
  std::size_t done = 0;
  std::set<std::string> without;
  for (const auto& key : keys) {
    if (session.stop) {
      session.result.complete = false;
      break;
    }
    lab.reset();
    const auto lacking = lacks(lab.gpu, key.family);
    const auto op = lacking ? std::nullopt : make_op(lab, attention, key);
    if (lacking) {
      if (without.insert(key.family).second)
        session.result.warnings.push_back(fmt::format("{}: left out, {}", key.family, *lacking));
    } else if (!op) {
      session.result.warnings.push_back(fmt::format("{} {}: left out (memory too small, or no kernel in the library)",
                                                    key.family, fmt::join(key.dims, "x")));
    } else {
      try {
        const Measurement m = measure(lab, *op, effort);
        if (!m.cool) ++warm;
        session.result.profile.samples[key.family].push_back(sample_of(key.dims, m.ns));
      } catch (const std::runtime_error& error) {
        session.result.warnings.push_back(fmt::format("{} {}: {}", key.family, fmt::join(key.dims, "x"), error.what()));
        if (cudaDeviceSynchronize() != cudaSuccess) {
          session.result.warnings.push_back(
              "after that the device takes no work in this process: what comes after it is missing");
          session.result.complete = false;
          return false;
        }
        lab.activities->take();
      }
    }
    work_done += weight(key);
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    session.report({key.family, ++done, keys.size(), elapsed, elapsed / work_done * (work - work_done)});
  }
  if (warm > 0) {
    session.result.warnings.push_back(
        fmt::format("{} of {} shapes ended below full SM clock although bursts were short", warm, done));
  }
  return true;
}

}  // namespace
}  // namespace pipewright::capture

extern "C" void pipewright_capture_run(const pipewright::capture::Options& options,
                                       const std::function<void(const pipewright::capture::Progress&)>& report,
                                       const std::atomic<bool>& stop, pipewright::capture::Result& result) {
  using namespace pipewright::capture;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    throw pipewright::UsageError("capture needs an NVIDIA GPU and its driver; none was found");
  }
  Session session{options, report, stop, result, Wanted(options)};
  auto& profile = result.profile;
  const auto began = std::chrono::steady_clock::now();
  int nccl = 0;
  ncclGetVersion(&nccl);
  const auto describe = [&](Lab& lab) {
    profile.device = lab.gpu;
    profile.name = options.name.empty() ? short_name(profile.device.name) : options.name;
    profile.memory = pipewright::Bytes(lab.total_bytes);
    profile.versions = library_versions(lab);
    profile.versions["nccl"] = fmt::format("{}.{}.{}", nccl / 10000, nccl / 100 % 100, nccl % 100);
    profile.versions["captured"] = utc_now();
  };
  if (options.links && options.seat) {
    measure_links_between_hosts(session);
    if (result.written_here) {
      Lab lab(0, 0.01);
      describe(lab);
    }
  } else if (options.links) {
    {
      Lab lab(0, 0.01);
      describe(lab);
    }
    if (!stop) measure_host_copies(session, devices);
    if (!stop) measure_host_optimizer(session, devices);
    measure_links(session);
  } else {
    Lab lab(0, 0.8);
    describe(lab);
    Attention attention(lab);
    if (session.wants("memory.outside.context_bytes")) {
      load_layer_kernels(lab, attention);
      profile.scalars["memory.outside.context_bytes"] = {
          static_cast<double>(lab.context_bytes()), 0, pipewright::profile::Origin::measured,
          "CUDA context, cuBLASLt and cuDNN after the kernels of a layer in bf16 and FP8 have run (cudaMemGetInfo)"};
    }
    measure_host(lab, session, devices);
    if (!options.quick) measure_host_optimizer(session, 1);
    const bool works = measure_kernels(lab, attention, session);
    if (works && options.keys.empty() && !options.quick && !stop) measure_copies(lab, attention, session);
    if (works && options.sustained) measure_clocks(lab, attention, session);
    profile.provenance.push_back(fmt::format("cool SM clock {:.0f} MHz, power limit {:.0f} W", lab.max_mhz,
                                             lab.nvml->limit_watts().value_or(0)));
  }
  if (stop) result.complete = false;
  for (auto& [family, samples] : profile.samples) {
    std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.dims < b.dims; });
  }
  std::string command;
  for (const auto& argument : options.arguments) command += (command.empty() ? "" : " ") + argument;
  const int gpus = !options.links ? 1 : options.seat ? options.seat->ranks : devices;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  profile.provenance.insert(profile.provenance.begin(),
                            fmt::format("{} ({}, {} GPU{}, {:.0f} s{})", command, profile.versions["captured"], gpus,
                                        gpus > 1 ? "s" : "", seconds, result.complete ? "" : ", stopped early"));
}
