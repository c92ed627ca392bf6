#include "completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "published_figures.hpp"
#include "robust_statistics.hpp"

namespace pipewright::tables {
namespace {

using profile::Origin;
using profile::Profile;
using profile::Sample;

/// cuDNN's figures are of a few shapes: untested for others, as interpolate.hpp has it.
constexpr double other_shapes = 0.1;

}  // namespace

double log_of_90_percent(double ratio) {
  constexpr double sigmas = 1.645;  // of a 90 % interval
  return std::abs(std::log(ratio)) / sigmas;
}

Completion::Completion(const Profile& measured, const profile::DataSheet& gpu)
    : measured_(measured), gpu_(gpu), derived_(profile::derive(measured, gpu)) {
  result_.profile = derived_;
  result_.profile.interpolation.clear();
}

Result Completion::finish() {
  mxfp8_beside_fp8();
  under_load();
  cublas_errors();
  cublas_nvfp4_products();
  grouped_and_casts();
  maxima();
  triton_products();
  attention();
  derived_errors();
  clocks();
  network_card();
  result_.profile.prepare();
  return std::move(result_);
}

double Completion::derived_ns(const std::string& family, const std::vector<std::int64_t>& dims) const {
  return derived_.time({family, dims})->ns;
}

void Completion::compare(const std::string& family, const std::string& source, std::vector<double> ratios) {
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

/// MXFP8's products are FP8's by tensor, on the same tensor cores, and their scales beside: where the table's library
/// takes longer, cuBLAS' share counts.
void Completion::mxfp8_beside_fp8() {
  auto& samples = result_.profile.samples;
  if (!anchors_.contains("gemm.mxfp8.tn") || !anchors_.contains("gemm.fp8.tn")) return;
  std::map<std::vector<std::int64_t>, double> factors;
  const auto& fp8 = samples.at("gemm.fp8.tn");
  for (const auto& s : samples.at("gemm.mxfp8.tn")) {
    const auto beside = std::ranges::find(fp8, s.dims, &Sample::dims);
    constexpr double rounded = 1e-3;  // the same figure, written and read again
    if (beside == fp8.end() || s.ns <= (1 + rounded) * beside->ns / fp8_over_mxfp8) continue;
    factors[s.dims] = beside->ns / fp8_over_mxfp8 / s.ns;
  }
  for (auto& [name, all] : samples) {
    if (!name.starts_with("gemm.mxfp8.tn")) continue;
    for (auto& s : all) {
      const auto found = factors.find(s.dims);
      if (found == factors.end()) continue;
      s.ns *= found->second;
      s.source += fmt::format(" x {:.3f} as FP8's beside it", found->second);
    }
  }
  std::vector<double> ratios;
  for (const auto& s : samples.at("gemm.mxfp8.tn")) ratios.push_back(s.ns / derived_ns("gemm.fp8.tn", s.dims));
  anchors_["gemm.mxfp8.tn"] = traces::median(ratios);
}

/// Of a B300 under full load there are the products of a layer, of a GB200 cuBLAS' FP8; of others the tables' own long
/// runs, and FP8 of kin as that.
void Completion::under_load() {
  if (const auto told = cublas_fp8_under_load(gpu_)) full_load_["fp8"] = {told->full, told->source};
  if (gpu_.profile != "b300-sxm") return;
  const LayerOnB300 layer;
  const auto over_cool = [&](const char* family, double ms) {
    double cool = 0;
    for (const auto& dims : layer.shapes) cool += result_.profile.time({family, dims})->ns;
    return ms_to_ns(ms) / cool;
  };
  const char* source = "products of a layer on a B300, Transformer Engine d0067d0d";
  full_load_["bf16"] = {over_cool("gemm.bf16.tn", layer.bf16), source};
  full_load_["fp8"] = {std::sqrt(over_cool("gemm.fp8.tn", layer.fp8) * over_cool("gemm.mxfp8.tn", layer.mxfp8)),
                       source};
}

/// FP8 products of the tables are other libraries' kernels, which differ by more than cuBLAS' do. cuBLAS' own are told
/// by one layer on a B300, all precisions under the same load: FP8's error is by what their ratio to bf16 there is not
/// the tables', beside the error that all products of the tables share.
void Completion::cublas_errors() {
  if (!blackwell() || !anchors_.contains("gemm.bf16.tn")) return;
  const LayerOnB300 layer;
  auto& p = result_.profile;
  const auto loaded = [&](const std::string& family, const char* precision) {
    const auto told = full_load_.find(precision);
    double sum = 0;
    for (const auto& dims : layer.shapes) sum += p.time({family, dims})->ns;
    return sum * (told == full_load_.end() ? 1 : told->second.full);
  };
  const double bf16 = loaded("gemm.bf16.tn", "bf16");
  for (const auto& [family, ms] :
       {std::pair<std::string, double>("gemm.fp8.tn", layer.fp8), {"gemm.mxfp8.tn", layer.mxfp8}}) {
    if (!anchors_.contains(family)) continue;
    const double library = log_of_90_percent(loaded(family, "fp8") / bf16 / (ms / layer.bf16));
    spreads_[family] = std::hypot(log_of_90_percent(tables_differ_by), library);
    for (auto& [name, samples] : p.samples) {
      if (!name.starts_with(family)) continue;
      for (auto& s : samples)
        if (s.origin == Origin::published) s.spread = spreads_[family];
    }
  }
}

/// NVFP4 of the tables is another library's kernel: where cuBLAS' is told to be faster, it is taken.
void Completion::cublas_nvfp4_products() {
  auto& samples = result_.profile.samples;
  if (!anchors_.contains("gemm.nvfp4.tn") || !samples.contains("gemm.mxfp8.tn")) return;
  std::map<std::vector<std::int64_t>, std::pair<double, std::string>> factors;
  std::set<std::vector<std::int64_t>> cublas;
  const auto& mxfp8 = samples.at("gemm.mxfp8.tn");
  for (const auto& s : samples.at("gemm.nvfp4.tn")) {
    const auto beside = std::ranges::find(mxfp8, s.dims, &Sample::dims);
    if (beside == mxfp8.end()) continue;
    const auto told = cublas_nvfp4(gpu_, profile::family("gemm.nvfp4.tn").flop(s.dims), beside->ns);
    constexpr double rounded = 1e-3;  // the same figure, written and read again
    if (!told || told->ns > (1 + rounded) * s.ns) continue;
    cublas.insert(s.dims);
    if (told->ns < (1 - rounded) * s.ns)
      factors[s.dims] = {told->ns / s.ns, fmt::format(" x {:.3f} {}", told->ns / s.ns, told->source)};
  }
  for (auto& [name, all] : samples) {
    if (!name.starts_with("gemm.nvfp4.tn")) continue;
    for (auto& s : all) {
      if (!cublas.contains(s.dims)) continue;
      s.spread = log_of_90_percent(tables_differ_by);
      const auto found = factors.find(s.dims);
      if (found == factors.end()) continue;
      s.ns *= found->second.first;
      s.source += found->second.second;
    }
  }
  std::vector<double> ratios;
  for (const auto& s : samples.at("gemm.nvfp4.tn")) ratios.push_back(s.ns / derived_ns("gemm.fp8.tn", s.dims));
  anchors_["gemm.nvfp4.tn"] = traces::median(ratios);
}

/// Derived samples of `from` as `to`, times `factor`.
void Completion::follow(const std::string& from, const std::string& to, double factor, const std::string& why,
                        double spread) {
  follow(
      from, to, [factor](const Sample&) { return factor; }, [why](double) { return why; }, spread);
}

void Completion::follow(const std::string& from, const std::string& to, const Factor& factor,
                        const std::function<std::string(double)>& why, double spread) {
  auto samples = derived_.samples.at(from);
  for (auto& s : samples) {
    const double longer = factor(s);
    s.ns *= longer;
    s.spread = std::hypot(s.spread, spread);
    s.origin = Origin::derived;
    s.source += why(longer);
  }
  result_.profile.samples[to] = std::move(samples);
  if (spread > 0) followed_.insert(to);
}

/// Transformer Engine multiplies every expert's rows by a dense product of its own (nvte_multi_tensor_gemm), so an
/// expert's takes as much longer than derived as the dense one of its shape. Fewer rows than the table has take what
/// its fewest do.
void Completion::follow_dense(const std::string& from, const std::string& to, const std::string& alike,
                              const std::string& plain) {
  if (!derived_.samples.contains(from) || !derived_.samples.contains(alike) || !result_.profile.samples.contains(plain))
    return;
  const bool weights = plain.find(".acc_") != std::string::npos || plain.ends_with(".out_bf16") ||
                       plain.find(".nt") != std::string::npos;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const auto& s : result_.profile.samples.at(plain)) fewest = std::min(fewest, s.dims[1]);
  const auto longer = [&](const Sample& s) {
    const std::int64_t rows = std::max(fewest, s.dims[1] / s.dims[0]), n = s.dims[2], k = s.dims[3];
    const std::vector<std::int64_t> one = weights ? std::vector{k, n, rows} : std::vector{n, rows, k};
    return static_cast<double>(result_.profile.time({plain, one})->ns) / derived_ns(alike, one);
  };
  const auto why = [&](double factor) {
    return fmt::format(", {}x {:.3f} as {} of an expert's rows", from == to ? "" : from + " ", factor, plain);
  };
  const auto forward =
      plain.substr(0, plain.find(".tn") == std::string::npos ? plain.rfind('.') : plain.find(".tn") + 3);
  const auto told = spreads_.contains(forward) ? forward : "gemm.bf16.tn";
  follow(from, to, longer, why, spreads_[told]);
}

/// Experts' products have no table of single kernels: they follow the dense ones of their precision. Casts to MXFP8
/// and NVFP4 follow the cast and transpose of FP8, by the bytes that they move and by what was measured of MXFP8's.
void Completion::grouped_and_casts() {
  constexpr std::string_view grouped = "gemm.grouped.";
  for (const auto& [name, samples] : derived_.samples) {
    if (!name.starts_with(grouped) || name.find(".block.") != std::string::npos) continue;
    const std::string plain = "gemm." + name.substr(grouped.size());
    if (anchors_.contains(plain.starts_with("gemm.bf16") ? "gemm.bf16.tn" : "gemm.fp8.tn"))
      follow_dense(name, name, plain, plain);
  }
  if (!anchors_.contains("gemm.mxfp8.tn")) return;
  for (const char* recipe : {"mxfp8", "nvfp4"})
    for (const char* ending : {"", ".acc_f32", ".acc_bf16", ".out_bf16"})
      follow_dense(fmt::format("gemm.grouped.fp8.tn{}", ending), fmt::format("gemm.grouped.{}.tn{}", recipe, ending),
                   fmt::format("gemm.fp8.tn{}", ending), fmt::format("gemm.{}.tn{}", recipe, ending));
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

/// The maximum of a tensor, which current scaling takes and delayed scaling does not: twelve linear layers of one size
/// take so much longer with the former, in ms (Transformer Engine d0067d0d, docs/examples/gemm_profiling, quantization
/// included). The kernel gains nothing from Blackwell's memory.
void Completion::maxima() {
  if (!blackwell()) return;
  constexpr double on_b300 = 9.147 - 7.802, on_h200 = 20.285 - 18.978, longer = on_b300 / on_h200;
  const auto measured = measured_.samples.find("amax");
  if (measured == measured_.samples.end()) return;
  auto samples = measured->second;
  for (auto& s : samples) {
    s.ns *= longer;
    s.origin = Origin::derived;
    s.source = fmt::format("{} x {:.3f}, as on a B300", measured_.name, longer);
  }
  result_.profile.samples["amax"] = std::move(samples);
}

/// Chunked products of Mamba-2 and gated delta nets are Triton's kernels, and gain less from Blackwell's tensor cores
/// than cuBLAS does. None is taken to gain more than the published one.
void Completion::triton_products() {
  if (!blackwell()) return;
  const double least = triton_over_h200(gpu_.profile);
  for (const auto& [name, samples] : measured_.samples) {
    if (!name.starts_with("mamba.") && !name.starts_with("gated_delta.")) continue;
    if (profile::family(name).load != profile::Load::matrix) continue;
    for (auto& s : result_.profile.samples.at(name)) {
      const auto same = std::ranges::find(samples, s.dims, &Sample::dims);
      if (s.ns >= least * same->ns) continue;
      s.ns = least * same->ns;
      s.source = fmt::format("{} x {:.3f}, as a Triton kernel on a GB200", measured_.name, least);
    }
  }
}

namespace {

/// Published over derived, by the logarithm of a length or of a window, between two of them by doublings.
double between(const std::map<double, double>& logs, double at) {
  const double x = std::log2(at);
  const auto above = logs.upper_bound(x);
  if (above == logs.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == logs.end()) return below->second;
  return std::lerp(below->second, above->second, (x - below->first) / (above->first - below->first));
}

/// By window (0: none) and length.
struct Corrections {
  std::map<std::int64_t, std::map<double, double>> logs;

  double at(std::int64_t length, std::int64_t window) const {
    std::map<double, double> here;
    for (const auto& [keys, by_length] : logs)
      if (keys < length)
        here[std::log2(static_cast<double>(keys == 0 ? length : keys))] =
            between(by_length, static_cast<double>(length));
    return std::exp(between(here, static_cast<double>(window)));
  }
};

/// The same attention without a sink a head.
profile::Key without_sinks(const std::string& pass, const Sample& s) {
  if (s.dims.back() < s.dims[2]) return {"attention.window." + pass, s.dims};
  return {"attention." + pass, {s.dims.begin(), s.dims.end() - 1}};
}

}  // namespace

/// cuDNN's own figures where it has the shape. Other heads, lengths and windows: the derived times, corrected by what
/// cuDNN's of that length and window differ from theirs. What sinks add to a kernel is a sum over all rows into one
/// number a head: nothing of a data sheet bounds it, and it stays as measured.
void Completion::attention() {
  const auto figures = cudnn_attention(gpu_.profile);
  if (figures.empty()) return;
  const double machine = log_of_90_percent(tables_differ_by);
  std::map<std::string, Corrections> corrections;
  std::map<std::string, std::vector<double>> ratios;
  for (const auto& f : figures) {
    const double ratio = f.ns / derived_ns(f.family, f.dims);
    const bool windowed = f.family.starts_with("attention.window.");
    auto& by_window = corrections[windowed ? "attention." + f.family.substr(f.family.find('w') + 7) : f.family];
    by_window.logs[windowed ? f.dims.back() : 0][std::log2(static_cast<double>(f.dims[1]))] = std::log(ratio);
    ratios[f.family].push_back(ratio);
  }
  for (const std::string pass : {"forward.bf16", "backward.bf16"}) {
    for (const std::string kind : {"", "dropout.", "thd.", "mla.", "window.", "sink."}) {
      const std::string name = "attention." + kind + pass;
      const bool windowed = profile::family(name).dims.size() > 6;
      const auto& like = corrections.at(kind == "mla." ? name : "attention." + pass);
      if (!derived_.samples.contains(name)) continue;
      auto& samples = result_.profile.samples[name];
      samples = derived_.samples.at(name);
      for (auto& s : samples) {
        double factor = like.at(s.dims[1], windowed ? s.dims.back() : s.dims[1]);
        if (kind == "sink.") {
          const auto plain = without_sinks(pass, s);
          const double with = measured_.time({name, s.dims})->ns, without = measured_.time(plain)->ns;
          const double follows = std::min(1.0, without / with) * derived_ns(plain.family, plain.dims) / without;
          factor = with / s.ns * (follows * factor + std::max(0.0, 1 - without / with));
        }
        s.ns *= factor;
        s.spread = std::hypot(s.spread, std::hypot(other_shapes, machine));
        s.origin = Origin::derived;
        s.source += fmt::format(", x {:.3f} as cuDNN's of that length{}{}", factor, windowed ? " and window" : "",
                                kind == "sink." ? " and what sinks add" : "");
      }
      followed_.insert(name);
    }
  }
  for (const auto& f : figures) {
    auto& samples = result_.profile.samples[f.family];
    std::erase_if(samples, [&](const Sample& s) { return s.dims == f.dims; });
    samples.push_back({f.dims, f.ns, machine, 1, Origin::published, std::string(cudnn_source())});
    std::ranges::sort(samples, {}, &Sample::dims);
  }
  for (auto& [name, list] : ratios) {
    // Windows are bound by neither of what a data sheet tells: what they were off says nothing of what is left derived.
    if (!name.starts_with("attention.window.")) anchors_[name] = traces::median(list);
    compare(name, std::string(cudnn_source()), std::move(list));
  }
  const OlderAttention older = older_attention();
  const auto scalar = [&](double ratio) {
    constexpr double digits = 1e3;
    return profile::Scalar{std::round(digits * ratio) / digits, 0, Origin::published, std::string(older.source)};
  };
  result_.profile.scalars["attention.forward.before_cudnn_9_17"] = scalar(older.forward);
  result_.profile.scalars["attention.backward.before_cudnn_9_17"] = scalar(older.backward);
}

/// No better is claimed for what is derived from one generation to the next than published kernels show where there are
/// some: norms for what memory bounds, products and attention for the rest.
void Completion::derived_errors() {
  if (anchors_.empty() || !blackwell()) return;
  const auto rms = [](const std::vector<double>& ratios) {
    double sum = 0;
    for (const double ratio : ratios) sum += std::log(ratio) * std::log(ratio);
    constexpr double digits = 1e3;  // a profile is written in so many
    return std::round(digits * std::sqrt(sum / static_cast<double>(ratios.size()))) / digits;
  };
  std::vector<double> all, norms;
  for (const auto& [name, anchor] : anchors_) all.push_back(anchor);
  for (const auto& f : cudnn_norms(gpu_.profile)) norms.push_back(f.ns / derived_ns(f.family, f.dims));
  const double error = rms(all), streaming = norms.empty() ? error : rms(norms);
  for (auto& [name, samples] : result_.profile.samples) {
    const auto load = profile::family(name).load;
    if (followed_.contains(name) || load == profile::Load::none) continue;
    for (auto& s : samples)
      if (s.origin == Origin::derived)
        s.spread = std::hypot(s.spread, load == profile::Load::memory ? streaming : error);
  }
  result_.profile.provenance.push_back(fmt::format(
      "error class of derived kernels: {:.3f}, rms of the tables over what was derived; of what memory bounds {:.3f}, "
      "rms of cuDNN's norms over what was derived",
      error, streaming));
  compare("rmsnorm.*.cudnn", std::string(cudnn_source()), std::move(norms));
}

/// The law of the measured part, with what load adds scaled to that of long runs over short ones.
void Completion::clocks() {
  for (auto& law : result_.profile.clocks) {
    const auto full = full_load_.find(law.precision);
    const auto* matrix = derived_.clocks_for(law.precision, "matrix");
    if (full == full_load_.end() || full->second.full <= 1 || matrix == nullptr || matrix->rows.empty()) continue;
    const double measured = matrix->rows.back().matrix - 1;
    if (measured <= 0) continue;
    const double scale = (full->second.full - 1) / measured;
    law.scale_load(scale);
    const double watts = gpu_.power_watts.value / law.limit_watts;
    for (auto& row : law.rows) row.watts *= watts;
    law.limit_watts *= watts;
  }
  for (const auto& [precision, told] : full_load_)
    result_.profile.provenance.push_back(
        fmt::format("clocks of {}: those of the measured part with what load adds scaled to {:.3f} at full load, a "
                    "product repeated over a dozen launches of it ({})",
                    precision, told.full, told.source));
}

void Completion::network_card() {
  const auto* standard = result_.profile.link("infiniband");
  constexpr double standard_gbits = 400;  // published_links()
  if (standard == nullptr || gpu_.network_gbits.value == standard_gbits) return;
  profile::Link card = *standard;
  card.gbytes_per_s *= gpu_.network_gbits.value / standard_gbits;
  card.origin = Origin::derived;
  card.source = fmt::format("{}; {} of 400 Gb/s", gpu_.network_gbits.source, standard->source);
  result_.profile.links.push_back(card);
}

namespace {

/// Tables that stand in a profile already.
class FromProfile : Completion {
 public:
  FromProfile(const Profile& measured, const profile::DataSheet& gpu, const std::vector<Profile>& tables)
      : Completion(measured, gpu) {
    for (const auto& t : tables) take(t);
    const std::pair<const char*, const char*> products[] = {{"gemm.bf16.tn", "gemm.bf16.tn"},
                                                            {"gemm.fp8.tn", "gemm.fp8.tn"},
                                                            {"gemm.mxfp8.tn", "gemm.fp8.tn"},
                                                            {"gemm.nvfp4.tn", "gemm.fp8.tn"}};
    for (const auto& [name, alike] : products) {
      const auto found = result_.profile.samples.find(name);
      if (found == result_.profile.samples.end() || found->second.front().origin != Origin::published) continue;
      std::vector<double> ratios;
      for (const auto& s : found->second) ratios.push_back(s.ns / derived_ns(alike, s.dims));
      anchors_[name] = traces::median(ratios);
      spreads_[name] = found->second.front().spread;
      follow_forward(name, alike);
      compare(name, found->second.front().source, std::move(ratios));
    }
    if (anchors_.empty())
      throw UsageError({"command line", 0}, "--tables", "no public table of products stands in " + tables.front().name);
    auto& p = result_.profile;
    for (const char* version : {"aiconfigurator", "simumax"})
      if (const auto told = tables.front().versions.find(version); told != tables.front().versions.end())
        p.versions[version] = told->second;
    std::string names;
    for (const auto& t : tables) names += " --tables " + t.name;
    p.provenance.insert(p.provenance.begin(),
                        fmt::format("public tables: pipewright profile derive {} --gpu {}{} (docs/public-tables.md)",
                                    measured.name, gpu.profile, names));
  }
  Result finished() { return finish(); }

 private:
  /// Published products and collectives; the rest is made anew. Of kin with more multiprocessors products are taken as
  /// much longer as cuDNN's attention is.
  void take(const Profile& tables) {
    const bool own = tables.name == gpu_.profile;
    const double longer = own ? 1 : over_kin(gpu_.profile, tables.name);
    for (const auto& [name, samples] : tables.samples) {
      const auto load = profile::family(name).load;
      if (load != profile::Load::matrix && load != profile::Load::network) continue;
      std::vector<Sample> published;
      for (auto s : samples) {
        if (s.origin != Origin::published) continue;
        if (load == profile::Load::matrix && told_.contains(name)) break;  // by the first that tells
        if (!own && load == profile::Load::matrix) {
          s.ns *= longer;
          s.source += fmt::format(" x {:.3f} of {}", longer, tables.name);
        }
        if (!own && load == profile::Load::network) s.source += ", as on " + tables.name;
        published.push_back(std::move(s));
      }
      if (published.empty()) continue;
      result_.profile.samples[name] = std::move(published);
      told_.insert(name);
    }
    if (!own) return;
    for (const char* precision : {"bf16", "fp8"}) {
      const auto* law = tables.clocks_for(precision, "matrix");
      if (law != nullptr && !law->rows.empty())
        full_load_[precision] = {law->rows.back().matrix, "aiconfigurator's long runs"};
    }
  }

  /// dgrad and wgrad take as much longer than the forward product as they are derived to now.
  void follow_forward(const std::string& plain, const std::string& alike) {
    const std::string of = plain == "gemm.bf16.tn" ? "gemm.bf16" : plain, like = plain == "gemm.bf16.tn" ? of : alike;
    const auto& forward = result_.profile.samples.at(plain);
    for (auto& [name, samples] : result_.profile.samples) {
      const bool follows = name != plain && name.starts_with(of + ".") && told_.contains(name);
      const std::string kin = follows ? like + name.substr(of.size()) : "";
      if (!follows || !derived_.samples.contains(kin)) continue;
      for (auto& s : samples) {
        const auto beside = std::ranges::find(forward, s.dims, &Sample::dims);
        if (beside != forward.end()) s.ns = beside->ns * derived_ns(kin, s.dims) / derived_ns(alike, s.dims);
      }
    }
  }

  std::set<std::string> told_;
};

}  // namespace

Result complete(const Profile& measured, const profile::DataSheet& gpu, const std::vector<Profile>& tables) {
  return FromProfile(measured, gpu, tables).finished();
}

}  // namespace pipewright::tables
