// A GPU that was not measured from one that was, sample by sample, by their data sheets.
//
// A kernel that moves B bytes and computes F FLOP in t is bound by memory for the share s of its time and by the tensor
// cores for the share c,
//
//     s = B / (t x sustained bytes/ns)     c = F / (t x sustained FLOP/ns),     sustained: the best that is measured,
//
// and neither bounds what is left: launch, latencies, edges of tiles.
//
// Another memory beside the same chip, m times as slow: what bounds a kernel overlaps in part, shares add up with an
// exponent,
//
//     s^e + others^e = 1, then     t x (s^e m^e + others^e)^(1/e)
//
// e = 1 would be one after the other, a large e all hidden behind the longest. What was measured on an H200 and on an
// H100, 4.8 and 3.35 TB/s (profiles/h200-sxm.json, h100-sxm.json: 1771 kernels that memory bounds, 5253 products), says
// 1.75: 6 and 4 % off in the rms; 15 and 7 % with all hidden, 7 % one after the other.
//
// Another chip, with memory slower by m and tensor cores by r (below 1: faster): what a family sustains is its own
// best, for what else bounds it grows with the chip, too (cuDNN's norms on a GB200, docs/public-tables.md), and
//
//     t x max(1 + max(c r, s min(m, 1)) - max(c, s),  s m)
//
// Slower memory is first hidden behind what it did not bound, until its traffic alone lasts longer; what is faster
// shortens only its own share, down to the other's; what neither bounds keeps its time.
//
// Transfers between GPUs and with the host are scaled alike by the bandwidth of their link. What load adds to kernel
// times is scaled where published products of both tell it (DataSheet::under_load). What nothing tells stays as
// measured: host costs, contention, latencies.
//
// FP8 products of dgrad and wgrad switch cuBLASLt's fast accumulation off. That "has an effect on Ada, Hopper" only
// (cuBLAS, CUBLASLT_MATMUL_DESC_FAST_ACCUM): other tensor cores keep full sums and pay nothing for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

// A family that stays below this share of the peak for every size is bound by something else than memory.
constexpr double streams_from = 0.5;
constexpr double overlap = 1.75;  ///< e
/// What it was off for kernels that were measured on both, rms.
constexpr double error_of_memory = 0.062, error_of_products = 0.040;
// Buffers that fit into the L2 (of 50 to 126 MB) may not travel to memory at all: they say nothing of its speed.
constexpr double beyond_l2 = 200e6;

/// How the source's data sheet compares: times as long on the GPU that is derived.
struct Slower {
  double memory = 1, bf16 = 1, fp8 = 1, nvlink = 1, host = 1;
};

/// A derived profile's provenance begins so; before it stands what was measured on the GPU itself.
constexpr std::string_view made_of = "derived from ";

bool same_chip(const DataSheet& a, const DataSheet& b) {
  return a.device.compute_capability == b.device.compute_capability &&
         a.device.multiprocessors == b.device.multiprocessors;
}

/// 0: the derived GPU has none of it.
double slower(const Figure& from, const Figure& to) { return to.value > 0 ? from.value / to.value : 0; }

/// The best rate (per ns) over the samples of one family; `least`: only of samples with so much work.
double best_rate(const std::vector<Sample>& samples,
                 const std::function<double(const std::vector<std::int64_t>&)>& work, double least) {
  double best = 0;
  for (const auto& s : samples)
    if (const double w = work(s.dims); w >= least) best = std::max(best, w / s.ns);
  return best;
}

bool in_fp8(const Family& f) { return f.load == Load::matrix && f.name.find(".fp8") != std::string::npos; }
bool copies_to_host(const Family& f) { return f.name == "copy.d2h" || f.name == "copy.h2d"; }

class Deriver {
 public:
  Deriver(const Profile& source, const DataSheet& from, const DataSheet& to)
      : source_(source), same_chip_(profile::same_chip(from, to)), peak_(from.memory_gbytes_per_s.value) {
    slower_ = {slower(from.memory_gbytes_per_s, to.memory_gbytes_per_s), slower(from.bf16_tflops, to.bf16_tflops),
               slower(from.fp8_tflops, to.fp8_tflops), slower(from.nvlink_gbytes_per_s, to.nvlink_gbytes_per_s),
               slower(from.host_gbytes_per_s, to.host_gbytes_per_s)};
    for (const auto& [name, samples] : source.samples) {
      const Family& f = family(name);
      if (f.load == Load::memory) streamed_ = std::max(streamed_, memory_rate(f, samples));
    }
    if (streamed_ <= 0) streamed_ = peak_;
  }

