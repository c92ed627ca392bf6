// What is published of GPUs. To add one: a row here, `pipewright profile derive MEASURED --gpu NAME`, and once there is
// one to measure, `pipewright capture --name NAME`.
#include <algorithm>

#include "pipewright/profile.hpp"
#include "pipewright/rack.hpp"

namespace pipewright::profile {
namespace {

// Matrix products of aiconfigurator 095f58a, one collection (framework, version) of both parts at a time: the median
// ratio where they last more than 4 ms over that where they last 32 to 256 us, and of those the median
// (docs/public-tables.md). Of an H100 beside an H200 they say 0.945 and 0.962 (bf16, fp8); measured were 0.961 and
// 0.987.
DataSheet::UnderLoad under_load(const char* than, double bf16, double fp8) {
  constexpr double spread = 0.021;  // rms of what they are off there
  return {than, bf16, fp8, spread,
          "aiconfigurator 095f58a: products above 4 ms over those of 32 to 256 us, median of collections"};
}

// What Megatron-LM's functional tests say of Grace: 259 recorded runs of two trays of GB200 from January to August 2026
// whose steps wait for their hosts (tests/functional/iterations.tsv). Of 294 on DGX H100 they say 1.20, 1.00 to 1.68
// nine in ten.
void stands_on_grace(DataSheet& s) {
  s.host_time_factor = {1.67,
                        "median of 259 runs of Megatron-LM's functional tests on GB200, eight in ten 1.43 to 2.06"};
}

DataSheet h200_sxm() {
  constexpr std::string_view sheet = "NVIDIA H200 data sheet (SXM); tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "h200-sxm";
  // cudaDeviceProp of an H200 (driver 580, CUDA 13.0).
  s.device = device("NVIDIA H200", 132, 2048, 90, Bytes(60 << 20));
  s.memory_bytes = {150109880320, "cudaMemGetInfo on an H200"};
  s.memory_gbytes_per_s = {4800, sheet};
  s.bf16_tflops = {989.5, sheet};
  s.fp8_tflops = {1979, sheet};
  s.nvlink_gbytes_per_s = {450, sheet};
  s.host_gbytes_per_s = {64, sheet};
  s.power_watts = {700, sheet};
  s.network_gbits = {400, "NVIDIA DGX H200 data sheet: ConnectX-7"};
  return s;
}

DataSheet h100_sxm() {
  constexpr std::string_view sheet = "NVIDIA H100 data sheet (SXM5); tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "h100-sxm";
  // torch's device properties of this name, as printed in published logs; L2: NVIDIA H100 white paper.
  s.device = device("NVIDIA H100 80GB HBM3", 132, 2048, 90, Bytes(50 << 20));
  s.memory_bytes = {
      81089.0 * (1 << 20),
      "total_memory=81089MB in torch 2.7's device properties under CUDA 12.8, as printed in published logs "
      "(81082 to 81090 MiB by driver)"};
  s.memory_gbytes_per_s = {3350, sheet};
  s.bf16_tflops = {989.5, sheet};
  s.fp8_tflops = {1979, sheet};
  s.nvlink_gbytes_per_s = {450, sheet};
  s.host_gbytes_per_s = {64, sheet};
  s.power_watts = {700, sheet};
  s.network_gbits = {400, "NVIDIA DGX H100 data sheet: ConnectX-7"};
  s.under_load = under_load("h200-sxm", 0.945, 0.962);  // less of the same 700 W goes into five stacks of HBM3
  return s;
}

DataSheet b200_sxm() {
  constexpr std::string_view sheet =
      "NVIDIA DGX B200 data sheet, an eighth of it; tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "b200-sxm";
  // torch's device properties and cudaDeviceProp of this name, as printed in published logs (pytorch/ao pull request
  // 4002).
  s.device = device("NVIDIA B200", 148, 2048, 100, Bytes(253 << 19));
  s.memory_bytes = {182642.0 * (1 << 20), "total_memory=182642MB in torch's device properties, as printed in logs"};
  s.memory_gbytes_per_s = {7672, "7680 bits at 3996 MHz, both edges: cudaDeviceProp and nvidia-smi, pytorch/ao 4002"};
  s.bf16_tflops = {2250, sheet};
  s.fp8_tflops = {4500, sheet};
  s.nvlink_gbytes_per_s = {900, sheet};
  s.host_gbytes_per_s = {64, sheet};
  s.power_watts = {1000, sheet};
  s.network_gbits = {400, "NVIDIA DGX B200 data sheet: ConnectX-7"};
  s.under_load = under_load("gb200-nvl72", 0.951, 1.012);  // begins at a lower clock
  return s;
}

DataSheet b300_sxm() {
  constexpr std::string_view sheet =
      "NVIDIA DGX B300 data sheet, an eighth of it; tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "b300-sxm";
  // 148 multiprocessors, compute capability 10.3, 126 MB: published reports of "NVIDIA B300 SXM6 AC".
  s.device = device("NVIDIA B300 SXM6 AC", 148, 2048, 103, Bytes(253 << 19));
  s.memory_bytes = {
      274323.0 * (1 << 20),
      "275040 MiB in nvidia-smi, less the 717 MiB by which torch's figure of a B200 is below nvidia-smi's "
      "(183359 MiB)"};
  s.memory_gbytes_per_s = {7672, "as a B200's: 7680 bits at 3996 MHz, both edges; 7.30 TB/s are reached of it"};
  s.bf16_tflops = {2250, sheet};
  s.fp8_tflops = {4500, sheet};
  s.nvlink_gbytes_per_s = {900, sheet};
  s.host_gbytes_per_s = {64, sheet};
  s.power_watts = {1100, sheet};
  s.network_gbits = {800, "NVIDIA DGX B300 data sheet: ConnectX-8"};
  return s;
}

DataSheet gb200_nvl72() {
  constexpr std::string_view sheet =
      "NVIDIA GB200 NVL72 data sheet, a 72nd of it; tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "gb200-nvl72";
  s.device = device("NVIDIA GB200", 152, 2048, 100, Bytes(253 << 19));  // multiprocessors: published logs; L2: B200's
  s.memory_bytes = {184.31 * (1 << 30), "\"total capacity of 184.31 GiB\" in torch's messages, as printed in logs"};
  s.memory_gbytes_per_s = {8000, sheet};
  s.bf16_tflops = {2500, sheet};
  s.fp8_tflops = {5000, sheet};
  s.nvlink_gbytes_per_s = {900, sheet};
  s.host_gbytes_per_s = {225, "NVLink-C2C of a Grace Blackwell Superchip, 900 GB/s both ways, for its two GPUs"};
  s.power_watts = {1200, sheet};
  s.network_gbits = {400, "NVIDIA GB200 NVL72: ConnectX-7, one a GPU"};
  stands_on_grace(s);
  return s;
}

DataSheet gb300_nvl72() {
  constexpr std::string_view sheet =
      "NVIDIA GB300 NVL72 data sheet, a 72nd of it; tensor cores without sparsity, links one way";
  DataSheet s;
  s.profile = "gb300-nvl72";
  s.device = device("NVIDIA GB300", 152, 2048, 103, Bytes(253 << 19));  // multiprocessors: published logs; L2: B200's
  s.memory_bytes = {283491.0 * (1 << 20),
                    "284208 MiB in nvidia-smi (aiconfigurator, gb300.yaml), less the 717 MiB by which torch's figure "
                    "of a B200 is below nvidia-smi's (183359 MiB)"};
  s.memory_gbytes_per_s = {8000, sheet};
  s.bf16_tflops = {2500, sheet};
  s.fp8_tflops = {5000, sheet};
  s.nvlink_gbytes_per_s = {900, sheet};
  s.host_gbytes_per_s = {225, "NVLink-C2C of a Grace Blackwell Superchip, 900 GB/s both ways, for its two GPUs"};
  s.power_watts = {1400, sheet};
  s.network_gbits = {800, "NVIDIA GB300 NVL72: ConnectX-8, one a GPU"};
  stands_on_grace(s);
  s.under_load = under_load("gb200-nvl72", 0.908, 0.917);  // 1400 W for what had 1200
  return s;
}

}  // namespace

double DataSheet::UnderLoad::share(const std::string& precision, double full) const {
  const double here = std::max(1.0, full * (precision == "bf16" ? bf16 : fp8));
  return full > 1 ? (here - 1) / (full - 1) : 1;
}

const std::vector<DataSheet>& data_sheets() {
  static const std::vector<DataSheet> all = {h200_sxm(), h100_sxm(),    b200_sxm(),
                                             b300_sxm(), gb200_nvl72(), gb300_nvl72()};
  return all;
}

/// NVIDIA GB200 and GB300 NVL72 data sheets: 18 compute trays of two Grace CPUs and four GPUs.
std::optional<Rack> rack_of(const std::string& profile_name) {
  if (profile_name == "gb200-nvl72" || profile_name == "gb300-nvl72") return Rack{4, 72};
  return std::nullopt;
}

const DataSheet& data_sheet(const std::string& profile_name, const Position& where) {
  std::vector<std::string> known;
  for (const auto& sheet : data_sheets()) {
    if (sheet.profile == profile_name) return sheet;
    known.push_back(sheet.profile);
  }
  throw UsageError(where, "data sheet", "none of a GPU \"" + profile_name + "\"", known,
                   nearest_name(profile_name, known));
}

Device device_named(const std::string& name) {
  if (const DataSheet* sheet = find_data_sheet(name)) return sheet->device;
  Device unknown;
  unknown.name = name;
  return unknown;
}

const Device& assumed_device() { return data_sheet("h200-sxm").device; }

const DataSheet* find_data_sheet(const std::string& device_name) {
  for (const auto& sheet : data_sheets())
    if (sheet.device.name == device_name) return &sheet;
  return nullptr;
}

}  // namespace pipewright::profile
