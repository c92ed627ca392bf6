// Tables of others as a profile. docs/public-tables.md says how each was measured and what follows.
#include "pipewright/public_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "csv_table.hpp"
#include "gemm_tables.hpp"
#include "robust_statistics.hpp"
#include "simumax.hpp"

namespace pipewright::tables {
namespace {

using profile::Origin;
using profile::Profile;
using profile::Sample;

/// The collections that are read of a GPU. Products: one framework and version for all GPUs, the newest that was
/// collected on all of them by the scripts as they stand. Long runs: the pairs of versions whose kernels agree.
struct Collection {
  std::string_view profile, system;
  struct Pair {
    std::string_view dtype, system, framework, long_version, short_version;
  };
  std::vector<Pair> throttles;
};
constexpr std::string_view framework = "trtllm", version = "1.3.0rc20", nccl = "2.29.2";

const Collection& collection(const std::string& profile_name) {
  using P = Collection::Pair;
  static const std::vector<P> gb200 = {P{"bfloat16", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"},
                                       P{"fp8", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"},
                                       P{"nvfp4", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"}};
  static const std::vector<Collection> all = {
      {"b200-sxm",
       "b200_sxm",
       {P{"bfloat16", "b200_sxm", "vllm", "0.22.0", "0.24.0"}, gb200[1],
        P{"nvfp4", "b200_sxm", "vllm", "0.22.0", "0.24.0"}}},
      {"gb200-nvl72", "gb200", gb200},
      {"gb300-nvl72", "gb300", gb200},
      {"h200-sxm", "h200_sxm", {P{"bfloat16", "h200_sxm", "vllm", "0.22.0", "0.24.0"}}},
      {"h100-sxm", "h100_sxm", {P{"bfloat16", "h200_sxm", "vllm", "0.22.0", "0.24.0"}}}};
  std::vector<std::string> known;
  for (const auto& each : all) {
    if (each.profile == profile_name) return each;
    known.emplace_back(each.profile);
  }
  throw UsageError({"command line", 0}, "--gpu", "aiconfigurator's tables are not read for " + profile_name, known,
                   nearest_name(profile_name, known));
}

/// Shapes that are kept: the profile interpolates between them.
bool kept(const Product& p) {
  static const std::set<std::int64_t> tokens = {1024, 2048, 4096, 8192, 16384, 32768};
  static const std::set<std::int64_t> features = {512, 1024, 2048, 3072, 4096, 7168, 8192, 16384, 65536};
  return tokens.contains(p[0]) && features.contains(p[1]) && features.contains(p[2]);
}

double log_of_90_percent(double ratio) {
  constexpr double sigmas = 1.645;  // of a 90 % interval
  return std::abs(std::log(ratio)) / sigmas;
}

class Builder {
 public:
  Builder(const Sources& sources, const Profile& measured, const profile::DataSheet& gpu)
      : sources_(sources), gpu_(gpu), from_(collection(gpu.profile)), derived_(profile::derive(measured, gpu)) {
    result_.profile = derived_;
    result_.profile.interpolation.clear();
    commit_ = read_file(sources.aiconfigurator + "/commit.txt").substr(0, 7);
    if (!sources.simumax.empty()) simumax_.emplace(sources.simumax);
  }

  Result build() {
    products();
    grouped_and_casts();
    collectives();
    if (simumax_) attention();
    derived_errors();
    clocks();
    network_card();
    provenance();
    result_.profile.prepare();
    return std::move(result_);
  }

 private:
  std::string table(std::string_view what) const { return fmt::format("aiconfigurator {} {}", commit_, what); }

  double derived_ns(const std::string& family, const std::vector<std::int64_t>& dims) const {
    return derived_.time({family, dims})->ns;
  }

  void compare(const std::string& family, const std::string& source, std::vector<double> ratios) {
    if (ratios.empty()) return;
    Comparison c;
    c.family = family;
    c.table = source;
    c.shapes = ratios.size();
    c.median = traces::median(ratios);
    c.low = traces::quantile(ratios, 0.05);
    c.high = traces::quantile(ratios, 0.95);
    result_.comparisons.push_back(c);
  }

  Products collected(std::string_view system, std::string_view of, std::string_view at, std::string_view dtype) const {
    return read_products(sources_.aiconfigurator, std::string(system), std::string(of), std::string(at),
                         std::string(dtype));
  }

  Throttle throttle(std::string_view dtype) const {
    for (const auto& p : from_.throttles) {
      if (p.dtype == dtype)
        return {collected(p.system, p.framework, p.short_version, dtype),
                collected(p.system, p.framework, p.long_version, dtype)};
    }
    return {{}, {}};
  }

  /// What other frameworks' collections of the same GPU say of the same product: half their spread and their bias.
  double frameworks_differ(const Products& ours, std::string_view dtype) const {
    std::vector<double> logs;
    for (const auto& [shape, run] : collected(from_.system, "sglang", "0.5.14", dtype)) {
      const auto found = ours.find(shape);
      if (found != ours.end() && kept(shape)) logs.push_back(std::log(run.ns / found->second.ns));
    }
    if (logs.empty()) return 0;
    const double bias = traces::median(logs);
    return std::hypot(bias, (traces::quantile(logs, 0.84) - traces::quantile(logs, 0.16)) / 2);
  }

  /// A B200's products in SimuMax's file over the same under full load by aiconfigurator.
  double tables_differ() {
    if (!simumax_) return 1;
    const auto of_b200 = collected("b200_sxm", framework, version, "bfloat16");
    const auto& b200 = collection("b200-sxm").throttles.front();
    const Throttle full(collected(b200.system, b200.framework, b200.short_version, b200.dtype),
                        collected(b200.system, b200.framework, b200.long_version, b200.dtype));
    std::vector<double> ratios;
    for (const auto& p : simumax_->products()) {
      const auto found = of_b200.find(p.shape);
      if (found == of_b200.end()) continue;
      const double cool = found->second.ns / full.within(found->second.ns);
      ratios.push_back(p.ns / (cool * full.full()));
    }
    compare("gemm.bf16, B200 under full load", "SimuMax over aiconfigurator", ratios);
    return ratios.empty() ? 1 : traces::median(ratios);
  }

  struct Precision {
    std::string_view dtype, throttle;            ///< theirs; whose long runs tell its clock
    std::string_view also;                       ///< another of theirs that holds this product and more; empty: none
    std::string_view plain, hopper;              ///< our family, and the derived one that it stands beside
    std::vector<std::string_view> variants;      ///< endings: wgrad, dgrad
    std::vector<std::string_view> quantisation;  ///< kernels that their time holds too, one each over tokens x k
    double of_theirs = 1;                        ///< the product over theirs of `dtype`
  };

  /// The products of one precision; variants as much longer as the derived ones are.
  void of_precision(const Precision& p, double tables_differ) {
    const Products all = collected(from_.system, framework, version, p.dtype);
    const Products also = p.also.empty() ? Products{} : collected(from_.system, framework, version, p.also);
    const Throttle clock = throttle(p.throttle);
    const std::string plain(p.plain), hopper(p.hopper);
    const double spread = std::hypot(frameworks_differ(all, p.dtype), log_of_90_percent(tables_differ));
    const std::string theirs =
        p.of_theirs == 1 ? std::string(p.dtype) : fmt::format("{} x {:.3f}", p.dtype, p.of_theirs);
    const std::string source =
        table(fmt::format("{} {} {}{}{}", framework, version, theirs, p.also.empty() ? "" : " or ", p.also));
    std::vector<double> ratios;
    std::map<std::string, std::vector<Sample>> made;
    for (auto [shape, run] : all) {
      if (!kept(shape)) continue;
      const auto alone = [&](double taken) {
        double ns = taken / clock.within(taken);
        for (const auto kernel : p.quantisation) ns -= derived_ns(std::string(kernel), {shape[0] * shape[2]});
        return ns;
      };
      double ns = alone(run.ns) * p.of_theirs;
      if (const auto other = also.find(shape); other != also.end()) {
        run.ns = std::min(run.ns, other->second.ns);
        ns = std::min(ns, alone(other->second.ns));
      }
      const std::vector<std::int64_t> dims = {shape[1], shape[0], shape[2]};
      if (ns < run.ns / 2) continue;  // their time is that of the quantisation
      const double ours = derived_ns(hopper, dims);
      ratios.push_back(ns / ours);
      made[plain].push_back({dims, ns, spread, 1, Origin::published, source});
      for (const auto variant : p.variants) {
        const std::string ending(variant);
        const std::string name = p.hopper == "gemm.bf16.tn" ? "gemm.bf16" + ending : plain + ending;
        const std::string alike = p.hopper == "gemm.bf16.tn" ? "gemm.bf16" + ending : hopper + ending;
        const double longer = derived_ns(alike, dims) / ours;
        made[name].push_back({dims, ns * longer, spread, 1, Origin::published, source});
      }
    }
    for (auto& [name, samples] : made) {
      std::ranges::sort(samples, {}, &Sample::dims);
      result_.profile.samples[name] = std::move(samples);
    }
    anchors_[plain] = ratios.empty() ? 1 : traces::median(ratios);
    spreads_[plain] = spread;
    if (p.dtype == "bfloat16") full_load_["bf16"] = clock.full();
    if (p.throttle == "fp8") full_load_["fp8"] = clock.full();
    compare(plain, source, std::move(ratios));
  }

  bool blackwell() const { return gpu_.device.compute_capability >= 100; }

  void products() {
    const double differ = blackwell() ? tables_differ() : 1;
    const std::vector<std::string_view> layouts = {".nn", ".nt", ".nt.acc_f32", ".nt.acc_bf16"},
                                        wgrads = {".acc_f32", ".acc_bf16", ".out_bf16"},
                                        tensorwise = {".split", ".acc_f32", ".acc_bf16", ".out_bf16"};
    of_precision({"bfloat16", "bfloat16", "", "gemm.bf16.tn", "gemm.bf16.tn", layouts, {}}, differ);
    if (!blackwell()) return;  // their FP8 on Hopper is another library's kernel
    // Per tensor their time holds more than a cast (1.5 times ours on an H200), by block the scales of every block, at
    // the same rate of the tensor cores: the product alone lasts no longer than either. The scales' price: twelve
    // products of a layer on a B300, quantized before, ms by tensor over MXFP8 (Transformer Engine d0067d0d,
    // docs/examples/gemm_profiling/gemm_profiling.rst).
    constexpr double without_scales = 6.812 / 7.161;
    of_precision({"fp8_block", "fp8", "fp8", "gemm.fp8.tn", "gemm.fp8.tn", tensorwise, {"cast.fp8"}, without_scales},
                 differ);
    of_precision({"fp8_block", "fp8", "", "gemm.mxfp8.tn", "gemm.fp8.tn", wgrads, {"cast.fp8"}}, differ);
    of_precision({"nvfp4", "nvfp4", "", "gemm.nvfp4.tn", "gemm.fp8.tn", wgrads, {"cast.fp8"}}, differ);
    nvfp4_of_cublas();
  }

  /// Their NVFP4 is another library's kernel. cuBLAS', as Transformer Engine calls it, took 3.764 ms for the products
  /// that take 7.161 ms in MXFP8 (the same page), the smallest of them 0.53 TFLOP: on a B300, whose tensor cores have
  /// half as much NVFP4 again as a B200's.
  void nvfp4_of_cublas() {
    if (gpu_.device.compute_capability != 103) return;
    constexpr double over_mxfp8 = 3.764 / 7.161, smallest = 2.0 * 15872 * 4096 * 4096;
    auto& samples = result_.profile.samples;
    std::map<std::vector<std::int64_t>, double> mxfp8, factors;
    for (const auto& s : samples.at("gemm.mxfp8.tn")) mxfp8[s.dims] = s.ns;
    for (const auto& s : samples.at("gemm.nvfp4.tn")) {
      const auto beside = mxfp8.find(s.dims);
      if (beside == mxfp8.end() || profile::family("gemm.nvfp4.tn").flop(s.dims) < smallest) continue;
      if (const double factor = over_mxfp8 * beside->second / s.ns; factor < 1) factors[s.dims] = factor;
    }
    for (auto& [name, all] : samples) {
      if (!name.starts_with("gemm.nvfp4.tn")) continue;
      for (auto& s : all) {
        const auto factor = factors.find(s.dims);
        if (factor == factors.end()) continue;
        s.ns *= factor->second;
        s.source += fmt::format(" x {:.3f}: {:.3f} of MXFP8", factor->second, over_mxfp8);
      }
    }
  }

  /// Derived samples of `from` as `to`, times `factor`.
  void follow(const std::string& from, const std::string& to, double factor, const std::string& why, double spread) {
    auto samples = derived_.samples.at(from);
    for (auto& s : samples) {
      s.ns *= factor;
      s.spread = std::hypot(s.spread, spread);
      s.origin = Origin::derived;
      s.source += why;
    }
    result_.profile.samples[to] = std::move(samples);
    if (spread > 0) followed_.insert(to);
  }

  /// Experts' products have no table of single kernels: they follow the dense ones of their precision. Casts to MXFP8
  /// and NVFP4 follow the cast and transpose of FP8, by the bytes that they move and by what was measured of MXFP8's.
  void grouped_and_casts() {
    for (const auto& [name, samples] : derived_.samples) {
      const auto dense = [&](std::string_view prefix, const std::string& plain) {
        if (!name.starts_with(prefix) || !anchors_.contains(plain)) return;
        follow(name, name, anchors_[plain], fmt::format(", x {:.3f} as {}", anchors_[plain], plain), spreads_[plain]);
      };
      dense("gemm.grouped.bf16.", "gemm.bf16.tn");
      if (name.find(".block.") == std::string::npos) dense("gemm.grouped.fp8.", "gemm.fp8.tn");
    }
    if (!anchors_.contains("gemm.mxfp8.tn")) return;
    const double factor = anchors_["gemm.mxfp8.tn"];
    for (const char* ending : {"", ".acc_f32", ".acc_bf16", ".out_bf16"}) {
      const std::string from = fmt::format("gemm.grouped.fp8.tn{}", ending);
      follow(from, fmt::format("gemm.grouped.mxfp8.tn{}", ending), factor,
             fmt::format(", {} x {:.3f} as gemm.mxfp8.tn", from, factor), spreads_["gemm.mxfp8.tn"]);
    }
    const auto bytes = [](const char* name) { return profile::family(name).bytes({1, 1}); };
    const auto by_bytes = [&](const char* cast, double beyond, const std::string& why) {
      const double more = bytes(cast) / bytes("cast_transpose.fp8");
      follow("cast_transpose.fp8", cast, more * beyond,
             fmt::format(", cast_transpose.fp8 x {:.3f} by bytes{}", more, why), 0);
    };
    // The kernel is bound by computation (NVIDIA/TransformerEngine#1628): bf16 8192 x 8192 in both directions took
    // 52.34 us on a B200 (ROCm/TransformerEngine#598, column B200), 43.10 us by bytes.
    constexpr double mxfp8_over_bytes = 52.34 / 43.10;
    by_bytes("quantize.mxfp8", mxfp8_over_bytes, fmt::format(" x {:.3f} as on a B200", mxfp8_over_bytes));
    // Casts of a layer beside its products: 6.453 - 3.764 ms in NVFP4, 8.984 - 7.161 ms in MXFP8 (B300, the page
    // above).
    constexpr double nvfp4_over_mxfp8 = (6.453 - 3.764) / (8.984 - 7.161);
    const double nvfp4 = nvfp4_over_mxfp8 * mxfp8_over_bytes * bytes("quantize.mxfp8") / bytes("quantize.nvfp4");
    by_bytes("quantize.nvfp4", nvfp4, fmt::format(" x {:.3f}: {:.3f} of MXFP8", nvfp4, nvfp4_over_mxfp8));
  }

  /// NCCL among 2 to 8 GPUs. Of an NVL72 four GPUs of a tray were measured; eight there are a B200's eight, times what
  /// four of the tray are to four of the B200.
  void collectives() {
    const auto read = [&](std::string_view system) {
      const CsvTable t(fmt::format("{}/data/{}/comm/nccl/{}/nccl_perf.csv", sources_.aiconfigurator, system, nccl));
      std::map<std::string, std::map<std::vector<std::int64_t>, std::vector<double>>> times;
      constexpr std::int64_t half = 2;  // bytes
      for (std::size_t i = 0; i < t.size(); ++i) {
        if (t.text(i, "nccl_dtype") != "half") continue;
        std::string op(t.text(i, "op_name"));
        if (op == "alltoall") op = "all_to_all";
        times[op][{std::llround(t.number(i, "num_gpus")), std::llround(t.number(i, "message_size")) * half}].push_back(
            t.number(i, "latency") * 1e6);
      }
      return times;
    };
    const auto here = read(from_.system);
    const auto whole = blackwell() ? read("b200_sxm") : here;
    const std::string source = table(fmt::format("nccl {}", nccl));
    constexpr std::int64_t tray = 4, node = 8;
    for (const auto& [op, times] : here) {
      const std::string name = op + ".nvlink";
      if (profile::find_family(name) == nullptr) continue;
      std::vector<Sample> samples;
      std::vector<double> ratios;
      for (const auto& [dims, list] : times) {
        const double ns = traces::median(list);
        samples.push_back({dims, ns, 0, static_cast<int>(list.size()), Origin::published, source});
        if (dims[1] >= (4 << 20)) ratios.push_back(ns / derived_ns(name, dims));
        if (dims[0] != tray || times.contains({node, dims[1]})) continue;
        const auto& b200 = whole.at(op);
        if (!b200.contains({node, dims[1]}) || !b200.contains(dims)) continue;
        const double as = ns / traces::median(b200.at(dims));
        samples.push_back({{node, dims[1]},
                           traces::median(b200.at({node, dims[1]})) * as,
                           std::abs(as - 1),
                           1,
                           Origin::published,
                           fmt::format("{}, a B200's x {:.3f}", source, as)});
      }
      std::ranges::sort(samples, {}, &Sample::dims);
      result_.profile.samples[name] = std::move(samples);
      compare(name + ", from 4 MiB on", source, std::move(ratios));
    }
  }

  /// Their own attention kernels read paged keys, so they only say how much faster one GPU is than another.
  double faster_than_b200(std::int64_t length) const {
    if (from_.system == "b200_sxm") return 1;
    using Shape = std::vector<std::int64_t>;
    const auto read = [&](std::string_view system) {
      const CsvTable t(fmt::format("{}/data/{}/attention/{}/{}/context_attention_perf.csv", sources_.aiconfigurator,
                                   system, framework, version));
      std::map<Shape, double> times;
      constexpr double busy = 16;  // heads times sequences that fill the GPU
      for (std::size_t i = 0; i < t.size(); ++i) {
        if (t.text(i, "attn_dtype") != "bfloat16" || t.text(i, "kv_cache_dtype") != "bfloat16") continue;
        if (t.number(i, "window_size") != 0 || t.number(i, "head_dim") != 128) continue;
        if (t.number(i, "batch_size") * t.number(i, "num_heads") < busy) continue;
        Shape shape;
        for (const char* column : {"isl", "batch_size", "num_heads", "num_key_value_heads"})
          shape.push_back(std::llround(t.number(i, column)));
        times[shape] = t.number(i, "latency");
      }
      return times;
    };
    const auto ours = read(from_.system), b200 = read("b200_sxm");
    constexpr std::int64_t longest = 16384;  // that they measured
    const std::int64_t at = std::min(length, longest);
    std::vector<double> ratios;
    for (const auto& [shape, time] : ours) {
      const auto found = b200.find(shape);
      if (shape[0] == at && found != b200.end()) ratios.push_back(time / found->second);
    }
    return ratios.empty() ? 1 : traces::median(ratios);
  }

  /// SimuMax: cuDNN's attention as Transformer Engine calls it, on a B200. Other lengths and heads: the derived times,
  /// corrected by what the published shapes differ from theirs.
  void attention() {
    if (!blackwell()) return;
    std::map<std::string, std::vector<Sample>> published;
    std::map<std::int64_t, double> factors;
    for (const auto& a : simumax_->attention()) {
      if (!factors.contains(a.length)) factors[a.length] = faster_than_b200(a.length);
      const double factor = factors[a.length];
      Sample s;
      s.dims = a.dims;
      s.ns = a.ns * factor;
      s.spread = profile_error;
      s.count = 1;
      s.origin = Origin::published;
      s.source = simumax_->name();
      if (factor != 1) s.source += fmt::format(" x {:.3f} ({})", factor, table("attention"));
      published[a.family].push_back(s);
    }
    for (auto& [name, list] : published) {
      std::vector<double> ratios;
      for (const auto& s : list) ratios.push_back(s.ns / derived_ns(name, s.dims));
      const double anchor = traces::median(ratios);
      const double left = (traces::quantile(ratios, 0.84) - traces::quantile(ratios, 0.16)) / 2 / anchor;
      follow(name, name, anchor, fmt::format(", x {:.3f} as the published shapes", anchor), left);
      auto& all = result_.profile.samples[name];
      std::erase_if(all, [&](const Sample& s) {
        return std::ranges::any_of(list, [&](const Sample& p) { return p.dims == s.dims; });
      });
      all.insert(all.end(), list.begin(), list.end());
      std::ranges::sort(all, {}, &Sample::dims);
      compare(name, simumax_->name(), std::move(ratios));
      anchors_[name] = anchor;
    }
  }

  /// No better is claimed for what is derived from one generation to the next than the tables show where there are
  /// some.
  void derived_errors() {
    if (anchors_.empty() || !blackwell()) return;
    double sum = 0;
    for (const auto& [name, anchor] : anchors_) sum += std::log(anchor) * std::log(anchor);
    const double error = std::sqrt(sum / static_cast<double>(anchors_.size()));
    for (auto& [name, samples] : result_.profile.samples) {
      if (followed_.contains(name) || profile::family(name).load == profile::Load::none) continue;
      for (auto& s : samples)
        if (s.origin == Origin::derived) s.spread = std::hypot(s.spread, error);
    }
    result_.profile.provenance.push_back(
        fmt::format("error class of derived kernels: {:.3f}, rms of the tables over what was derived", error));
  }

  /// The law of the measured part, with what load adds scaled to that of long runs over short ones.
  void clocks() {
    for (auto& law : result_.profile.clocks) {
      const auto full = full_load_.find(law.precision);
      const auto* matrix = derived_.clocks_for(law.precision, "matrix");
      if (full == full_load_.end() || full->second <= 1 || matrix == nullptr || matrix->rows.empty()) continue;
      const double measured = matrix->rows.back().matrix - 1;
      if (measured <= 0) continue;
      const double scale = (full->second - 1) / measured;
      for (auto& row : law.rows)
        for (double* slower : {&row.matrix, &row.attention, &row.memory}) *slower = 1 + (*slower - 1) * scale;
      const double watts = gpu_.power_watts.value / law.limit_watts;
      for (auto& row : law.rows) row.watts *= watts;
      law.limit_watts *= watts;
    }
    for (const auto& [precision, full] : full_load_)
      result_.profile.provenance.push_back(
          fmt::format("clocks of {}: those of the measured part with what load adds scaled to {:.3f} at full load, a "
                      "product repeated for a second over a dozen launches of it ({})",
                      precision, full, table("long runs")));
  }

  void network_card() {
    const auto* standard = result_.profile.link("infiniband");
    constexpr double standard_gbits = 400;  // published_links()
    if (standard == nullptr || gpu_.network_gbits.value == standard_gbits) return;
    profile::Link card = *standard;
    card.gbytes_per_s *= gpu_.network_gbits.value / standard_gbits;
    card.origin = Origin::derived;
    card.source = fmt::format("{}; {} of 400 Gb/s", gpu_.network_gbits.source, standard->source);
    result_.profile.links.push_back(card);
  }

  void provenance() {
    auto& p = result_.profile;
    p.versions["aiconfigurator"] = read_file(sources_.aiconfigurator + "/commit.txt").substr(0, 40);
    if (simumax_) p.versions["simumax"] = simumax_->name();
    p.provenance.insert(
        p.provenance.begin(),
        fmt::format("public tables: pipewright import --aiconfigurator --gpu {} (docs/public-tables.md)",
                    gpu_.profile));
  }

  // A B200's attention in SimuMax's file was measured once, by torch's profiler, on a part that its other tables show
  // to be slower under load than aiconfigurator's: untested, as interpolate.hpp has it.
  static constexpr double profile_error = 0.1;

  const Sources& sources_;
  const profile::DataSheet& gpu_;
  const Collection& from_;
  Profile derived_;
  std::optional<SimuMax> simumax_;
  std::string commit_;
  std::map<std::string, double> anchors_, spreads_;  ///< by family: published over derived; error class
  std::set<std::string> followed_;                   ///< derived, with a table's own error
  std::map<std::string, double> full_load_;          ///< by precision of the clock law
  Result result_;
};

}  // namespace

Result import_tables(const Sources& sources, const Profile& measured, const profile::DataSheet& gpu) {
  return Builder(sources, measured, gpu).build();
}

Profile published_only(const Profile& all) {
  Profile p = all;
  p.origin = Origin::published;
  for (auto& [name, samples] : p.samples)
    std::erase_if(samples, [](const Sample& s) { return s.origin != Origin::published; });
  std::erase_if(p.samples, [](const auto& each) { return each.second.empty(); });
  p.links.clear();
  p.clocks.clear();
  p.scalars.clear();
  p.interpolation.clear();
  p.prepare();
  return p;
}

std::string text(const Result& result) {
  Table table({"kernels", "shapes", "median", "5 %", "95 %", "table"});
  for (const auto& c : result.comparisons) {
    table.add({c.family, fmt::format("{}", c.shapes), fmt::format("{:.3f}", c.median), fmt::format("{:.3f}", c.low),
               fmt::format("{:.3f}", c.high), c.table});
  }
  return fmt::format("{}: published times over what the profile would have said without them\n\n{}",
                     result.profile.name, table.text());
}

}  // namespace pipewright::tables