  const Slower& ratios() const { return slower_; }

  /// The samples of a family on the derived GPU; none where its tensor cores lack the precision.
  std::vector<Sample> samples(const std::string& name, std::vector<Sample> list) const {
    const Family& f = family(name);
    const double cores = in_fp8(f) ? slower_.fp8 : slower_.bf16;
    const bool computes = f.load == Load::matrix || f.load == Load::attention;
    if (computes && cores <= 0) return {};
    const double wire = f.load == Load::network && name.ends_with(".nvlink") ? slower_.nvlink
                        : copies_to_host(f)                                  ? slower_.host
                                                                             : 1;
    const double own = f.load == Load::memory ? memory_rate(f, list) : 0;
    const double sustained = own >= streams_from * peak_ && !same_chip_ ? own : streamed_;
    const double flops = computes ? best_rate(list, f.flop, 0) : 0;
    const double carried = wire != 1 ? best_rate(list, f.bytes, 0) : 0;
    for (auto& s : list) {
      double factor = 1;
      if (computes || f.load == Load::memory) {
        const double memory = std::min(1.0, f.bytes(s.dims) / (s.ns * sustained));
        if (same_chip_) {
          factor = beside_other_memory(memory);
          s.spread = std::hypot(s.spread, f.load == Load::memory ? error_of_memory : error_of_products);
        } else {
          const double tensor = flops > 0 ? std::min(1.0, f.flop(s.dims) / (s.ns * flops)) : 0;
          const double kept =
              1 + (std::max(tensor * cores, memory * std::min(slower_.memory, 1.0)) - std::max(tensor, memory));
          factor = std::max(kept, memory * slower_.memory);
        }
      } else if (carried > 0) {
        const double share = std::min(1.0, f.bytes(s.dims) / (s.ns * carried));
        factor = 1 + share * (wire - 1);
      }
      s.ns *= factor;
      s.origin = Origin::derived;
      s.source = factor != 1 ? fmt::format("{} x {:.3f}", source_.name, factor) : source_.name;
    }
    return list;
  }

 private:
  double beside_other_memory(double share) const {
    return std::pow(1 + std::pow(share, overlap) * (std::pow(slower_.memory, overlap) - 1), 1 / overlap);
  }
  double memory_rate(const Family& f, const std::vector<Sample>& samples) const {
    return std::min(best_rate(samples, f.bytes, beyond_l2), peak_);
  }

  const Profile& source_;
  const bool same_chip_;
  double peak_;          ///< B/ns of the device memory
  double streamed_ = 0;  ///< best of all families, B/ns
  Slower slower_;
};

bool promotes_sums(const Device& gpu) { return gpu.compute_capability == 89 || gpu.compute_capability == 90; }

/// The samples of an FP8 family without what the split accumulator costs; what it does not concern stays as it is.
std::vector<Sample> without_promotion(const Profile& source, const std::string& name, std::vector<Sample> list) {
  const auto at = name.find(".fp8.tn.");
  if (at == std::string::npos) return list;
  const std::string plain = name.substr(0, at + std::string_view(".fp8.tn").size()), split = plain + ".split";
  if (!source.samples.contains(plain) || !source.samples.contains(split)) return list;
  if (name == split) return source.samples.at(plain);
  for (auto& s : list) s.ns *= std::min(1.0, source.time({plain, s.dims})->ns / source.time({split, s.dims})->ns);
  return list;
}

/// "memory at 3.35 instead of 4.8 TB/s", and so on for what differs.
std::string differences(const DataSheet& from, const DataSheet& to) {
  std::string text;
  const auto add = [&](const char* what, const Figure& a, const Figure& b, double unit, const char* unit_name) {
    if (a.value == b.value) return;
    if (!text.empty()) text += ", ";
    text += b.value > 0 ? fmt::format("{} at {:g} instead of {:g} {}", what, b.value / unit, a.value / unit, unit_name)
                        : fmt::format("no {}", what);
  };
  add("memory", from.memory_gbytes_per_s, to.memory_gbytes_per_s, 1000, "TB/s");
  add("bf16", from.bf16_tflops, to.bf16_tflops, 1, "TFLOP/s");
  add("FP8", from.fp8_tflops, to.fp8_tflops, 1, "TFLOP/s");
  add("NVLink", from.nvlink_gbytes_per_s, to.nvlink_gbytes_per_s, 1, "GB/s");
  add("host link", from.host_gbytes_per_s, to.host_gbytes_per_s, 1, "GB/s");
  return (same_chip(from, to) ? "the same die" : "by their data sheets") + (text.empty() ? text : "; " + text);
}

/// Clocks of a part whose load published products tell beside the source's, and how well.
void load_as_told(Profile& p, const Profile& source, const DataSheet::UnderLoad& under) {
  for (auto& law : p.clocks) {
    const Clocks* matrix = source.clocks_for(law.precision, "matrix");
    if (matrix != nullptr && !matrix->rows.empty())
      law.scale_load(under.share(law.precision, matrix->rows.back().matrix));
  }
  p.provenance.insert(
      p.provenance.begin() + 1,
      fmt::format("clocks: what full load makes of a product's time is {:.3f} (bf16) and {:.3f} (fp8) of {}'s ({})",
                  under.bf16, under.fp8, under.than, under.source));
  // The ratio of two parts is known to `spread`: so much of what load makes of a time, here as a share of what it adds.
  const Clocks* matrix = p.clocks_for("bf16", "matrix");
  const auto law = p.scalars.find("clocks.law_spread");
  if (matrix == nullptr || law == p.scalars.end() || matrix->rows.back().matrix <= 1) return;
  const double full = matrix->rows.back().matrix, share = under.spread * full / (full - 1);
  law->second.value = std::round(1e3 * std::hypot(law->second.value, share)) / 1e3;
  law->second.source += fmt::format("; {:.3f} more, of the other part's law", share);
}

/// One chip's law under load beside what published products of other chips tell of the same part: how far captures of
/// it lie apart, as a share of what load adds.
std::optional<Scalar> spread_of_laws(const Profile& told, const Profile& measured) {
  double squares = 0;
  int count = 0;
  std::string text;
  for (const Clocks& law : measured.clocks) {
    const Clocks* other = told.clocks_for(law.precision, "matrix");
    if (law.kernels != "matrix" || other == nullptr || other->rows.empty() || law.rows.empty()) continue;
    const double adds = law.rows.back().matrix - 1, said = other->rows.back().matrix - 1;
    if (adds <= 0) continue;
    squares += std::pow(said / adds - 1, 2), ++count;
    text += fmt::format("{}{} {:.3f} and {:.3f}", text.empty() ? "" : ", ", law.precision, adds, said);
  }
  if (count == 0) return std::nullopt;
  return Scalar{
      std::round(1e3 * std::sqrt(squares / count)) / 1e3, 0, Origin::derived,
      "what full load adds to a product's time on the captured chip and, by published products, on others: " + text};
}

}  // namespace

Profile derive(const Profile& source, const DataSheet& to) {
  if (const DataSheet* from = find_data_sheet(source.device.name)) return derive(source, *from, to);
  std::vector<std::string> known;
  for (const auto& sheet : data_sheets()) known.push_back(sheet.device.name);
  throw UsageError({source.name, 0}, "device",
                   "no data sheet of \"" + source.device.name + "\": what it is faster or slower than is not known",
                   known, nearest_name(source.device.name, known));
}

Profile derive(const Profile& source, const DataSheet& from, const DataSheet& to) {
  const Deriver deriver(source, from, to);
  Profile p = source;
  p.name = to.profile;
  p.device = to.device;
  p.origin = Origin::derived;
  p.memory = Bytes(static_cast<std::int64_t>(to.memory_bytes.value));
  p.interpolation.clear();
  p.provenance.insert(p.provenance.begin(),
                      fmt::format("{}{} ({}): {}", made_of, source.name, source.device.name, differences(from, to)));
  const bool fewer_sums = promotes_sums(source.device) && !promotes_sums(to.device);
  for (auto& [name, samples] : p.samples) {
    if (fewer_sums) samples = without_promotion(source, name, std::move(samples));
    samples = deriver.samples(name, std::move(samples));
  }
  std::erase_if(p.samples, [](const auto& each) { return each.second.empty(); });
  for (auto& l : p.links) {
    l.origin = Origin::derived;
    if (l.name == "nvlink" && deriver.ratios().nvlink > 0) l.gbytes_per_s /= deriver.ratios().nvlink;
  }
  for (auto& [name, s] : p.scalars) {
    s.origin = Origin::derived;
    s.source = fmt::format("as on {}: {}", source.name, s.source);
    // How fast another architecture lays out blocks that find nothing to do is known to its order alone.
    constexpr double other_architecture = 0.5;
    if (name.ends_with(".empty_us") && source.device.compute_capability != to.device.compute_capability)
      s.spread = other_architecture;
  }
  if (to.under_load && to.under_load->than == from.profile) load_as_told(p, source, *to.under_load);
  // How much GPUs of a host slow each other's copies belongs to the way to its memory: another link, another way.
  if (from.host_gbytes_per_s.value != to.host_gbytes_per_s.value)
    std::erase_if(p.scalars, [](const auto& each) { return each.first.starts_with("contention.gpus_"); });
  // Another part stands in another host. Where nothing says in which: two were measured, 1 and 1.38 in the same costs,
  // the mean of both ratios.
  constexpr double mean_host = 1.175;
  p.scalars["host.time_factor"] = {mean_host, 0, Origin::derived,
                                   "mean of two hosts that differ by 1.38 (host.spread)"};
  // Who told of such hosts told of his own: others' lie as far apart as was measured (host.spread).
  if (to.host_time_factor.value > 0)
    p.scalars["host.time_factor"] = {to.host_time_factor.value, 0, Origin::published,
                                     std::string(to.host_time_factor.source)};
  // How hosts of one machine differ was measured on virtual machines of the measured part.
  for (const char* name : {"host.rank_spread", "host.slow_share", "host.slow_factor", "host.slowest_factor"})
    p.scalars.erase(name);
  p.prepare();
  return p;
}

Profile with_measured(const Profile& derived, const std::vector<Profile>& measured) {
  std::vector<Profile> all;
  for (Profile own : measured) {
    if (own.device.name != derived.device.name)
      throw UsageError({own.name, 0}, "device",
                       "measured on \"" + own.device.name + "\", the data sheet is of \"" + derived.device.name + "\"");
    const bool as_a_whole = own.origin == Origin::measured;
    for (auto& [name, samples] : own.samples)
      std::erase_if(samples, [](const Sample& s) { return s.origin != Origin::measured; });
    std::erase_if(own.samples, [](const auto& each) { return each.second.empty(); });
    std::erase_if(own.links, [](const Link& l) { return l.origin != Origin::measured; });
    std::erase_if(own.scalars, [](const auto& each) { return each.second.origin != Origin::measured; });
    if (!as_a_whole) own.clocks.clear();
    own.provenance.erase(
        std::ranges::find_if(own.provenance, [](const auto& line) { return line.starts_with(made_of); }),
        own.provenance.end());
    all.push_back(std::move(own));
  }
  std::optional<Scalar> spread;
  if (const DataSheet* sheet = find_data_sheet(derived.device.name); sheet != nullptr && sheet->under_load)
    for (const Profile& own : all)
      if (!spread) spread = spread_of_laws(derived, own);
  all.push_back(derived);
  const Profile together = merge(all);
  Profile p = derived;
  p.origin = Origin::measured;
  p.samples = together.samples;
  p.clocks = together.clocks;
  p.links = together.links;
  p.scalars = together.scalars;
  p.versions = together.versions;
  p.interpolation.clear();
  if (spread) p.scalars["clocks.law_spread"] = *spread;
  std::vector<std::string> own;
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    std::ranges::copy_if(all[i].provenance, std::back_inserter(own),
                         [&](const std::string& line) { return std::ranges::find(own, line) == own.end(); });
  p.provenance.insert(p.provenance.begin(), own.begin(), own.end());
  p.prepare();
  return p;
}

}  // namespace pipewright::profile
